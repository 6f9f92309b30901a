"""Plan the starts and stops of an agent from the running and the wanted workers. Pure logic.

The coordinator always sends the complete list of wanted workers. A running worker that is not
wanted is ended. A wanted worker with a higher start number replaces the running one, after its end,
so that the two never share a port or a GPU. A start that has ended here is never started again:
only the coordinator assigns a new number.

The reason decides how a worker is ended. If the agent is *leaving*, it gets SIGTERM at once. If its
task was *asked* to stop, the coordinator has told the worker, which usually leaves; SIGTERM follows
a few seconds later. A *superseded* worker is fenced; it has a second to print its last lines. An
*unwanted* worker was lost, or its task failed; it gets SIGTERM after a few seconds. If its task has
*completed*, it is about to end and has its whole grace period.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

Reason: TypeAlias = Literal["completed", "unwanted", "asked", "leaving", "superseded"]


class Start(NamedTuple):
    """One start of a worker; each has one process."""

    task: str
    worker: str
    number: int

    @property
    def place(self) -> tuple[str, str]:
        """The worker's task and id, without the start number."""
        return (self.task, self.worker)


class WantedStart(NamedTuple):
    """A wanted start; it is not started if its task is `stopping` or `blocked`."""

    start: Start
    stopping: bool = False
    blocked: bool = False


class WorkerPlan(Struct, frozen=True):
    """The starts to begin, and those to end with the reasons."""

    starts: list[Start] = field(default_factory=list)
    stops: dict[Start, Reason] = field(default_factory=dict)


def plan(
    running: Collection[Start],
    ended: Mapping[tuple[str, str], int],
    duties: Collection[WantedStart],
    completed: Collection[str] = (),
) -> WorkerPlan:
    """The plan that leads from the running to the wanted workers.

    `ended` has the last start of each worker that ended here, `completed` the completed tasks.
    """
    wanted = {duty.start.place: duty for duty in duties}
    result = WorkerPlan()
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


def _reason(start: Start, duty: WantedStart | None) -> Reason | None:
    """Why a running start must end; None if it need not."""
    if duty is None:
        return "unwanted"
    if duty.start.number > start.number:
        return "superseded"
    return "asked" if duty.stopping else None
