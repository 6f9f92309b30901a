"""What becomes of the record of a run: moved out of the log, and in the end deleted.

Facts are never deleted, since the state is folded from them; the oldest may move to the archive,
and the log keeps references to them. What workers recorded is nearly all of a log. While a run goes
on, its older part moves to stretches beside the log, which readers of the log read as well; after
its end all of it leaves once an archived run holds it. None of this changes the cluster's state;
each is recorded before it is done. What a crash interrupts is decided, and recorded, once more.
"""

from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides

if TYPE_CHECKING:
    from strata.core.state import Cluster


class EventsMoved(Fact, frozen=True):
    """Events of a running task's workers are from now on in a stretch beside the log."""

    task: str
    stretch: str
    events: int
    wall_from_ns: int
    wall_to_ns: int


class FactsMoved(Fact, frozen=True):
    """Facts of the log are from now on in the archive; the log keeps references to them."""

    first: int
    last: int
    facts: int
    place: str


class EventsReleased(Fact, frozen=True):
    """What the workers of a task recorded is from now on in an archived run, not in the log."""

    task: str
    run: str
    place: str
    events: int


class RunDeleted(Fact, frozen=True):
    """An archived run is deleted, and with it what its workers recorded."""

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
def _moved(state: "Cluster", fact: EventsMoved, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(FactsMoved)
def _facts_moved(state: "Cluster", fact: FactsMoved, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(EventsReleased)
def _released(state: "Cluster", fact: EventsReleased, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(RunDeleted)
def _deleted(state: "Cluster", fact: RunDeleted, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@decides(MoveEvents)
def move(d: Decision, c: MoveEvents) -> None:
    """Lets the log go of events that were found in a stretch."""
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
    """Lets the log go of facts that were found in the archive."""
    d.record(FactsMoved(first=c.first, last=c.last, facts=c.facts, place=c.place), c.cause)


@decides(ReleaseEvents)
def release(d: Decision, c: ReleaseEvents) -> None:
    """Lets the log go of events that were found in an archived run."""
    d.record(EventsReleased(c.task, c.run, c.place, c.events), c.cause)


@decides(DeleteRun)
def delete(d: Decision, c: DeleteRun) -> None:
    """Deletes an archived run that is older, or beyond, what is kept."""
    d.record(RunDeleted(c.task, c.run, c.place, c.reason), c.cause)
