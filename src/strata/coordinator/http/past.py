"""The past, for the API: the log read beside the engine, never in its way.

Reading happens in threads of its own, few at a time; whoever comes when all are taken and the line
is long is told to try again; what nobody waits for any more, because the page has moved on, is not
begun. The log is opened when somebody first asks, through connections of
its own, so the writer is never waited for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.params import QueryParameter, SkipValidation

from strata.config import Settings
from strata.coordinator.engine import Engine
from strata.coordinator.http.cluster import DASHBOARD_BYTES, DASHBOARD_ITEMS, dashboard
from strata.coordinator.http.logs import shortened
from strata.coordinator.http.models import DashboardResponse, StatusResponse
from strata.coordinator.http.newest import HAPPENED, LINES, NOTABLE
from strata.coordinator.http.ports import Api
from strata.coordinator.http.replayed import metrics_at
from strata.coordinator.logs import Query
from strata.coordinator.observed import Observed, Seen
from strata.core.resources import ResourceMetrics
from strata.core.state import Cluster
from strata.core.worker_facts import ResourceSnapshot
from strata.errors import Overloaded, Unavailable
from strata.store.base import EventReader
from strata.timeline.activity import Recent
from strata.timeline.answers import AsOf, MomentAnswer, NodeAnswer, RunRow
from strata.timeline.desk import Desk
from strata.timeline.opening import RECORDED, kept_at, open_recorded
from strata.timeline.records import MS_NS, SECOND_NS, Record
from strata.timeline.runs import runs_at
from strata.timeline.shaping import event_answer
from strata.timeline.states import Past
from strata.timeline.stretched_log import open_log
from strata.timeline.timeline import Timeline

THREADS = 2
LINE = 32
KEPT_OPEN = 4
REMEMBERED_EVENTS = 50_000
LOOKED_BACK_NS = 600 * SECOND_NS

Answer = TypeVar("Answer")
AnyRequest: TypeAlias = Request[Any, Any, Any]


class AtResponse(DashboardResponse, frozen=True, kw_only=True):
    """The dashboard as it would have shown a moment, and what each node was doing then."""

    as_of: AsOf
    nodes: list[NodeAnswer]
    nodes_total: int


class PastReader:
    """Opens the log once, and archived runs as they are asked for; answers from them."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="strata-past")
        self._waiting = 0
        self._desk: Desk | None = None
        self._kept: dict[str, Desk] = {}
        self._opening = Lock()

    async def ask(self, question: Callable[[Desk], Answer], run: str = "") -> Answer:
        """What a function makes of the past; it runs in a thread."""
        return await self.work(lambda: question(self._opened(run)))

    async def work(self, work: Callable[[], Answer]) -> Answer:
        """What a function finds, in a thread."""
        if self._waiting >= LINE:
            raise Overloaded(
                f"{LINE} questions about the past are waiting", hint="try again", retry_after_s=1.0
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    async def runs(self) -> list[RunRow]:
        """The runs that are archived."""
        return await self.work(lambda: runs_at(kept_at(self._settings), self._settings))

    def _opened(self, run: str) -> Desk:
        with self._opening:
            return self._archived(run) if run else self._own()

    def _own(self) -> Desk:
        if self._desk is None:
            store = self._engine.kernel.store
            path = getattr(store, "path", None)
            reader: EventReader = store if path is None else open_log(path, REMEMBERED_EVENTS)
            self._desk = Desk(Timeline(reader, live=True))
        return self._desk

    def _archived(self, run: str) -> Desk:
        """An archived run; those asked for last stay open, the others are let go."""
        desk = self._kept.pop(run, None)
        if desk is None:
            desk = Desk(open_recorded() if run == RECORDED else self._found(run))
            for oldest in list(self._kept)[: len(self._kept) + 1 - KEPT_OPEN]:
                del self._kept[oldest]
        self._kept[run] = desk
        return desk

    def _found(self, run: str) -> Timeline:
        # Imported here: a coordinator that archives nothing needs no Arrow.
        from strata.timeline.archiving import open_anywhere

        return open_anywhere(kept_at(self._settings), run, self._settings)

    def close(self) -> None:
        """Lets go of the log."""
        self._threads.shutdown(cancel_futures=True)
        self._kept.clear()
        if self._desk is not None and self._desk.timeline.reader is not self._engine.kernel.store:
            self._desk.timeline.close()


class PastOf:
    """The past that a request is about: the coordinator's own log, or an archived run."""

    def __init__(self, reader: PastReader, run: str, request: AnyRequest) -> None:
        self._reader = reader
        self._run = run
        self._request = request

    async def ask(self, question: Callable[[Desk], Answer]) -> Answer:
        """What a function makes of it, in a thread; given up when whoever asked has gone."""
        asking = asyncio.ensure_future(self._reader.ask(question, self._run))
        leaving = asyncio.ensure_future(gone(self._request))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise Unavailable("whoever asked has gone", hint="ask again")
        finally:
            asking.cancel()
            leaving.cancel()


async def gone(request: AnyRequest) -> None:
    """Returns once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


Run = Annotated[
    str,
    QueryParameter(
        max_length=400,
        description="An archived run, by its name or task, or `demo`; else the log.",
    ),
]
ThePast = NamedDependency[SkipValidation[PastOf]]
TheArchive = NamedDependency[SkipValidation[PastReader]]


def past_for(archive: TheArchive, request: AnyRequest, run: Run = "") -> PastOf:
    """The past that a request names."""
    return PastOf(archive, run, request)


def dashboard_at(
    desk: Desk, answer: MomentAnswer, past: Past, recent: Recent, api: Api
) -> AtResponse:
    """The dashboard of a past moment, within the same bound as that of now."""
    state, at_ns = past.state, int(answer.as_of.time_ms * MS_NS)
    status = status_then(state, api.version, at_ns)
    observed = observed_then(state, recent)
    metrics = metrics_at(desk.timeline, at_ns)
    said = api.logs.recent(Query(until_ms=at_ns // MS_NS), LINES)
    logs = [shortened(entry) for entry in said.entries]
    notable = desk.facts_before(at_ns, NOTABLE, HAPPENED, at_ns - LOOKED_BACK_NS)
    happened = [event_answer(record) for record in notable]
    items = DASHBOARD_ITEMS
    while True:
        shown = dashboard(status, state, observed, metrics, logs, happened, items, at_ns)
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
    fields = msgspec.structs.asdict(body)
    network = {name: fields.pop(name) for name in ("network_rx_bytes", "network_tx_bytes")}
    cards, known = fields.pop("gpus"), fields.pop("network_own")
    return ResourceMetrics(gpu_metrics=cards, **fields, **(network if known else {}))
