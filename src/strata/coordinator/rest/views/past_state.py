"""Reads of the past for the API, without blocking the engine.

Queries run in a few threads of their own. If the queue of queries is full, further ones are
refused; a query whose client has disconnected is not started. The log is opened at the first query,
with its own connections, so that queries never wait for the writer.
"""

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.params import QueryParameter, SkipValidation

from strata.config import Settings
from strata.coordinator.engine.engine import Engine
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.rest.ports import Api
from strata.coordinator.rest.read_queue import ReadQueue
from strata.coordinator.rest.response_models import StatusResponse
from strata.coordinator.rest.routes.cluster_routes import (
    DASHBOARD_BYTES,
    DASHBOARD_ITEMS,
    DashboardResponse,
    dashboard,
)
from strata.coordinator.rest.routes.log_routes import shortened
from strata.coordinator.rest.views.live_history import HAPPENED, LINES, NOTABLE
from strata.coordinator.rest.views.past_metrics import metrics_at
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.cluster import CoordinatorStarted
from strata.core.state import Cluster
from strata.core.workers.heartbeats import ResourceMetrics
from strata.core.workers.worker_facts import ResourceSnapshot
from strata.errors import Unavailable
from strata.store.event_store import EventReader
from strata.store.sql.sql_reader import SqlReader
from strata.timeline.answers import AsOf, MomentAnswer, NodeAnswer, RunRow, event_answer
from strata.timeline.archive.run_list import runs_at
from strata.timeline.archive.run_lookup import RECORDED, kept_at, open_recorded
from strata.timeline.archive.segmented_log import open_log
from strata.timeline.goodput.goodput_answers import RunsGoodput
from strata.timeline.goodput.prices import Prices
from strata.timeline.goodput.runs_goodput import RunsLedger
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.node_activity import Recent
from strata.timeline.read.past_states import Past
from strata.timeline.read.records import MS_NS, SECOND_NS, Record
from strata.timeline.read.run_timeline import Timeline

QUEUE_LIMIT = 32
KEPT_OPEN = 4
REMEMBERED_EVENTS = 50_000
LOOKED_BACK_NS = 600 * SECOND_NS

Answer = TypeVar("Answer")
AnyRequest: TypeAlias = Request[Any, Any, Any]


class AtResponse(DashboardResponse, frozen=True, kw_only=True):
    """The dashboard at a past moment, and the activity of each node."""

    as_of: AsOf
    nodes: list[NodeAnswer]
    nodes_total: int


class PastReader:
    """Runs queries on the coordinator's log and on archived runs, which it opens when needed."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._reads = ReadQueue("past", QUEUE_LIMIT)
        self._queries: TimelineQueries | None = None
        self._kept: dict[str, TimelineQueries] = {}
        self._opening = Lock()
        self._across = RunsLedger(settings, kept_at(settings))

    async def ask(self, question: Callable[[TimelineQueries], Answer], run: str = "") -> Answer:
        """Run a query on the log or an archived run, in a thread."""
        return await self.work(lambda: question(self._opened(run)))

    async def work(self, work: Callable[[], Answer]) -> Answer:
        """Run a function in one of the threads; raises `Overloaded` if the queue is full."""
        return await self._reads.work(work)

    @property
    def price(self) -> str:
        """The price of the workers' time in the settings."""
        return self._settings.price

    async def runs_goodput(self, prices: Prices) -> RunsGoodput:
        """The goodput of the log and of the newest archived runs."""
        own = await self.work(self._own_queries)
        return await self.work(lambda: self._across.goodput(own, prices))

    def _own_queries(self) -> TimelineQueries:
        return self._opened("")

    async def runs(self) -> list[RunRow]:
        """The archived runs."""
        return await self.work(lambda: runs_at(kept_at(self._settings), self._settings))

    def _opened(self, run: str) -> TimelineQueries:
        with self._opening:
            return self._archived(run) if run else self._own()

    def _own(self) -> TimelineQueries:
        if self._queries is None:
            store = self._engine.kernel.store
            reader: EventReader = store
            if isinstance(store, SqlReader):
                reader = open_log(store.place, REMEMBERED_EVENTS, self._settings)
            self._queries = TimelineQueries(Timeline(reader, live=True))
        return self._queries

    def _archived(self, run: str) -> TimelineQueries:
        """An archived run; the last `KEPT_OPEN` runs stay open."""
        queries = self._kept.pop(run, None)
        if queries is None:
            queries = TimelineQueries(open_recorded() if run == RECORDED else self._found(run))
            for oldest in list(self._kept)[: len(self._kept) + 1 - KEPT_OPEN]:
                del self._kept[oldest]
        self._kept[run] = queries
        return queries

    def _found(self, run: str) -> Timeline:
        # Imported here, because a coordinator that archives nothing needs no Arrow.
        from strata.timeline.archive.run_archive import open_anywhere

        return open_anywhere(kept_at(self._settings), run, self._settings)

    def close(self) -> None:
        """Close the log and the archived runs."""
        self._reads.close()
        self._kept.clear()
        if (
            self._queries is not None
            and self._queries.timeline.reader is not self._engine.kernel.store
        ):
            self._queries.timeline.close()


class PastOf:
    """The log or the archived run that a request names."""

    def __init__(self, reader: PastReader, run: str, request: AnyRequest) -> None:
        self._reader = reader
        self._run = run
        self._request = request

    @property
    def live(self) -> bool:
        """Whether the request reads the coordinator's own log."""
        return not self._run

    async def ask(self, question: Callable[[TimelineQueries], Answer]) -> Answer:
        """Run a query in a thread; cancelled when the client disconnects."""
        asking = asyncio.ensure_future(self._reader.ask(question, self._run))
        leaving = asyncio.ensure_future(disconnected(self._request))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise Unavailable("the client has disconnected", hint="send the request again")
        finally:
            asking.cancel()
            leaving.cancel()


async def disconnected(request: AnyRequest) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


Run = Annotated[
    str,
    QueryParameter(
        max_length=400,
        description="Archived run, by its name or task, or `demo`; default: the present log.",
    ),
]
ThePast = NamedDependency[SkipValidation[PastOf]]
TheArchive = NamedDependency[SkipValidation[PastReader]]


def past_for(archive: TheArchive, request: AnyRequest, run: Run = "") -> PastOf:
    """The log or the archived run of a request."""
    return PastOf(archive, run, request)


def dashboard_at(
    queries: TimelineQueries, answer: MomentAnswer, past: Past, recent: Recent, api: Api
) -> AtResponse:
    """The dashboard at a past moment, with the same size limit as the present one."""
    state, at_ns = past.state, int(answer.as_of.time_ms * MS_NS)
    status = status_then(queries.timeline, state, at_ns)
    heartbeats = heartbeats_at(state, recent)
    metrics = metrics_at(queries.timeline, at_ns)
    lines = api.logs.recent(LogQuery(until_ms=at_ns // MS_NS), LINES)
    logs = [shortened(entry) for entry in lines.entries]
    notable = queries.facts_before(at_ns, NOTABLE, HAPPENED, at_ns - LOOKED_BACK_NS)
    happened = [event_answer(record) for record in notable]
    items = DASHBOARD_ITEMS
    while True:
        shown = dashboard(status, state, heartbeats, metrics, logs, happened, items, at_ns)
        whole = AtResponse(
            **{name: getattr(shown, name) for name in shown.__struct_fields__},
            as_of=answer.as_of,
            nodes=answer.nodes[:items],
            nodes_total=answer.nodes_total,
        )
        if items == 0 or len(msgspec.json.encode(whole)) <= DASHBOARD_BYTES:
            return whole
        items //= 2


def status_then(timeline: Timeline, state: Cluster, at_ns: int) -> StatusResponse:
    """Status of the coordinator at a past moment; what is not recorded is null."""
    started = started_before(timeline, state.position)
    body = started.event.body if started is not None else None
    return StatusResponse(
        connected=None,
        address=None,
        uptime=None if started is None else max(at_ns - started.at_ns, 0) // SECOND_NS,
        version=body.release if isinstance(body, CoordinatorStarted) else None,
        mode=None,
        cluster=state.cluster,
        incarnation=state.coordinator_incarnation,
        position=state.position,
        started_at=None if started is None else started.at_ns // MS_NS,
    )


def started_before(timeline: Timeline, position: int) -> Record | None:
    """The start of the coordinator that recorded the facts before a position."""
    if position <= timeline.reader.first or not timeline.clocks.eras:
        return None
    era = timeline.clocks.era(position - 1)
    record = next(timeline.facts(era.position, era.position + 1), None)
    known = record is not None and isinstance(record.event.body, CoordinatorStarted)
    return record if known else None


def heartbeats_at(state: Cluster, recent: Recent) -> Heartbeats:
    """The last heartbeats at a past moment, reconstructed from the workers' events."""
    heartbeats = Heartbeats()
    for worker in state.workers.values():
        last = recent.last.get(worker.id)
        if last is not None and last.incarnation == worker.incarnation:
            step = recent.steps.get(worker.id, 0)
            used = resources_of(recent.resources.get(worker.id))
            heartbeat = LastHeartbeat(
                incarnation=worker.incarnation,
                last_heartbeat_ms=last.at_ns // MS_NS,
                step=step,
                resources=used,
            )
            heartbeats.note(worker.id, heartbeat)
    return heartbeats


def resources_of(record: Record | None) -> ResourceMetrics | None:
    """The resources in a worker's last record, or None."""
    body = record.event.body if record is not None else None
    return body.metrics() if isinstance(body, ResourceSnapshot) else None
