"""Placement: queued tasks start when there are slots, and lost workers are replaced.

An agent offers slots on its host. Tasks are placed in the order of the queue
(`core/tasks/task_queue`), each with all its workers and spares at once, an elastic task with its
`min_workers` (`core/tasks/elastic_workers`). A task that does not fit blocks the tasks behind it,
and may preempt tasks of lower priority (`core/tasks/preemption`).

A lost worker is started again, on the same host if that is still up. A worker that fails again and
again with little or no progress is in a restart loop (`core/tasks/restart_limit`): the task ends
with exit code 93.
"""

from collections.abc import Collection, Sequence

import msgspec

from strata.core.checkpoints.keep_reasons import require_retention
from strata.core.decision import Decision, decides
from strata.core.events import Command
from strata.core.limits import require_room, shortened
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Placement, Task
from strata.core.tasks.elastic_workers import check_range, give_back, missing_workers, place_missing
from strata.core.tasks.host_slots import FreeSlots, first_placement, free_slots
from strata.core.tasks.preemption import cancel_requeue, end_stopped, preempt_for
from strata.core.tasks.restart_limit import failures
from strata.core.tasks.task_lifecycle import (
    INTERRUPTED_EXIT_CODE,
    RESTART_LOOP_EXIT_CODE,
    TaskPlaced,
    TaskSubmitted,
    change_state,
)
from strata.core.tasks.task_queue import first_in_line
from strata.core.tasks.workdirs import Workdir, check_spec_workdir, record_workdir
from strata.core.workers.fencing import WorkerCommand
from strata.core.workers.worker_lifecycle import were_lost
from strata.errors import InvalidArgument

MAX_AFTER = 100
MAX_PRIORITY = 1000


class SubmitTask(Command, frozen=True):
    spec: TaskSpec
    workdir: Workdir | None = None


class FailStart(Command, frozen=True):
    task: str
    reason: str


class StopTask(Command, frozen=True):
    task: str
    reason: str = "asked to stop"
    by_script: bool = False


class StopRun(WorkerCommand, frozen=True):
    reason: str


@decides(SubmitTask)
def submit(d: Decision, c: SubmitTask) -> Task:
    """Submit a task; it starts at once if there are slots. A `keep_count` of 0 means the
    default."""
    task, submitted = record_submission(d, c.spec, c.cause, c.workdir)
    begin(d, task, submitted)
    return task


def record_submission(
    d: Decision, spec: TaskSpec, cause: tuple[str, ...], workdir: Workdir | None = None
) -> tuple[Task, str]:
    """Record a new task and its folder; returns it and the id of the first fact."""
    rules = d.state.rules
    spec = msgspec.structs.replace(spec, keep_count=spec.keep_count or rules.keep_count)
    check_spec(d, spec)
    check_spec_workdir(spec, workdir)
    unended = sum(not task.ended for task in d.state.tasks.values())
    require_room(d, "max_tasks", rules.max_tasks, unended, f"task {spec.name!r}", cause)
    task_id = f"{_slug(spec.name)}-{d.state.last_task + 1}"
    submitted = d.record(TaskSubmitted(task=task_id, spec=spec), cause)
    task = d.state.tasks[task_id]
    record_workdir(d, task, workdir, submitted)
    return task, submitted


def begin(d: Decision, task: Task, cause: str) -> None:
    """Start a queued task if there are slots; one whose workers the user starts begins at once."""
    if task.spec.external:
        change_state(d, task, "starting", "the user starts its workers", cause)
    else:
        place_waiting(d, cause)


def check_spec(d: Decision, spec: TaskSpec) -> None:
    """Refuse parameters of a task that are out of range."""
    if not spec.name.strip():
        raise InvalidArgument("name is empty", hint="give the task a name")
    if not 1 <= spec.worker_count <= d.state.rules.max_workers:
        raise InvalidArgument(
            f"worker_count is {spec.worker_count}",
            hint=f"it must be between 1 and {d.state.rules.max_workers}",
        )
    if not 0 <= spec.min_workers <= spec.worker_count:
        raise InvalidArgument(
            f"min_workers is {spec.min_workers}",
            hint="it must be between 1 and worker_count, or 0 to leave it to the policy",
        )
    check_range(spec)
    if spec.dataset_id:
        d.state.dataset(spec.dataset_id)
    _check_queueing(d, spec)
    require_retention(spec.retention)
    if spec.epochs and spec.max_steps:
        raise InvalidArgument(
            f"epochs is {spec.epochs} and max_steps is {spec.max_steps}",
            hint="give the one that the script counts in run.epochs",
        )
    for name, least in (("max_restarts", 0), ("spares", 0), ("epochs", 0), ("max_steps", 0)):
        if getattr(spec, name) < least:
            raise InvalidArgument(
                f"{name} is {getattr(spec, name)}", hint=f"it must be at least {least}"
            )


def _check_queueing(d: Decision, spec: TaskSpec) -> None:
    if abs(spec.priority) > MAX_PRIORITY:
        raise InvalidArgument(
            f"priority is {spec.priority}",
            hint=f"it must be between -{MAX_PRIORITY} and {MAX_PRIORITY}",
        )
    if len(spec.after) > MAX_AFTER:
        raise InvalidArgument(
            f"after names {len(spec.after)} tasks", hint=f"name at most {MAX_AFTER}"
        )
    if spec.external and (spec.priority or spec.after or spec.preemptible or spec.self_test):
        raise InvalidArgument(
            "priority, after, preemptible and self_test are for tasks whose workers an agent "
            "starts, and the user starts the workers of this one",
            hint="give the task an entry, or leave these fields out",
        )
    for name in spec.after:
        d.state.task(name)


def _slug(name: str) -> str:
    kept = "".join(ch if ch.isalnum() or ch in "._-" else "-" for ch in name.strip().lower())
    # An id that begins with a dash would be read as an option on a command line.
    return kept.lstrip("-.")[:60] or "task"


@decides(FailStart)
def fail_start(d: Decision, c: FailStart) -> Task:
    """Fail a task whose workers cannot be started, unless it trains without them."""
    task = d.state.task(c.task)
    fails = task.state in ("starting", "recovering", "running") and task.phase == "forming"
    if fails and unstarted(d.state, task):
        place_waiting(d, change_state(d, task, "failed", shortened(c.reason), c.cause, 1))
    return task


def unstarted(state: Cluster, task: Task) -> dict[str, int]:
    """The placed workers that no process has joined yet, and their start counts."""
    vacant = set(task.vacant)
    found: dict[str, int] = {}
    for worker_id, placement in task.placements.items():
        worker = state.workers.get(worker_id)
        joined = worker is not None and (worker.alive or worker.done)
        if not joined and worker_id not in vacant:
            found[worker_id] = placement.start
    return found


@decides(StopTask)
def stop(d: Decision, c: StopTask) -> Task:
    """Stop a task gracefully: its workers may save first. Stopping twice changes nothing, and a
    task that is being preempted does not return to the queue."""
    task = d.state.task(c.task)
    code = 0 if c.by_script else INTERRUPTED_EXIT_CODE
    if task.preempted_by:
        cancel_requeue(d, task, c.reason, c.cause, code)
    if task.state == "stopping" or task.ended:
        return task
    if task.state == "queued":
        place_waiting(d, change_state(d, task, "stopped", c.reason, c.cause, code))
        return task
    cause = change_state(d, task, "stopping", c.reason, c.cause, code)
    if not task.members and not task.waiting:
        place_waiting(d, end_stopped(d, task, "it had no workers", cause))
    return task


@decides(StopRun)
def stop_run(d: Decision, c: StopRun) -> Task:
    """Stop the task because the script of one worker asks for it."""
    worker = d.state.workers[c.worker]
    reason = f"worker {c.worker}: {shortened(c.reason)}" if c.reason else f"worker {c.worker} asked"
    return stop(d, StopTask(task=worker.task, reason=reason, by_script=True, cause=c.cause))


def handle_loss(
    d: Decision,
    task: Task,
    workers: Sequence[str],
    reason: str,
    cause: str | tuple[str, ...],
    spare: bool = False,
    doubtful: Collection[str] = (),
) -> None:
    """Apply the task's policy to lost workers; spares are only started again.

    `doubtful` are hosts that may be lost too.
    """
    if task.state == "stopping":
        if not task.members and not task.waiting:
            end_stopped(d, task, "every worker is gone", cause)
    elif task.spec.policy == "stop" and not spare:
        change_state(
            d,
            task,
            "failed",
            f"{were_lost(workers)} and the policy is stop: {reason}",
            cause,
            1,
        )
    else:
        place_vacant(d, task, reason, cause, workers, doubtful)


def place_vacant(
    d: Decision,
    task: Task,
    reason: str,
    cause: str | tuple[str, ...],
    lost: Collection[str] = (),
    doubtful: Collection[str] = (),
) -> None:
    """Start lost workers again where there is a slot, unless one is in a restart loop.

    Workers that are `lost` now are checked in any case, others when there is a slot for them. A
    task with the policy `continue` replaces them only if too few are left, or as spares. A worker
    in a restart loop fails the task, unless the task trains without it: then it is not replaced.
    """
    if task.state not in ("starting", "running", "recovering"):
        return
    if task.spec.policy == "continue" and task.phase != "forming" and not task.spec.spares:
        return
    if (task.finished or task.ending) and task.phase != "forming":
        return  # the others train the last steps without it
    free, new = FreeSlots(free_slots(d.state), doubtful), set(lost)
    placed: dict[str, Placement] = {}
    for worker in task.vacant:
        if not free.total and worker not in new:
            continue
        before = task.placements[worker]
        failed = failures(d.state, task, worker)
        loop = failed.loop(task.spec.max_restarts)
        if loop and task.phase != "forming":
            continue
        if loop:
            text = f"restart loop: worker {worker} {loop}; last: {reason}"
            change_state(d, task, "failed", text, cause, RESTART_LOOP_EXIT_CODE)
            return
        agent = free.take(before.agent)
        if agent:
            placed[worker] = failed.placed(before, agent)
    if placed:
        doubt = f"; host {', '.join(sorted(doubtful))} may be lost" if doubtful else ""
        d.record(
            TaskPlaced(
                task=task.id, placements=placed, reason=f"replaces lost workers: {reason}{doubt}"
            ),
            cause,
        )


def place_waiting(d: Decision, cause: str | tuple[str, ...]) -> None:
    """Start queued tasks, the first in line first, for as long as the next one fits.

    A task that does not fit gets slots back from elastic tasks, else it preempts others. When none
    waits for slots, elastic tasks take the free ones.
    """
    for short in [task for task in d.state.tasks.values() if task.vacant]:
        place_vacant(d, short, "a slot became free", cause)
    _place_missing(d, False, cause)
    while (task := first_in_line(d.state)) is not None:
        free = FreeSlots(free_slots(d.state))
        missing = task.spec.starting_slots - free.total
        if missing <= 0:
            _place(d, task, free, cause)
            continue
        give_back(d, task, missing, cause)
        if not preempt_for(d, task, cause):
            return
    _place_missing(d, True, cause)


def _place_missing(d: Decision, elastic: bool, cause: str | tuple[str, ...]) -> None:
    """Place the workers that elastic tasks, or the others, want and have no placement for."""
    tasks = [task for task in d.state.tasks.values() if task.spec.elastic == elastic]
    short = [task for task in tasks if missing_workers(task)]
    take = FreeSlots(free_slots(d.state) if short else {}).take
    for task in short:
        place_missing(d, task, take, cause)


def _place(d: Decision, task: Task, free: FreeSlots, cause: str | tuple[str, ...]) -> None:
    names = [f"{task.id}-w{number}" for number in range(task.spec.starting_slots)]
    placements = {name: first_placement(d.state, task, name, free.take()) for name in names}
    placed = d.record(
        TaskPlaced(task=task.id, placements=placements, reason="its slots are free"), cause
    )
    change_state(d, task, "starting", "its workers are being started", placed)
