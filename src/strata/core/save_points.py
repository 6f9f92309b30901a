"""At which step everyone saves: requested, then scheduled at one step that lies ahead of everyone.

A checkpoint is of one step, and nobody can save a step that is past. So a request does not mean
"now". Every member that has no save under way repeats the number of the request in its heartbeats,
together with its step. When all members have, the coordinator sets the step: ahead of the furthest
member by so many steps that all hear of it before they get there (`lead`, from the measured time of
a step). No member waits for this: training goes on while the coordinator decides, or is away.

A member that hears of the step too late says so (`PostponeCheckpoint` with `missed`): checkpoints
that others began at that step fail at once, the request is opened anew, and the next lead is twice
as long. So one checkpoint never holds two steps, and no member waits for a part that will not come.

A save that is due by itself (every so many steps) needs no request: each member decides alone, and
all decide alike. The exception is a member whose previous save is still under way. It postpones:
what others begin at that step fails at once, and one request stands for every save that was
postponed. While such a request is open nobody opens another checkpoint, so a member with a slow
disk costs the others one part, not one at every interval. Since a member with a save under way does
not repeat the request, the common save comes right after the last of them has ended its own. A
request for another reason (time, a call of the API) keeps no script from saving: `run.save()` saves
its step, and the request is fulfilled later.

The checkpoint of the run's end (`final`) is exempt: each member saves where its training ended.

A request outlives the generation in which it was not fulfilled: the next one schedules it anew.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct

from strata.core.checkpoints import Checkpoint, CheckpointRequested, record_failure
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.fencing import SharedCommand, WorkerCommand
from strata.core.limits import require_text, shortened
from strata.errors import NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

LEAD_STEPS = 2
"""The shortest lead: the step that a member is in now, and one more."""

LEAD_S = 0.25
"""In this time, as a rule, every member hears at which step to save."""

MAX_DOUBLINGS = 10


class CheckpointScheduled(Fact, frozen=True):
    """Everyone saves when `step` steps are applied."""

    task: str
    request: int
    generation: int
    step: int


class CheckpointPostponed(Fact, frozen=True):
    """A worker did not save at `step`, where a save was due; `request` stands for that save."""

    task: str
    worker: str
    generation: int
    step: int
    request: int
    reason: str
    busy_s: float = 0.0  # for how long its save before that one had been under way
    missed: bool = False  # it had passed the scheduled step when it heard of it


class Pace(Struct, frozen=True):
    """Where a member was `age_s` ago, and how long a step takes it; 0 while that is unknown."""

    step: int
    step_s: float
    age_s: float

    def steps_in(self, seconds: float) -> int:
        """How many steps it applies in so many seconds, rounded up; 0 while that is unknown."""
        return ceil(seconds / self.step_s) if self.step_s > 0 else 0


class RequestCheckpoint(SharedCommand, frozen=True):
    task: str
    reason: str = "asked for"


class ScheduleCheckpoint(Command, frozen=True):
    task: str
    generation: int
    request: int
    furthest_step: int
    lead: int = LEAD_STEPS


class PostponeCheckpoint(WorkerCommand, frozen=True):
    generation: int
    step: int
    reason: str
    busy_s: float = 0.0
    missed: bool = False


@applies(CheckpointScheduled)
def _scheduled(state: "Cluster", fact: CheckpointScheduled, event: Event) -> None:
    task = state.tasks[fact.task]
    task.scheduled_request = fact.request
    task.save_at = fact.step


@applies(CheckpointPostponed)
def _postponed(state: "Cluster", fact: CheckpointPostponed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.postponed_request = fact.request
    task.missed_saves += fact.missed


@decides(RequestCheckpoint)
def request(d: Decision, c: RequestCheckpoint) -> int:
    """Asks the workers of a task to save; answers the number of the request.

    While a request waits for its step, another one means the same.
    """
    task = d.state.task(c.task)
    require_text(reason=c.reason)
    if task.ended:
        raise NotAllowedNow(f"task {c.task!r} is {task.state}", hint="nothing is left to save")
    if not has_open_request(task):
        d.record(CheckpointRequested(c.task, task.checkpoint_requests + 1, c.reason), c.cause)
    return task.checkpoint_requests


@decides(ScheduleCheckpoint)
def schedule(d: Decision, c: ScheduleCheckpoint) -> int:
    """Sets the step; messages about an older generation or a settled request change nothing."""
    task = d.state.task(c.task)
    current = (task.generation, "running") == (c.generation, task.phase)
    if current and task.scheduled_request < c.request <= task.checkpoint_requests:
        step = c.furthest_step + c.lead
        d.record(CheckpointScheduled(c.task, c.request, c.generation, step), c.cause)
    return task.save_at


@decides(PostponeCheckpoint)
def postpone(d: Decision, c: PostponeCheckpoint) -> int:
    """A worker does not save at a step at which a save was due; answers the open request, or 0.

    A message about an older generation, or about a schedule that was replaced, changes nothing.
    """
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    stale = task.ended or task.phase != "running" or c.generation != task.generation
    if stale or worker.rank < 0 or (c.missed and c.step != task.save_at):
        return 0
    reason = shortened(c.reason)
    for checkpoint in list(task.checkpoints.values()):
        if _lacks(task, checkpoint, worker.rank, c.step):
            why = f"worker {c.worker} did not save step {c.step}: {reason}"
            record_failure(d, task, checkpoint, why, c.cause)
    covered = has_open_request(task) or task.save_at > c.step
    if not covered:
        text = f"worker {c.worker} postponed step {c.step}: {reason}"
        d.record(CheckpointRequested(task.id, task.checkpoint_requests + 1, text), c.cause)
    if task.postponed_request != task.checkpoint_requests:
        d.record(
            CheckpointPostponed(
                task=task.id,
                worker=c.worker,
                generation=task.generation,
                step=c.step,
                request=task.checkpoint_requests,
                reason=reason,
                busy_s=c.busy_s,
                missed=c.missed,
            ),
            c.cause,
        )
    return task.checkpoint_requests


def _lacks(task: "Task", checkpoint: Checkpoint, rank: int, step: int) -> bool:
    """Whether an open checkpoint waits for a part that a rank which postponed `step` never writes.

    A later checkpoint at the scheduled step is not meant: the rank will save that one.
    """
    return (
        checkpoint.state == "in_progress"
        and checkpoint.generation == task.generation
        and not checkpoint.final
        and rank not in checkpoint.parts
        and (checkpoint.step == step or step < checkpoint.step != task.save_at)
    )


def plan(task: "Task", paces: Sequence[Pace]) -> list[Command]:
    """Schedules the open request of a task whose members are all ready for it, at these paces."""
    if task.phase != "running":
        return []
    lead = max(LEAD_STEPS, max(pace.steps_in(LEAD_S) for pace in paces))
    return [
        ScheduleCheckpoint(
            task=task.id,
            generation=task.generation,
            request=task.checkpoint_requests,
            furthest_step=max(pace.step + pace.steps_in(pace.age_s) for pace in paces),
            lead=lead * 2 ** min(task.missed_saves, MAX_DOUBLINGS),
        )
    ]


def has_open_request(task: "Task") -> bool:
    """Whether a request waits for its step to be set."""
    return task.checkpoint_requests > task.scheduled_request


def require_unscheduled(task: "Task", step: int) -> None:
    """Refuses to open a checkpoint where a member postponed its part of the save before it: all
    are about to save together, and until then that member would write no part."""
    ahead = has_open_request(task) or step < task.save_at
    if ahead and task.postponed_request == task.checkpoint_requests:
        when = f"at step {task.save_at}" if step < task.save_at else "as soon as nobody is busy"
        raise NotAllowedNow(
            f"step {step} of task {task.id!r} is not saved: request {task.checkpoint_requests} "
            f"for a checkpoint is open, and all workers save together {when}",
            hint="go on training; that checkpoint replaces this one",
        )
