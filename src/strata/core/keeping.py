"""What becomes of the record of a finished run: moved out of the log, and in the end deleted.

Facts stay in the log for ever, since the state is folded from them. What workers recorded is nearly
all of a log; it leaves once an archived run holds it. Neither changes the cluster's state; both are
recorded before they are done. What a crash interrupts is decided, and recorded, once more.
"""

from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides

if TYPE_CHECKING:
    from strata.core.state import Cluster


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


@applies(EventsReleased)
def _released(state: "Cluster", fact: EventsReleased, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(RunDeleted)
def _deleted(state: "Cluster", fact: RunDeleted, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@decides(ReleaseEvents)
def release(d: Decision, c: ReleaseEvents) -> None:
    """Lets the log go of events that were found in an archived run."""
    d.record(EventsReleased(c.task, c.run, c.place, c.events), c.cause)


@decides(DeleteRun)
def delete(d: Decision, c: DeleteRun) -> None:
    """Deletes an archived run that is older, or beyond, what is kept."""
    d.record(RunDeleted(c.task, c.run, c.place, c.reason), c.cause)
