"""A demo: a simulated cluster with faults, behind the same REST API, stream and page as a real one.

The real rules run under a virtual clock that follows the real one, so the page is live. Some
minutes are simulated before it opens, so there is history to look at. One seed gives one run. The
demo accepts no workers and refuses every change. The samples of its preview are made up: small
pictures that follow from their number alone.
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
import numpy as np

from strata.config import Settings
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.fact_log_lines import log_line
from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_store import LogStore
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.rest.ports import Api
from strata.coordinator.rest.response_models import Sample
from strata.coordinator.server import http_serving, taking_turns
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.coordinator.sessions.preview_store import Previews
from strata.coordinator.sessions.task_environments import Vault
from strata.core.cluster import CODEC
from strata.core.datasets.dataset_rules import AssignmentChanged, order_of
from strata.core.events import Event
from strata.core.order import Order
from strata.core.state import Cluster
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.worker_facts import resource_snapshot
from strata.data.reading.sample_preview import shown
from strata.sim.demo_playback import Playback
from strata.sim.sim_disk import SimDisk
from strata.sim.sim_worker import DATASET, SimWorker
from strata.sim.simulation import Scenario, Simulation
from strata.sim.virtual_time import EPOCH_NS, SECOND_NS
from strata.store.event_store import Batch
from strata.store.sqlite import SqliteStore
from strata.wire.v1 import coordinator_pb2 as pb

SIDE = 16
CLASSES = ("rings", "stripes", "waves", "slope")


def samples(order: Order, step: int, lanes: Sequence[int]) -> list[Sample]:
    """The samples that a worker with these lanes trains in a step."""
    positions = order.positions(step, step + 1, lanes).ravel()
    numbers = order.samples(positions)
    return [
        sample(int(number), step, int(position))
        for number, position in zip(numbers, positions, strict=True)
    ]


def sample(number: int, step: int, position: int) -> Sample:
    """One picture with its class; the coordinator finds its shard by its position."""
    kind = number % len(CLASSES)
    return Sample(
        id=str(number),
        features={"image": shown(picture(number, kind))},
        label=CLASSES[kind],
        step=step,
        position=position,
    )


def picture(number: int, kind: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A pattern of a class; its place and colours follow from the number."""
    dice = np.random.default_rng(number)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE - dice.uniform(0.3, 0.7)
    angle = dice.uniform(0, np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    waves = (np.hypot(x, y) * 18, along * 22, along * 9 + np.sin(y * 9), along * 3)
    light = (np.sin(waves[kind]) + 1) / 2
    low, high = dice.uniform(20, 110, 3), dice.uniform(140, 240, 3)
    return np.asarray(low + light[:, :, None] * (high - low), np.uint8)


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
    """Short steps and frequent faults, so that there is always activity."""
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
    """The simulated coordinator's disk; once mirrored, it also writes to a real store."""

    _mirror: SqliteStore | None = None

    def mirror_in(self, store: SqliteStore) -> None:
        """Copy the present log at once, which is faster than fact by fact."""
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
        """Store in both."""
        position = super().append(
            events, incarnation=incarnation, expected=expected, batches=batches
        )
        if self._mirror is not None:
            self._mirror.append(events, incarnation=incarnation, expected=expected, batches=batches)
        return position


class Demo:
    """A simulation of a past period, with the reports of its workers.

    After that it can follow the real clock. Times are Unix nanoseconds.
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
        self.heartbeats = Heartbeats()
        self.previews = Previews()
        self.requests = 0
        self.assignments_s: list[float] = []
        self._logs = logs
        self._facts: list[Event] = []
        self._showing = False  # samples of the past are not stored, so they are not generated
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
        """Simulate up to now; return the new facts."""
        self._sim.world.run(time.time_ns() - EPOCH_NS)
        facts, self._facts = self._facts, []
        return facts

    def take_requests(self) -> int:
        """Messages that the simulated workers have sent since the last call."""
        requests, self.requests = self.requests, 0
        return requests

    def take_assignments(self) -> list[float]:
        """Seconds that each assignment since the last call took."""
        took, self.assignments_s = self.assignments_s, []
        return took

    def _note(self, _: Cluster, events: list[Event]) -> None:
        self._facts += events
        self.requests += len(events)
        for event in events:
            if isinstance(event.body, AssignmentChanged):
                self.assignments_s.append(self._assignment_s())
            line = log_line(event.body)
            if line is not None:
                level, text = line
                task, worker = (getattr(event.body, name, "") for name in ("task", "worker"))
                at_ms = event.wall_ns // MS_NS
                named = LEVELS.get(level, "error")
                self._logs.append(
                    LogLine(
                        level=named,
                        message=text,
                        source="coordinator",
                        task_id=task,
                        worker_id=worker,
                        timestamp=at_ms,
                    )
                )

    def _beat(self, process: SimWorker, beat: pb.Beat) -> None:
        """Add the measurements and log lines of a worker's heartbeat."""
        life = self._sim.coordinator.life
        known = life.kernel.state.workers.get(process.name) if life is not None else None
        if life is None or known is None or not known.alive:
            return
        if known.incarnation != process.incarnation:
            return
        self.requests += 1
        self.heartbeats.agents |= life.agents.heartbeats.agents
        worker, step = process.name, max(beat.step, 0)
        at_ms = self._sim.world.clock().wall_ns // MS_NS
        before = self.heartbeats.workers.get(worker)
        if known.rank == 0 and before is not None and step // 10 > before.step // 10:
            text = f"step {step}: loss {loss(step):.4f}"
            self._logs.append(
                LogLine(
                    level="info",
                    message=text,
                    source="worker",
                    task_id=process.task,
                    worker_id=worker,
                    stream="stdout",
                    timestamp=at_ms,
                )
            )
        training = beat.state == pb.WORKER_STATE_TRAINING
        used = self._resources(training, training and not beat.waiting, step)
        seen = LastHeartbeat(
            incarnation=process.incarnation,
            last_heartbeat_ms=at_ms,
            step=step,
            resources=used,
            loss=loss(step) if training else None,
        )
        self.heartbeats.note(worker, seen)
        if training and self._showing:
            self._show(process, step)
        if at_ms - self._recorded_ms.get(worker, 0) >= RESOURCES_EVERY_MS:
            self._recorded_ms[worker] = at_ms
            process.witness.record(resource_snapshot(used))

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
        """Seconds that an assignment would take, in proportion to the workers."""
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
    """A made-up loss curve."""
    return 0.35 + 2.2 * math.exp(-step / 90)


def count_simulated(demo: Demo, metrics: Metrics) -> None:
    """Add the figures that a coordinator would have measured since the last call."""
    metrics.count_request("grpc", demo.take_requests())
    for took_s in demo.take_assignments():
        metrics.timings.note_assignment(took_s)


@asynccontextmanager
async def counting(demo: Demo, metrics: Metrics) -> AsyncIterator[None]:
    """Count the requests of the simulated workers while the context is open."""

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
    """Run a demo while the context is open; yields the URL of its page.

    `on_progress` is called in another thread with the simulated share of the past.
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
            demo.requests = 0  # the figures start now
            engine = Playback(Kernel(store, read_clock), demo.advance)
            metrics = Metrics(engine, demo.heartbeats)
            await engine.play()
            api = Api(
                engine=engine,
                heartbeats=demo.heartbeats,
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
