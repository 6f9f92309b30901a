"""The live view: the state of the cluster as a stream of patches, for the dashboard.

While there are readers, the state is compared several times per second, row by row, with what was
last sent. The differences become a patch, which is encoded once and sent to all readers; a reader
only holds a number. The first event of a stream has the full state (`reset`), unless the reader
sends a recent mark (Last-Event-ID, which browsers send by themselves). Large patches are split into
pieces (see `live_history`); the pieces of the full state have no mark except for the last one.

The interval grows with the cost of an update, so that a large cluster is updated less often instead
of being slowed down. A worker's row is updated after a heartbeat or a change; its shards follow
with the next full update.

If the newest facts or log lines cannot be read, the attention list says so and the rest continues.
If an update fails in any other way, all streams end: readers reconnect and receive the full state.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, SkipValidation
from litestar.response import Stream
from msgspec import Struct, field

from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.rest.alert_responses import AlertResponse
from strata.coordinator.rest.error_responses import STREAMS
from strata.coordinator.rest.host_responses import HostResponse
from strata.coordinator.rest.paging import by_id, page
from strata.coordinator.rest.ports import Api, Closing, HeartbeatSeconds
from strata.coordinator.rest.response_models import (
    AgentResponse,
    Attention,
    BarrierResponse,
    CheckpointResponse,
    DatasetResponse,
    MetricsSnapshot,
    StatusResponse,
    TaskResponse,
    Totals,
    WorkerResponse,
)
from strata.coordinator.rest.routes.cluster_routes import DASHBOARD_NAMES, status, totals
from strata.coordinator.rest.routes.event_routes import (
    HEARTBEAT,
    MEDIA_TYPE,
    OPENING,
    with_heartbeat,
)
from strata.coordinator.rest.views import alert_views, host_views, state_views
from strata.coordinator.rest.views.attention import attention
from strata.coordinator.rest.views.live_history import PatchHistory, RecentActivity, pieces
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.state import Cluster, Worker
from strata.core.tasks.task_queue import Queue
from strata.errors import StrataError, Unavailable
from strata.timeline.answers import EventAnswer

log = logging.getLogger(__name__)

ITEMS = 100
UPDATE_S = 0.25
FULL_UPDATE_S = 2.0
FIGURES_S = 1.0
QUIET_S = 5.0
"""Without changes an empty patch is sent after this time."""

SHARE_OF_TIME = 0.04
"""Share of the coordinator's time for updates; the pause after an update follows from it."""


class LivePatch(Struct, frozen=True, omit_defaults=True):
    """Changes since the previous patch: rows to replace by id, and ids to remove (`gone`).

    With `reset` all earlier rows are discarded; rows that do not fit follow in further patches.
    `mark` is empty until the full state was sent. `at` is the coordinator's clock. Checkpoint ids
    are unique within a task only: `gone` has them as `task/checkpoint`.
    """

    mark: str
    at: int
    reset: bool = False
    coordinator: StatusResponse | None = None
    metrics: MetricsSnapshot | None = None
    totals: Totals | None = None
    attention: list[Attention] | None = None
    happened: list[EventAnswer] | None = None
    logs: list[LogEntry] | None = None
    workers: list[WorkerResponse] = field(default_factory=list)
    tasks: list[TaskResponse] = field(default_factory=list)
    checkpoints: list[CheckpointResponse] = field(default_factory=list)
    barriers: list[BarrierResponse] = field(default_factory=list)
    datasets: list[DatasetResponse] = field(default_factory=list)
    agents: list[AgentResponse] = field(default_factory=list)
    hosts: list[HostResponse] = field(default_factory=list)
    alerts: list[AlertResponse] = field(default_factory=list)
    gone: dict[str, list[str]] = field(default_factory=dict)


READ_PARTS = {"happened": "events", "logs": "log lines"}
"""Parts of a patch that are read from files, with their names in messages."""

Rows: TypeAlias = dict[str, Any]
Collections: TypeAlias = dict[str, Rows]
Signature: TypeAlias = tuple[int, int, str, int, LastHeartbeat | None]


class Live:
    """Computes patches while there are readers, and keeps the newest ones."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._newest = RecentActivity(api)
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unreadable: dict[str, Attention] = {}
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        """Discard all patches; readers will receive the full state."""
        self._name = secrets.token_hex(4)
        self._history = PatchHistory()
        self._whole: tuple[int, list[bytes]] = (-1, [])
        self._single: Rows = {}
        self._rows: Collections = {}
        self._signatures: dict[str, Signature] = {}
        self._position = -1
        self._full_at_s = self._figures_at_s = self._sent_at_s = float("-inf")

    async def follow(self, mark: str) -> AsyncIterator[bytes]:
        """The full state or the patches after the mark, then each new patch."""
        try:
            await self._enter()
            name, sent = self._name, self._resumed(mark)
            while True:
                changed = self._changed
                if name != self._name:
                    raise update_failed()
                following = None if sent is None else self._history.after(sent)
                sent = self._history.number
                for piece in self._everything() if following is None else following:
                    yield piece
                if sent == self._history.number:
                    await changed.wait()
        finally:
            await self._leave()

    async def _enter(self) -> None:
        self._readers += 1
        if self._task is None:
            await self._checked_update()
            self._task = self._task or asyncio.create_task(self._run(), name="strata-live")

    async def _leave(self) -> None:
        self._readers -= 1
        if not self._readers and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _resumed(self, mark: str) -> int | None:
        """The number of a mark, if all patches after it are still kept."""
        name, _, number = mark.partition("-")
        if name != self._name or not number.isdigit():
            return None
        return None if self._history.after(int(number)) is None else int(number)

    async def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                await self._checked_update()
            except Unavailable:
                self._task = None
                return
            took_s = time.perf_counter() - began_s
            await asyncio.sleep(max(UPDATE_S, took_s / SHARE_OF_TIME))

    async def _checked_update(self) -> None:
        """Compute a patch; if that fails, end all streams, because changes may be lost."""
        try:
            await self._update()
        except Exception as error:
            level = logging.DEBUG if self._failed else logging.ERROR
            log.log(level, "updating the live view failed; its streams end", exc_info=error)
            self._failed = True
            self._begin()
            self._wake()
            raise update_failed() from error
        self._failed = False

    async def _update(self) -> None:
        """Compare the state with what was sent, and publish the differences."""
        now_s = time.monotonic()
        single: Rows = {}
        figures = now_s - self._figures_at_s >= FIGURES_S
        if figures:
            self._figures_at_s = now_s
            await self._read("happened", self._newest.happened, single)
            await self._read("logs", self._newest.lines, single)
        async with self._api.engine.settled() as state:
            rows: Collections = {"workers": self._workers(state, now_s)}
            if state.position != self._position:
                self._position = state.position
                rows |= collections(state, self._api.heartbeats)
                single |= {"coordinator": status(self._api, state), "totals": totals(state)}
            if figures:
                seen = attention(state, time.time_ns())
                single["attention"] = [*self._unreadable.values(), *seen]
                single["metrics"] = self._api.metrics.snapshot()
        self._publish(single, rows, now_s)

    async def _read(self, name: str, read: Callable[[], Awaitable[object]], into: Rows) -> None:
        """Read one part of a patch from files; an error goes to the attention list."""
        try:
            into[name] = await read()
        except (StrataError, OSError) as error:
            what = READ_PARTS[name]
            if name not in self._unreadable:
                log.error("the live view cannot read new %s: %s", what, error)
            hint = error.hint if isinstance(error, StrataError) else "repair the coordinator's disk"
            text = f"new {what} cannot be read: {error}"
            self._unreadable[name] = Attention(
                severity="error", subject=f"coordinator:{name}", text=text, hint=hint
            )
        else:
            self._unreadable.pop(name, None)

    def _workers(self, state: Cluster, now_s: float) -> Rows:
        """The rows of all workers; recomputed for workers that changed."""
        heartbeats, before = self._api.heartbeats.workers, self._rows.get("workers", {})
        updated = self._api.heartbeats.take_updated()
        if state.position == self._position:  # only heartbeats can have changed
            stale = [state.workers[name] for name in updated if name in before]
            self._signatures |= {each.id: signature(each, heartbeats[each.id]) for each in stale}
            return before | keyed(state_views.workers(state, self._api.heartbeats, stale))
        full = now_s - self._full_at_s >= FULL_UPDATE_S
        if full:
            self._full_at_s = now_s
        signatures = {
            worker.id: signature(worker, heartbeats.get(worker.id))
            for worker in state_views.shown_workers(state)
        }
        stale = [
            state.workers[name]
            for name, known in signatures.items()
            if full or self._signatures.get(name) != known
        ]
        self._signatures = signatures
        fresh = keyed(state_views.workers(state, self._api.heartbeats, stale))
        return {name: fresh.get(name) or before[name] for name in signatures}

    def _publish(self, single: Rows, rows: Collections, now_s: float) -> None:
        sent = {name: value for name, value in single.items() if self._single.get(name) != value}
        changed: Rows = {}
        gone: dict[str, list[str]] = {}
        for name, now in rows.items():
            before = self._rows.get(name, {})
            changed[name] = [row for key, row in now.items() if differs(before.get(key), row)]
            if lost := [key for key in before if key not in now]:
                gone[name] = lost
        self._single |= sent
        self._rows |= rows
        quiet = now_s - self._sent_at_s >= QUIET_S
        if quiet or sent or gone or any(changed.values()):
            self._sent_at_s = now_s
            first, *others = pieces(changed)
            parts: list[Rows] = [first | sent | {"gone": gone}, *others]
            marks = (self._mark(number) for number in count(self._history.number + 1))
            self._keep([event(mark, part) for mark, part in zip(marks, parts, strict=False)])

    def _keep(self, encoded: list[bytes]) -> None:
        self._history.keep(encoded)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _mark(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _everything(self) -> list[bytes]:
        """The full state in pieces; encoded once for all readers until the next patch."""
        number, encoded = self._whole
        if number != self._history.number:
            number = self._history.number
            first, *others = pieces({name: [*rows.values()] for name, rows in self._rows.items()})
            parts: list[Rows] = [first | self._single | {"reset": True}, *others]
            marks = [""] * len(others) + [self._mark(number)]
            encoded = [event(mark, part) for mark, part in zip(marks, parts, strict=True)]
            self._whole = number, encoded
        return encoded


def event(mark: str, fields: Rows) -> bytes:
    """A patch as a server-sent event."""
    patch = LivePatch(mark=mark, at=time.time_ns() // 1_000_000, **fields)
    return b"id: %b\ndata: %b\n\n" % (mark.encode(), msgspec.json.encode(patch))


def update_failed() -> Unavailable:
    """The error that ends the streams after a failed update."""
    return Unavailable("the live view could not be updated", hint="connect again")


def signature(worker: Worker, heartbeat: LastHeartbeat | None) -> Signature:
    """A value that changes with the worker and with each of its heartbeats."""
    return worker.changed_ns, worker.incarnation, worker.state, worker.rank, heartbeat


def differs(before: object, now: object) -> bool:
    """Whether a row changed; most rows are the same object, which is compared fast."""
    return before is not now and before != now


def keyed(rows: Iterable[Any]) -> Rows:
    """Rows by id; checkpoints as `task/checkpoint`."""
    return {
        f"{row.task_id}/{row.id}" if isinstance(row, CheckpointResponse) else row.id: row
        for row in rows
    }


def collections(state: Cluster, heartbeats: Heartbeats) -> Collections:
    """The first items of each list except for workers, by id."""
    checkpoints = page(
        state_views.shown_checkpoints(state), state_views.checkpoint_order, ITEMS, ""
    ).items
    barriers = page(state_views.shown_barriers(state), state_views.barrier_order, ITEMS, "").items
    tasks = page(state.tasks.values(), state_views.task_order, ITEMS, "").items
    datasets = page(state.datasets.values(), by_id, ITEMS, "").items
    agents = page(state.agents.values(), by_id, ITEMS, "").items
    hosts = page(host_views.known_hosts(state), by_id, ITEMS, "").items
    queue = Queue(state)
    return {
        "checkpoints": keyed(state_views.checkpoints(heartbeats, checkpoints)),
        "barriers": keyed(state_views.barrier(*each, names=DASHBOARD_NAMES) for each in barriers),
        "tasks": keyed(state_views.task(state, queue, task, [], DASHBOARD_NAMES) for task in tasks),
        "datasets": keyed(state_views.dataset(dataset) for dataset in datasets),
        "agents": keyed(state_views.agents(state, heartbeats, agents)),
        "hosts": keyed(host_views.hosts(state, host_views.heartbeats_of_reports(state), hosts)),
        "alerts": keyed(alert_views.alerts(alert_views.shown_alerts(state, ITEMS))),
    }


TheLive = NamedDependency[SkipValidation[Live]]
LastMark = Annotated[
    str,
    HeaderParameter(
        name="Last-Event-ID",
        max_length=40,
        pattern="^([0-9a-f]{8}-[0-9]{1,15})?$",
        description="The last received mark.",
    ),
]
PATCHES = ResponseSpec(LivePatch, generate_examples=False, media_type=MEDIA_TYPE)


@get("/live", media_type=MEDIA_TYPE, responses={**STREAMS, 200: PATCHES})
async def stream_live(
    live: TheLive, closing: Closing, heartbeat_s: HeartbeatSeconds, last_event_id: LastMark = ""
) -> Stream:
    """The full state of the cluster, then patches, as server-sent events.

    The data of each event is a patch; its id is the mark to continue from.
    """
    return Stream(events(live, last_event_id, closing, heartbeat_s), media_type=MEDIA_TYPE)


async def events(
    live: Live, mark: str, closing: asyncio.Event, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """The stream of patches as bytes."""
    yield OPENING
    async for patch in with_heartbeat(live.follow(mark), heartbeat_s, closing, "patches"):
        yield HEARTBEAT if patch is None else patch
