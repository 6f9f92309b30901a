"""A demo: a simulated cluster with faults, behind the same REST, stream and page as a real one.

The real rules run under a virtual clock that keeps up with the real one, so the page is alive. Some
minutes have happened before it opens, so there is a past to look at. One seed, one run. Nothing
listens for workers, and what would change something is refused.
"""

import asyncio
import logging
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from strata.config import Settings
from strata.coordinator.clock import read_clock
from strata.coordinator.http.ports import Api
from strata.coordinator.kernel import Kernel
from strata.coordinator.logs import Line, LogStore
from strata.coordinator.metrics import Metrics
from strata.coordinator.narrate import words
from strata.coordinator.observed import Observed, Seen
from strata.coordinator.previews import Previews
from strata.coordinator.server import http_serving, taking_turns
from strata.coordinator.vault import Vault
from strata.core.cluster import CODEC
from strata.core.datasets import AssignmentChanged, order_of
from strata.core.events import Event
from strata.core.resources import GpuMetrics, ResourceMetrics
from strata.core.state import Cluster
from strata.core.worker_facts import ResourceSnapshot
from strata.sim.disk import SimDisk
from strata.sim.playback import Playback
from strata.sim.samples import samples
from strata.sim.simulation import Scenario, Simulation
from strata.sim.worker import DATASET, SimWorker
from strata.sim.world import EPOCH_NS, SECOND_NS
from strata.store.base import Batch
from strata.store.sqlite import SqliteStore
from strata.wire.v1 import coordinator_pb2 as pb

MS_NS = 1_000_000
PAST_S = 60
PARTS = 4
FIGURES_S = 0.5
GPU_BYTES = 80_000_000_000
RESOURCES_EVERY_MS = 10_000
SHOWN = 2
FAULTS = ("crash", "fail", "reset", "stop", "crash", "slow")
LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn"}


def scenario(seed: int, workers: int) -> Scenario:
    """Short steps and frequent faults, so that something is always going on."""
    return Scenario(
        seed=seed,
        workers=workers,
        fault_every_s=50.0,
        faults=FAULTS,
        steps=600,
        step_s=0.4,
        save_every=40,
        save_s=3.0,
        load_s=2.0,
        barrier_every=30,
        heartbeat_s=1.0,
        events=True,
    )


class MirroredDisk(SimDisk):
    """The simulated coordinator's disk; once mirrored, what it takes is in a real store too."""

    _mirror: SqliteStore | None = None

    def mirror_in(self, store: SqliteStore) -> None:
        """Copies what there is at once: the past would take long, fact by fact."""
        self.copy_to(store)
        self._mirror = store

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        """Stores in both."""
        position = super().append(
            events, incarnation=incarnation, expected=expected, batches=batches
        )
        if self._mirror is not None:
            self._mirror.append(events, incarnation=incarnation, expected=expected, batches=batches)
        return position


class Demo:
    """A simulation from a moment on up to another, and what its workers say of themselves.

    Afterwards it can keep up with the real clock. Moments are Unix nanoseconds.
    """

    def __init__(
        self,
        scenario: Scenario,
        store: SqliteStore,
        logs: LogStore,
        begin_ns: int,
        until_ns: int,
        *,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.observed = Observed()
        self.previews = Previews()
        self.requests = 0
        self.assignments_s: list[float] = []
        self._logs = logs
        self._facts: list[Event] = []
        self._showing = False  # samples of the past are not kept, so they are not drawn
        self._random = Random(scenario.seed)
        self._recorded_ms: dict[str, int] = {}
        self._sim = sim = Simulation(scenario)
        sim.world.now_ns = begin_ns - EPOCH_NS
        sim.coordinator.disk = disk = MirroredDisk(CODEC)
        sim.coordinator.on_turn.append(self._note)
        sim.on_beat.append(self._beat)
        sim.begin()
        for part in range(1, PARTS + 1):
            self._showing = part == PARTS
            sim.world.run(begin_ns + (until_ns - begin_ns) * part // PARTS - EPOCH_NS)
            on_progress(part / PARTS)
        disk.mirror_in(store)

    def advance(self) -> list[Event]:
        """Lets happen what is due by now; the facts of it."""
        self._sim.world.run(time.time_ns() - EPOCH_NS)
        facts, self._facts = self._facts, []
        return facts

    def take_requests(self) -> int:
        """How many messages the simulated workers have sent since this was last asked."""
        requests, self.requests = self.requests, 0
        return requests

    def take_assignments(self) -> list[float]:
        """How long the assignments took that were made since this was last asked, in seconds."""
        took, self.assignments_s = self.assignments_s, []
        return took

    def _note(self, _: Cluster, events: list[Event]) -> None:
        self._facts += events
        self.requests += len(events)
        for event in events:
            if isinstance(event.body, AssignmentChanged):
                self.assignments_s.append(self._assignment_s())
            told = words(event.body)
            if told is not None:
                level, text = told
                task, worker = (getattr(event.body, name, "") for name in ("task", "worker"))
                at_ms = event.wall_ns // MS_NS
                named = LEVELS.get(level, "error")
                self._logs.append(Line(named, text, "coordinator", task, worker, timestamp=at_ms))

    def _beat(self, process: SimWorker, beat: pb.Beat) -> None:
        """A worker beats: adds what it would have measured, and what it would have written."""
        kernel = self._sim.coordinator.kernel
        known = kernel.state.workers.get(process.name) if kernel is not None else None
        if known is None or not known.alive or known.incarnation != process.incarnation:
            return
        self.requests += 1
        worker, step = process.name, max(beat.step, 0)
        at_ms = self._sim.world.clock().wall_ns // MS_NS
        before = self.observed.workers.get(worker)
        if known.rank == 0 and before is not None and step // 10 > before.step // 10:
            text = f"step {step}: loss {loss(step):.4f}"
            self._logs.append(Line("info", text, "worker", process.task, worker, "stdout", at_ms))
        training = beat.state == pb.WORKER_STATE_TRAINING
        used = self._resources(training, training and not beat.waiting, step)
        told = loss(step) if training else None
        seen = Seen(process.incarnation, at_ms, step=step, resources=used, loss=told)
        self.observed.note(worker, seen)
        if training and self._showing:
            self._show(process, step)
        if at_ms - self._recorded_ms.get(worker, 0) >= RESOURCES_EVERY_MS:
            self._recorded_ms[worker] = at_ms
            fields = {name: getattr(used, name) for name in used.__struct_fields__}
            cards = fields.pop("gpu_metrics")
            process.witness.record(ResourceSnapshot(gpus=cards, **fields))

    def _show(self, process: SimWorker, step: int) -> None:
        """Show some of the samples that a worker trains in a step."""
        kernel = self._sim.coordinator.kernel
        task = kernel.state.tasks.get(process.task) if kernel is not None else None
        feed = task.feeds.get(DATASET) if task is not None else None
        if kernel is None or feed is None or step >= self._sim.scenario.steps:
            return
        order = order_of(kernel.state.datasets[DATASET].spec, feed)
        sent = msgspec.json.encode(samples(order, step, process.lanes[:SHOWN])).decode()
        self.previews.note(DATASET, process.name, sent)

    def _assignment_s(self) -> float:
        """How long an assignment would take: it grows with the number of workers."""
        workers = self._sim.scenario.workers
        return max(self._random.gauss(8e-5 + 4e-6 * workers, 1e-5), 1e-5)

    def _resources(self, training: bool, busy: bool, step: int) -> ResourceMetrics:
        use = self._random.gauss(93 if busy else 12, 3)
        card = GpuMetrics(
            index=0,
            name="simulated",
            utilization_percent=min(max(use, 0.0), 100.0),
            memory_used_bytes=int(GPU_BYTES * (0.72 if training else 0.1)),
            memory_total_bytes=GPU_BYTES,
        )
        return ResourceMetrics(
            cpu_percent=max(self._random.gauss(62 if busy else 20, 6), 0.0),
            memory_used_bytes=int(self._random.gauss(21e9, 2e8)),
            gpu_metrics=[card],
            disk_read_bytes=step * 48_000_000,
            disk_write_bytes=step * 1_200_000,
            disk_free_bytes=1_900_000_000_000,
            network_rx_bytes=step * 310_000_000,
            network_tx_bytes=step * 305_000_000,
        )


def loss(step: int) -> float:
    """A curve that falls as such curves do; it is made up."""
    return 0.35 + 2.2 * math.exp(-step / 90)


def count_simulated(demo: Demo, metrics: Metrics) -> None:
    """Add to the figures what a coordinator would have measured since this was last called."""
    metrics.count_request("grpc", demo.take_requests())
    for took_s in demo.take_assignments():
        metrics.timings.note_assignment(took_s)


@asynccontextmanager
async def counting(demo: Demo, metrics: Metrics) -> AsyncIterator[None]:
    """Count what the simulated workers ask for while the context is open."""

    async def count() -> None:
        while True:
            count_simulated(demo, metrics)
            await asyncio.sleep(FIGURES_S)

    task = asyncio.create_task(count(), name="strata-demo-figures")
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def demonstrating(
    settings: Settings,
    release: str,
    seed: int = 7,
    workers: int = 24,
    on_progress: Callable[[float], None] = lambda share: None,
) -> AsyncIterator[str]:
    """A demo for as long as the context is open; gives the address of its page.

    `on_progress` is called in another thread with the share of the past that is simulated.
    """
    with tempfile.TemporaryDirectory(prefix="strata-demo-") as name:
        folder = Path(name)
        with (
            SqliteStore(folder / "log.db", CODEC) as store,
            closing(LogStore(folder / "logs")) as logs,
        ):
            now_ns = time.time_ns()
            begin_ns = now_ns - PAST_S * SECOND_NS
            play = partial(Demo, scenario(seed, workers), store, logs, begin_ns, now_ns)
            # Its event loop needs a thread without one.
            demo = await asyncio.to_thread(play, on_progress=on_progress)
            demo.requests = 0  # the figures begin now
            engine = Playback(Kernel(store, read_clock), demo.advance)
            metrics = Metrics(engine, demo.observed)
            await engine.play()
            api = Api(
                engine=engine,
                observed=demo.observed,
                logs=logs,
                metrics=metrics,
                vault=Vault(folder / "vault"),
                previews=demo.previews,
                version=release,
                started_ms=read_clock().wall_ns // MS_NS - PAST_S * 1000,
                address="none: this is a demo",
                mode="demo",
            )
            async with (
                taking_turns(engine),
                counting(demo, metrics),
                http_serving(api, settings) as url,
            ):
                yield url
