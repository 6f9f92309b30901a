"""At which step everyone saves: asked for, agreed upon, told to all before anyone gets there.

A checkpoint is of one step, and nobody can save a step that is past. So a request does not mean
"now". Every member echoes the request on its beat, together with its step, and promises to train no
more than one step beyond that until it is told more. When all have, the step is known: one beyond
the most advanced. Nobody is beyond it, and as a rule nobody has had to wait, since a beat takes
less time than a step of training.

A request outlives the generation in which it was not fulfilled: the next one agrees anew.
"""

from typing import TYPE_CHECKING

from strata.core.checkpoints import CheckpointRequested
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.limits import require_text
from strata.errors import NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster

LEAD_STEPS = 1
"""How far beyond the step that it told a member may train before it knows where to save."""


class CheckpointScheduled(Fact, frozen=True):
    """Everyone saves when `step` steps are applied."""

    task: str
    request: int
    generation: int
    step: int


class RequestCheckpoint(Command, frozen=True):
    task: str
    reason: str = "asked for"


class ScheduleCheckpoint(Command, frozen=True):
    task: str
    generation: int
    request: int
    furthest_step: int


@applies(CheckpointScheduled)
def _scheduled(state: "Cluster", fact: CheckpointScheduled, event: Event) -> None:
    task = state.tasks[fact.task]
    task.scheduled_request = fact.request
    task.save_at = fact.step


@decides(RequestCheckpoint)
def request(d: Decision, c: RequestCheckpoint) -> int:
    """Asks the workers of a task to save; answers the number of the request.

    While one is being agreed upon, another means the same.
    """
    task = d.state.task(c.task)
    require_text(reason=c.reason)
    if task.ended:
        raise NotAllowedNow(f"task {c.task!r} is {task.state}", hint="nothing is left to save")
    if task.checkpoint_requests == task.scheduled_request:
        d.record(CheckpointRequested(c.task, task.checkpoint_requests + 1, c.reason), c.cause)
    return task.checkpoint_requests


@decides(ScheduleCheckpoint)
def schedule(d: Decision, c: ScheduleCheckpoint) -> int:
    """Sets the step; words about an older generation or a settled request change nothing."""
    task = d.state.task(c.task)
    current = (task.generation, "running") == (c.generation, task.phase)
    if current and task.scheduled_request < c.request <= task.checkpoint_requests:
        step = c.furthest_step + LEAD_STEPS
        d.record(CheckpointScheduled(c.task, c.request, c.generation, step), c.cause)
    return task.save_at
