"""What an agent has to do, given what runs and what is wanted. Pure.

The coordinator tells everything that it wants, whole, each time. A worker that runs and is not
wanted any more is ended; one that is wanted with a higher start than the one that runs replaces
it, after that one's end, so that the two never share a port or a card. A start that has ended here
is never started again: only the coordinator gives out a new one.

Why a worker is to end decides how. When the agent itself is *leaving* it hears SIGTERM at once.
One whose task was *asked* to stop has heard so from the coordinator and mostly leaves by itself;
SIGTERM comes a moment later, since it would kill one that is just about to leave. One that was
*superseded* counts for nothing any more: it has a moment to finish its last words. One that is
*unwanted* was lost, or its task has ended badly: after a moment it hears SIGTERM. One whose task
has *completed* is about to end by itself: it may take its time.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

Reason: TypeAlias = Literal["completed", "unwanted", "asked", "leaving", "superseded"]


class Start(NamedTuple):
    """One start of a worker: what one process is for."""

    task: str
    worker: str
    number: int

    @property
    def place(self) -> tuple[str, str]:
        """The worker, whichever start of it this is."""
        return (self.task, self.worker)


class Duty(NamedTuple):
    """A start that is wanted; of a task that is `stopping` or `blocked` nothing new begins."""

    start: Start
    stopping: bool = False
    blocked: bool = False


class Plan(Struct, frozen=True):
    """What to begin, and what to end and why."""

    starts: list[Start] = field(default_factory=list)
    stops: dict[Start, Reason] = field(default_factory=dict)


def plan(
    running: Collection[Start],
    ended: Mapping[tuple[str, str], int],
    duties: Collection[Duty],
    completed: Collection[str] = (),
) -> Plan:
    """What leads from what runs to what is wanted.

    `ended` has the last start of each worker that ended here, `completed` tasks that ended well.
    """
    wanted = {duty.start.place: duty for duty in duties}
    result = Plan()
    for start in running:
        reason = _reason(start, wanted.get(start.place))
        if reason == "unwanted" and start.task in completed:
            reason = "completed"
        if reason is not None:
            result.stops[start] = reason
    occupied = {start.place for start in running}
    for place, duty in wanted.items():
        fresh = duty.start.number > ended.get(place, 0)
        if fresh and not (duty.stopping or duty.blocked or place in occupied):
            result.starts.append(duty.start)
    return result


def _reason(start: Start, duty: Duty | None) -> Reason | None:
    """Why a running one has to end, if so."""
    if duty is None:
        return "unwanted"
    if duty.start.number > start.number:
        return "superseded"
    return "asked" if duty.stopping else None
