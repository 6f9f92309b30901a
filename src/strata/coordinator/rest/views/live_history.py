"""Data kept for the live view: newest facts and log lines, and recent patches.

The newest notable facts and log lines are sent to the dashboard with the state. They are read once
for all readers, about once per second.

Patches are numbered. A reader continues after the number of the last patch it has seen. The patches
of the last update are always kept, however large, so that an up-to-date reader never has to start
again. Older patches are kept within a limit; a reader that is further behind receives the full
state again.

Rows are replaced by id, so a large patch can be split into pieces that are applied one after the
other. A piece is sent when the reader has received the one before, so at most one is in transit.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from typing import Any, TypeAlias

from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.rest.ports import Api
from strata.coordinator.rest.routes.event_routes import look_back, types_of
from strata.coordinator.rest.routes.log_routes import recent, shortened
from strata.core.events import COORDINATOR, Event
from strata.timeline.answers import EventAnswer, event_answer
from strata.timeline.read.records import Record

NOTABLE = frozenset(
    {
        "AgentLost",
        "AlertRaised",
        "AlertResolved",
        "AssignmentChanged",
        "BarrierFailed",
        "CheckpointCommitted",
        "CheckpointFailed",
        "CoordinatorStarted",
        "GenerationChanged",
        "GpuExcluded",
        "GpuIncluded",
        "HostExcluded",
        "HostIncluded",
        "RecoveryChosen",
        "RolledBack",
        "TaskContinued",
        "TaskForked",
        "TaskPreempted",
        "TaskResized",
        "TaskStateChanged",
        "WorkerLost",
        "WorkerRegistered",
    }
)
"""Kinds of facts on the dashboard's list of events."""

HAPPENED = 12
LINES = 14


class RecentActivity:
    """The newest notable facts and log lines."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._happened: list[EventAnswer] = []
        self._position: int | None = None

    async def happened(self) -> list[EventAnswer]:
        """The newest notable facts, newest first."""
        engine, after = self._api.engine, self._position
        fresh: Iterable[Event]
        if after is None:
            fresh = await look_back(engine, NOTABLE, HAPPENED)
        else:
            fresh = takewhile(lambda event: event.seq >= after, reversed(engine.recent))
        wanted = types_of(NOTABLE)
        found = [event for event in fresh if type(event.body) in wanted][:HAPPENED]
        self._position = found[0].seq + 1 if found else engine.position
        self._happened = [*map(happening, found), *self._happened][:HAPPENED]
        return self._happened

    async def lines(self) -> list[LogEntry]:
        """The newest log lines, newest first."""
        newest = await recent(self._api, LogQuery(), LINES)
        return [shortened(entry) for entry in newest.entries]


def happening(event: Event) -> EventAnswer:
    """A fact as the timeline shows it."""
    return event_answer(Record(at_ns=event.wall_ns, node=COORDINATOR, incarnation=0, event=event))


MAX_PATCHES = 256
MAX_BYTES = 4 * 1024 * 1024
PIECE_ROWS = 500

Lists: TypeAlias = dict[str, list[Any]]


class PatchHistory:
    """Encoded patches; `number` is the number of the newest."""

    def __init__(self, max_patches: int = MAX_PATCHES, max_bytes: int = MAX_BYTES) -> None:
        self.number = 0
        self._max_patches = max_patches
        self._max_bytes = max_bytes
        self._patches: deque[bytes] = deque()
        self._bytes = 0

    def keep(self, patches: list[bytes]) -> None:
        """Add the patches of an update with the next numbers."""
        self._patches.extend(patches)
        self._bytes += sum(map(len, patches))
        self.number += len(patches)
        while len(self._patches) > len(patches) and self._is_full():
            self._bytes -= len(self._patches.popleft())

    def after(self, number: int) -> list[bytes] | None:
        """The patches after a number; None if some of them were dropped."""
        first = number - self.number + len(self._patches)
        if not 0 <= first <= len(self._patches):
            return None
        return list(islice(self._patches, first, None))

    def _is_full(self) -> bool:
        return len(self._patches) > self._max_patches or self._bytes > self._max_bytes


def pieces(lists: Mapping[str, list[Any]], piece_rows: int = PIECE_ROWS) -> list[Lists]:
    """Split lists of rows into parts of at most `piece_rows` rows; at least one part."""
    parts: list[Lists] = [{}]
    room = piece_rows
    for name, rows in lists.items():
        at = 0
        while at < len(rows):
            if not room:
                parts.append({})
                room = piece_rows
            taken = rows[at : at + room]
            parts[-1][name] = taken
            at += len(taken)
            room -= len(taken)
    return parts
