"""The step at which all members save: requested, then scheduled at one future step.

A checkpoint is of one step, and no member can save a step that is past. So a request does not mean
"now". Every member that has no save in progress repeats the number of the request in its
heartbeats, together with its step. When all members have done so, the coordinator sets the step:
ahead of the furthest member by so many steps that all members learn of it in time (`lead`, from the
measured time of a step). No member waits for this: training continues while the coordinator decides
or is unreachable.

A member that learns of the step too late reports it (`PostponeCheckpoint` with `missed`):
checkpoints that others began at that step fail at once, the request is opened again, and the next
lead is twice as long. So one checkpoint never holds two steps, and no member waits for a part that
will not come.

A save that is due by itself (every N steps) needs no request: each member decides alone, and all
decide alike. The exception is a member whose previous save is still in progress. It postpones:
checkpoints that others begin at that step fail at once, and one request replaces every save that
was postponed. While such a request is open no other checkpoint is opened, so a member with a slow
disk costs the others one part, not one at every interval. Since a member with a save in progress
does not repeat the request, the common save comes right after the last of them has ended its own. A
request for another reason (time, an API call) does not keep a script from saving: `run.save()`
saves its step, and the request is fulfilled later.

The checkpoint at the end of the run (`final`) is exempt: each member saves where its training
ended. A request outlives the generation in which it was not fulfilled: the next one schedules it
again.

A worker may be lost while the final state is saved. So a worker that has run its script to the end
reports that before it saves. From then on the members that hold the model need no other worker: if
one of them is lost, the checkpoint fails, and the others form the next generation among themselves
and save again. They do not wait for a replacement; one that has no model yet waits as a spare,
because it would run the script alone.

When every worker that had ended its training is lost, replacements resume from the newest
checkpoint. The shards of a sharded model are lost with their worker, so none of this applies to it.
"""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointRequested, record_failure
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.generation_members import holds_model, regroup_holders
from strata.core.limits import require_text, shortened
from strata.core.state import Cluster
from strata.core.task_state import Checkpoint, Task
from strata.core.workers.fencing import SharedCommand, WorkerCommand
from strata.errors import InvalidArgument, NotAllowedNow

LEAD_STEPS = 2
"""The shortest lead: the present step of a member, and one more."""

LEAD_S = 0.25
"""Time in which every member usually learns at which step to save."""

MAX_DOUBLINGS = 10


class CheckpointScheduled(Fact, frozen=True, kw_only=True):
    """All members save when `step` steps are applied."""

    sentence = "every worker of {task} will save step {step}"

    task: str
    request: int
    generation: int
    step: int


class CheckpointPostponed(Fact, frozen=True, kw_only=True):
    """A worker did not save at `step`, although a save was due; `request` replaces that save."""

    sentence = "{worker} did not save step {step} of {task}[: {reason}]"

    task: str
    worker: str
    generation: int
    step: int
    request: int
    reason: str
    busy_s: float = 0.0  # seconds that its previous save had been in progress
    missed: bool = False  # it had passed the scheduled step when it learned of it


class Pace(Struct, frozen=True):
    """Where a member was `age_s` ago, and how long its step takes; 0 while that is unknown."""

    step: int
    step_s: float
    age_s: float

    def steps_in(self, seconds: float) -> int:
        """Steps that the member applies in a time, rounded up; 0 while that is unknown."""
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
def _scheduled(state: Cluster, fact: CheckpointScheduled, event: Event) -> None:
    task = state.tasks[fact.task]
    task.scheduled_request = fact.request
    task.save_at = fact.step


@applies(CheckpointPostponed)
def _postponed(state: Cluster, fact: CheckpointPostponed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.postponed_request = fact.request
    task.missed_saves += fact.missed


@decides(RequestCheckpoint)
def request(d: Decision, c: RequestCheckpoint) -> int:
    """Request a checkpoint of a task; return the number of the request.

    While a request waits for its step, another request is the same one.
    """
    task = d.state.task(c.task)
    require_text(reason=c.reason)
    if task.ended:
        raise NotAllowedNow(f"task {c.task!r} is {task.state}", hint="nothing is left to save")
    if not has_open_request(task):
        d.record(
            CheckpointRequested(task=c.task, request=task.checkpoint_requests + 1, reason=c.reason),
            c.cause,
        )
    return task.checkpoint_requests


@decides(ScheduleCheckpoint)
def schedule(d: Decision, c: ScheduleCheckpoint) -> int:
    """Set the step; messages about an older generation or a settled request change nothing."""
    task = d.state.task(c.task)
    current = (task.generation, "running") == (c.generation, task.phase)
    if current and task.scheduled_request < c.request <= task.checkpoint_requests:
        step = c.furthest_step + c.lead
        d.record(
            CheckpointScheduled(task=c.task, request=c.request, generation=c.generation, step=step),
            c.cause,
        )
    return task.save_at


@decides(PostponeCheckpoint)
def postpone(d: Decision, c: PostponeCheckpoint) -> int:
    """Record that a worker does not save a step that was due; return the open request, or 0.

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
        d.record(
            CheckpointRequested(task=task.id, request=task.checkpoint_requests + 1, reason=text),
            c.cause,
        )
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


def _lacks(task: Task, checkpoint: Checkpoint, rank: int, step: int) -> bool:
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


def plan(task: Task, paces: Sequence[Pace]) -> list[Command]:
    """Schedule the open request of a task whose members are all ready for it, at these paces."""
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


def has_open_request(task: Task) -> bool:
    """Whether a request waits for its step to be set."""
    return task.checkpoint_requests > task.scheduled_request


def require_unscheduled(task: Task, step: int) -> None:
    """Refuse to open a checkpoint after a member postponed its part of the one before: all members
    are about to save together, and until then that member writes no part."""
    ahead = has_open_request(task) or step < task.save_at
    if ahead and task.postponed_request == task.checkpoint_requests:
        when = f"at step {task.save_at}" if step < task.save_at else "as soon as nobody is busy"
        raise NotAllowedNow(
            f"step {step} of task {task.id!r} is not saved: request {task.checkpoint_requests} "
            f"for a checkpoint is open, and all workers save together {when}",
            hint="continue training; that checkpoint replaces this one",
        )


class TrainingEnded(Fact, frozen=True, kw_only=True):
    """A worker has run its script to the end, after `step` steps; the final save comes next."""

    sentence = "{worker} finished training at step {step}"

    task: str
    worker: str
    step: int


class EndTraining(WorkerCommand, frozen=True):
    step: int


@applies(TrainingEnded)
def _ended(state: Cluster, fact: TrainingEnded, event: Event) -> None:
    state.tasks[fact.task].ending.append(fact.worker)


@decides(EndTraining)
def end_training(d: Decision, c: EndTraining) -> Task:
    """Record that a worker trains no more steps; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.step < 0:
        raise InvalidArgument(f"step is {c.step}", hint="count the applied steps, from 0")
    if task.ended or c.worker in task.ending or task.spec.model_state == "sharded":
        return task
    if worker.rank < 0 or not holds_model(d, task, c.worker):
        raise NotAllowedNow(
            f"worker {c.worker!r} holds no model of generation {task.ran_generation}",
            hint="enter the present generation and restore its model",
        )
    cause = d.record(TrainingEnded(task=task.id, worker=c.worker, step=c.step), c.cause)
    regroup_holders(d, task, f"worker {c.worker} has ended its training", cause)
    return task
