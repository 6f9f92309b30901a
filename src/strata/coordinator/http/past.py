"""The past, for the API: the log read beside the engine, never in its way.

Reading happens in threads of its own, few at a time; whoever comes when all are taken and the line
is long is told to try again. The log is opened when somebody first asks, through connections of
its own, so the writer is never waited for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from strata.coordinator.engine import Engine
from strata.coordinator.http.cluster import DASHBOARD_BYTES, DASHBOARD_ITEMS, dashboard
from strata.coordinator.http.models import DashboardResponse, StatusResponse
from strata.coordinator.metrics import MetricsSnapshot
from strata.coordinator.observed import Observed, Seen
from strata.core.catalogue import CODEC
from strata.core.derive import Figures
from strata.core.resources import ResourceMetrics
from strata.core.state import Cluster
from strata.core.worker_facts import ResourceSnapshot
from strata.errors import Overloaded
from strata.store.base import EventReader
from strata.store.sqlite import SqliteReader
from strata.timeline.activity import Recent
from strata.timeline.answers import AsOf, MomentAnswer, NodeAnswer
from strata.timeline.desk import Desk
from strata.timeline.records import MS_NS, SECOND_NS, Record
from strata.timeline.states import Past, state_at
from strata.timeline.timeline import Timeline

THREADS = 2
LINE = 32
METRICS_WINDOW_NS = 60 * SECOND_NS

Answer = TypeVar("Answer")


class AtResponse(DashboardResponse, frozen=True, kw_only=True):
    """The dashboard as it would have shown a moment, and what each node was doing then."""

    as_of: AsOf
    nodes: list[NodeAnswer]
    nodes_total: int


class PastReader:
    """Opens the log once, and answers from it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="strata-past")
        self._waiting = 0
        self._desk: Desk | None = None

    async def ask(self, question: Callable[[Desk], Answer]) -> Answer:
        """What a function makes of the past; it runs in a thread."""
        if self._waiting >= LINE:
            raise Overloaded(
                f"{LINE} questions about the past are waiting", hint="try again", retry_after_s=1.0
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: question(self._opened()))
        finally:
            self._waiting -= 1

    def _opened(self) -> Desk:
        if self._desk is None:
            store = self._engine.kernel.store
            path = getattr(store, "path", None)
            reader: EventReader = store if path is None else SqliteReader(path, CODEC)
            self._desk = Desk(Timeline(reader, live=True))
        return self._desk

    def close(self) -> None:
        """Lets go of the log."""
        self._threads.shutdown(cancel_futures=True)
        if self._desk is not None and self._desk.timeline.reader is not self._engine.kernel.store:
            self._desk.timeline.close()


ThePast = NamedDependency[SkipValidation[PastReader]]


def dashboard_at(
    desk: Desk, answer: MomentAnswer, past: Past, recent: Recent, version: str
) -> AtResponse:
    """The dashboard of a past moment, within the same bound as that of now."""
    state, at_ns = past.state, int(answer.as_of.time_ms * MS_NS)
    observed = observed_then(state, recent)
    metrics = metrics_then(desk.timeline, past.position, at_ns)
    items = DASHBOARD_ITEMS
    while True:
        shown = dashboard(
            status_then(state, version, at_ns), state, observed, metrics, [], items, at_ns
        )
        whole = AtResponse(
            **{name: getattr(shown, name) for name in shown.__struct_fields__},
            as_of=answer.as_of,
            nodes=answer.nodes[:items],
            nodes_total=answer.nodes_total,
        )
        if items == 0 or len(msgspec.json.encode(whole)) <= DASHBOARD_BYTES:
            return whole
        items //= 2


def status_then(state: Cluster, version: str, at_ns: int) -> StatusResponse:
    """The coordinator as it was; where it was reached is not recorded."""
    return StatusResponse(
        connected=True,
        address="",
        uptime=0,
        version=version,
        mode="live",
        cluster=state.cluster,
        incarnation=state.coordinator_incarnation,
        position=state.position,
        started_at=at_ns // MS_NS,
    )


def observed_then(state: Cluster, recent: Recent) -> Observed:
    """What workers had last said of themselves, by their own events."""
    observed = Observed()
    for worker in state.workers.values():
        last = recent.last.get(worker.id)
        if last is not None and last.incarnation == worker.incarnation:
            step = recent.steps.get(worker.id, 0)
            used = resources_of(recent.resources.get(worker.id))
            seen = Seen(worker.incarnation, last.at_ns // MS_NS, step=step, resources=used)
            observed.note(worker.id, seen)
    return observed


def resources_of(record: Record | None) -> ResourceMetrics | None:
    """What a worker last said that it uses."""
    body = record.event.body if record is not None else None
    if not isinstance(body, ResourceSnapshot):
        return None
    fields = {name: getattr(body, name) for name in body.__struct_fields__ if name != "gpus"}
    return ResourceMetrics(gpu_metrics=body.gpus, **fields)


def metrics_then(timeline: Timeline, position: int, at_ns: int) -> MetricsSnapshot:
    """The figures of a past moment, derived from the facts of the minute before it.

    Requests and the cost of assigning shards were measured, not recorded: they are not known.
    """
    figures = Figures()
    start = timeline.position_at(at_ns - METRICS_WINDOW_NS)
    before = state_at(timeline, start).state
    now_ns = 0
    for record in timeline.facts(start, position):
        if not now_ns:
            figures.adopt(before, record.event.mono_ns)
        now_ns = record.event.mono_ns + at_ns - record.at_ns
        figures.observe(record.event)
    if not now_ns:
        figures.adopt(before, METRICS_WINDOW_NS)
        now_ns = 2 * METRICS_WINDOW_NS
    reading = figures.read(now_ns)
    return MetricsSnapshot(
        checkpoint_throughput=reading.checkpoint_throughput_mb_s,
        coordinator_rps=0.0,
        active_workers=reading.active_workers,
        total_workers=reading.total_workers,
        barrier_latency_p99=reading.barrier_latency_p99_ms,
        shard_assignment_time=None,
    )
