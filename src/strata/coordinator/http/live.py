"""What the page shows, as a stream of small patches: one look at the state serves every reader.

While somebody reads, the state is looked at a few times a second and compared, row by row, with
what was last told. What differs becomes a patch, encoded once and sent to all; a reader only holds
a number. The first event of a stream is a patch against nothing (`reset`), unless the reader names
the last mark it saw (Last-Event-ID, which a browser sends by itself) and that is not long ago.
Large patches are cut into pieces (see `patch_history`); there is no mark to go on from until the
last piece of everything was sent.

Looking is paced by what it costs, so that a large cluster is looked at less often instead of
slowing it down. A worker's row is made anew when it beat or changed; what else a row shows (its
shards) follows with the next full look.

If the newest facts or log lines cannot be read, the attention list says so and the rest goes on. If
a look fails in any other way, all streams end: their readers connect again and get everything.
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

from strata.coordinator.http import views
from strata.coordinator.http.attention import Attention, attention
from strata.coordinator.http.cluster import DASHBOARD_NAMES, status, totals
from strata.coordinator.http.faults import STREAMS
from strata.coordinator.http.models import (
    AgentResponse,
    BarrierResponse,
    CheckpointResponse,
    DatasetResponse,
    StatusResponse,
    TaskResponse,
    Totals,
    WorkerResponse,
)
from strata.coordinator.http.newest import Newest
from strata.coordinator.http.paging import by_id, page
from strata.coordinator.http.patch_history import PatchHistory, pieces
from strata.coordinator.http.ports import Api, Closing, HeartbeatSeconds
from strata.coordinator.http.stream import (
    HEARTBEAT,
    MEDIA_TYPE,
    OPENING,
    with_heartbeat,
)
from strata.coordinator.logs import LogEntry
from strata.coordinator.metrics import MetricsSnapshot
from strata.coordinator.observed import Observed, Seen
from strata.core.state import Cluster
from strata.core.workers import Worker
from strata.errors import StrataError, Unavailable
from strata.timeline.answers import EventAnswer

log = logging.getLogger(__name__)

ITEMS = 100
LOOK_S = 0.25
FULL_LOOK_S = 2.0
FIGURES_S = 1.0
QUIET_S = 5.0
"""After so long without a change an empty patch says that all is well."""

SHARE_OF_TIME = 0.04
"""Looking may take this share of the coordinator's time; it pauses the longer the more it costs."""


class LivePatch(Struct, frozen=True, omit_defaults=True):
    """What changed since the patch before: rows to put in place by their id, and ids that are gone.

    With `reset` everything begins anew; rows that do not fit follow in further patches. `mark` is
    empty until everything was told. `at` is the coordinator's clock. A checkpoint's id counts
    within its task: `gone` names it as `task/checkpoint`.
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
    gone: dict[str, list[str]] = field(default_factory=dict)


READ_PARTS = {"happened": "events", "logs": "log lines"}
"""The parts of a patch that are read from files, and what they are called."""

Rows: TypeAlias = dict[str, Any]
Collections: TypeAlias = dict[str, Rows]
Signature: TypeAlias = tuple[int, int, str, int, Seen | None]


class Live:
    """Looks at the state while somebody reads, and keeps the newest patches."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._newest = Newest(api)
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unreadable: dict[str, Attention] = {}
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        """Forget what was told; whoever comes is told everything."""
        self._name = secrets.token_hex(4)
        self._history = PatchHistory()
        self._whole: tuple[int, list[bytes]] = (-1, [])
        self._single: Rows = {}
        self._rows: Collections = {}
        self._signatures: dict[str, Signature] = {}
        self._position = -1
        self._full_at_s = self._figures_at_s = self._told_at_s = float("-inf")

    async def follow(self, mark: str) -> AsyncIterator[bytes]:
        """Events to send: everything, or what came after the mark, then each patch."""
        try:
            await self._enter()
            name, told = self._name, self._resumed(mark)
            while True:
                changed = self._changed
                if name != self._name:
                    raise failed_look()
                following = None if told is None else self._history.after(told)
                told = self._history.number
                for piece in self._everything() if following is None else following:
                    yield piece
                if told == self._history.number:
                    await changed.wait()
        finally:
            await self._leave()

    async def _enter(self) -> None:
        self._readers += 1
        if self._task is None:
            await self._checked_look()
            self._task = self._task or asyncio.create_task(self._run(), name="strata-live")

    async def _leave(self) -> None:
        self._readers -= 1
        if not self._readers and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _resumed(self, mark: str) -> int | None:
        """The number of a mark, if everything after it is still here."""
        name, _, number = mark.partition("-")
        if name != self._name or not number.isdigit():
            return None
        return None if self._history.after(int(number)) is None else int(number)

    async def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                await self._checked_look()
            except Unavailable:
                self._task = None
                return
            took_s = time.perf_counter() - began_s
            await asyncio.sleep(max(LOOK_S, took_s / SHARE_OF_TIME))

    async def _checked_look(self) -> None:
        """Look; if that fails, end all streams, since parts of a patch may be lost."""
        try:
            await self._look()
        except Exception as error:
            level = logging.DEBUG if self._failed else logging.ERROR
            log.log(level, "the live view fails, its streams end", exc_info=error)
            self._failed = True
            self._begin()
            self._wake()
            raise failed_look() from error
        self._failed = False

    async def _look(self) -> None:
        """Compares the state with what was told; tells what differs."""
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
                rows |= collections(state, self._api.observed)
                single |= {"coordinator": status(self._api, state), "totals": totals(state)}
            if figures:
                seen = attention(state, time.time_ns(), self._api.metrics.drops())
                single["attention"] = [*self._unreadable.values(), *seen]
                single["metrics"] = self._api.metrics.snapshot()
        self._tell(single, rows, now_s)

    async def _read(self, name: str, read: Callable[[], Awaitable[object]], into: Rows) -> None:
        """Read one part of a patch; if that is impossible, the attention list says why."""
        try:
            into[name] = await read()
        except (StrataError, OSError) as error:
            what = READ_PARTS[name]
            if name not in self._unreadable:
                log.error("the live view has no new %s: %s", what, error)
            hint = error.hint if isinstance(error, StrataError) else "mend the coordinator's disk"
            text = f"new {what} cannot be read: {error}"
            self._unreadable[name] = Attention("error", f"coordinator:{name}", text, hint)
        else:
            self._unreadable.pop(name, None)

    def _workers(self, state: Cluster, now_s: float) -> Rows:
        """Every worker's row; made anew where something about it changed."""
        observed, before = self._api.observed.workers, self._rows.get("workers", {})
        heard = self._api.observed.heard()
        if state.position == self._position:  # only beats can have changed anything
            stale = [state.workers[name] for name in heard if name in before]
            self._signatures |= {each.id: signature(each, observed[each.id]) for each in stale}
            return before | keyed(views.workers(state, self._api.observed, stale))
        full = now_s - self._full_at_s >= FULL_LOOK_S
        if full:
            self._full_at_s = now_s
        signatures = {
            worker.id: signature(worker, observed.get(worker.id))
            for worker in views.shown_workers(state)
        }
        stale = [
            state.workers[name]
            for name, known in signatures.items()
            if full or self._signatures.get(name) != known
        ]
        self._signatures = signatures
        fresh = keyed(views.workers(state, self._api.observed, stale))
        return {name: fresh.get(name) or before[name] for name in signatures}

    def _tell(self, single: Rows, rows: Collections, now_s: float) -> None:
        told = {name: value for name, value in single.items() if self._single.get(name) != value}
        changed: Rows = {}
        gone: dict[str, list[str]] = {}
        for name, now in rows.items():
            before = self._rows.get(name, {})
            changed[name] = [row for key, row in now.items() if differs(before.get(key), row)]
            if lost := [key for key in before if key not in now]:
                gone[name] = lost
        self._single |= told
        self._rows |= rows
        quiet = now_s - self._told_at_s >= QUIET_S
        if quiet or told or gone or any(changed.values()):
            self._told_at_s = now_s
            first, *others = pieces(changed)
            parts: list[Rows] = [first | told | {"gone": gone}, *others]
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
        """All that was told, in pieces; made once for all who come before the next patch."""
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


def failed_look() -> Unavailable:
    """The error that ends the streams after a failed look."""
    return Unavailable("the live view could not be made", hint="connect again")


def signature(worker: Worker, seen: Seen | None) -> Signature:
    """Changes whenever the worker changed or beat: each beat is an object of its own."""
    return worker.changed_ns, worker.incarnation, worker.state, worker.rank, seen


def differs(before: object, now: object) -> bool:
    """Whether a row has to be told; most are the same object, which is told apart at once."""
    return before is not now and before != now


def keyed(rows: Iterable[Any]) -> Rows:
    """Rows by their id, a checkpoint's within its task."""
    return {
        f"{row.task_id}/{row.id}" if isinstance(row, CheckpointResponse) else row.id: row
        for row in rows
    }


def collections(state: Cluster, observed: Observed) -> Collections:
    """The first of each list but the workers', by id."""
    checkpoints = page(views.shown_checkpoints(state), views.checkpoint_order, ITEMS, "").items
    barriers = page(views.shown_barriers(state), views.barrier_order, ITEMS, "").items
    tasks = page(state.tasks.values(), views.task_order, ITEMS, "").items
    datasets = page(state.datasets.values(), by_id, ITEMS, "").items
    agents = page(state.agents.values(), by_id, ITEMS, "").items
    return {
        "checkpoints": keyed(views.checkpoint(observed, *each) for each in checkpoints),
        "barriers": keyed(views.barrier(*each, names=DASHBOARD_NAMES) for each in barriers),
        "tasks": keyed(views.task(state, task, [], DASHBOARD_NAMES) for task in tasks),
        "datasets": keyed(views.dataset(dataset) for dataset in datasets),
        "agents": keyed(views.agents(state, agents)),
    }


TheLive = NamedDependency[SkipValidation[Live]]
LastMark = Annotated[
    str,
    HeaderParameter(
        name="Last-Event-ID",
        max_length=40,
        pattern="^([0-9a-f]{8}-[0-9]{1,15})?$",
        description="The last mark that was seen.",
    ),
]
PATCHES = ResponseSpec(LivePatch, generate_examples=False, media_type=MEDIA_TYPE)


@get("/live", media_type=MEDIA_TYPE, responses={**STREAMS, 200: PATCHES})
async def stream_live(
    live: TheLive, closing: Closing, heartbeat_s: HeartbeatSeconds, last_event_id: LastMark = ""
) -> Stream:
    """What the page shows: everything, then patches, as server-sent events.

    The data of each event is a patch; its id is the mark to go on from.
    """
    return Stream(events(live, last_event_id, closing, heartbeat_s), media_type=MEDIA_TYPE)


async def events(
    live: Live, mark: str, closing: asyncio.Event, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """The stream of patches, as bytes to send."""
    yield OPENING
    async for patch in with_heartbeat(live.follow(mark), heartbeat_s, closing, "patches"):
        yield HEARTBEAT if patch is None else patch
