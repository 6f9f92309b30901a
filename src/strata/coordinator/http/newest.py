"""What happened and was said last: told to every open page with its state, so that none has to ask.

Facts are followed as they come, and lines are looked up once for all, about once a second.
"""

from collections.abc import Iterable
from itertools import takewhile

from strata.coordinator.http.events import look_back, types_of
from strata.coordinator.http.logs import recent, shortened
from strata.coordinator.http.ports import Api
from strata.coordinator.logs import LogEntry, Query
from strata.core.events import COORDINATOR, Event
from strata.timeline.answers import EventAnswer
from strata.timeline.records import Record
from strata.timeline.shaping import event_answer

NOTABLE = frozenset(
    {
        "AgentLost",
        "AssignmentChanged",
        "BarrierFailed",
        "CheckpointCommitted",
        "CheckpointFailed",
        "CoordinatorStarted",
        "GenerationChanged",
        "RecoveryChosen",
        "RolledBack",
        "TaskStateChanged",
        "WorkerLost",
        "WorkerRegistered",
    }
)
"""The kinds of facts that people care about first."""

HAPPENED = 12
LINES = 14


class Newest:
    """The newest of both, kept up to date for as long as somebody asks."""

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
        newest = await recent(self._api, Query(), LINES)
        return [shortened(entry) for entry in newest.entries]


def happening(event: Event) -> EventAnswer:
    """A fact as the timeline tells it."""
    return event_answer(Record(event.wall_ns, COORDINATOR, 0, event))
