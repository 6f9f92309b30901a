"""Facts about where the record of a run is: moved out of the log, archived, deleted.

Facts are never deleted, since the state is folded from them; the oldest may move to the archive,
and the log keeps references to them. Workers' events are nearly all of a log. While a run goes on,
its older events move to stretches beside the log, which readers of the log read as well; after its
end all events leave the log once an archived run holds them. None of this changes the state of the
cluster. Each move is recorded before it is made; one that a crash interrupts is decided and
recorded again.
"""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Cluster


class EventsMoved(Fact, frozen=True, kw_only=True):
    """Events of a running task's workers were moved to a stretch beside the log."""

    sentence = "{events:event} of the workers of {task} moved from the log to file {stretch}"

    task: str
    stretch: str
    events: int
    wall_from_ns: int
    wall_to_ns: int


class FactsMoved(Fact, frozen=True, kw_only=True):
    """Facts were moved from the log to the archive; the log keeps references to them."""

    sentence = "{facts:fact} (@{first} to @{last}) moved from the log to {place}"

    first: int
    last: int
    facts: int
    place: str


class EventsReleased(Fact, frozen=True, kw_only=True):
    """Events of a task's workers were moved from the log to an archived run."""

    sentence = "{events:event} of the workers of {task} moved to the archived run {run}"

    task: str
    run: str
    place: str
    events: int


class RunDeleted(Fact, frozen=True, kw_only=True):
    """An archived run was deleted, with the events of its workers."""

    sentence = "the archived run {run} was deleted[: {reason}]"

    task: str
    run: str
    place: str
    reason: str


class MoveEvents(Command, frozen=True):
    task: str
    stretch: str
    events: int
    wall_from_ns: int
    wall_to_ns: int


class MoveFacts(Command, frozen=True):
    first: int
    last: int
    facts: int
    place: str


class ReleaseEvents(Command, frozen=True):
    task: str
    run: str
    place: str
    events: int


class DeleteRun(Command, frozen=True):
    task: str
    run: str
    place: str
    reason: str


@applies(EventsMoved)
def _moved(state: Cluster, fact: EventsMoved, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@applies(FactsMoved)
def _facts_moved(state: Cluster, fact: FactsMoved, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@applies(EventsReleased)
def _released(state: Cluster, fact: EventsReleased, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@applies(RunDeleted)
def _deleted(state: Cluster, fact: RunDeleted, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@decides(MoveEvents)
def move(d: Decision, c: MoveEvents) -> None:
    """Record that events that were verified in a stretch leave the log."""
    fact = EventsMoved(
        task=c.task,
        stretch=c.stretch,
        events=c.events,
        wall_from_ns=c.wall_from_ns,
        wall_to_ns=c.wall_to_ns,
    )
    d.record(fact, c.cause)


@decides(MoveFacts)
def move_facts(d: Decision, c: MoveFacts) -> None:
    """Record that facts that were verified in the archive leave the log."""
    d.record(FactsMoved(first=c.first, last=c.last, facts=c.facts, place=c.place), c.cause)


@decides(ReleaseEvents)
def release(d: Decision, c: ReleaseEvents) -> None:
    """Record that events that were verified in an archived run leave the log."""
    d.record(EventsReleased(task=c.task, run=c.run, place=c.place, events=c.events), c.cause)


@decides(DeleteRun)
def delete(d: Decision, c: DeleteRun) -> None:
    """Record the deletion of an archived run that exceeds the retention settings."""
    d.record(RunDeleted(task=c.task, run=c.run, place=c.place, reason=c.reason), c.cause)
