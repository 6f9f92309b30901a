"""The task that a registering worker belongs to.

A worker that names a task belongs to that task. Workers that a user starts need not name one:

- A worker that registers again under its id belongs to its previous task.
- Otherwise it belongs to the task that waits for workers: one that was submitted without an entry
  point and has fewer workers than its `worker_count`. A worker that states a world size belongs
  only to a task of that size. If several tasks fit, the worker is refused with their names.
- If the only such task has all its workers, the worker waits as a spare.
- If no task was submitted, workers share one task, `default`, which grows with them. It trains with
  any number of workers, unless they state a world size: then it waits for that number. After it has
  ended, a new one is created, or it continues if the setting `continue_ended` says so.

All workers of a task are of one kind: those that enter each generation (`strata.join`) wait for all
members to enter, and those of `TrainingOrchestrator` never enter.
"""

from strata.core.decision import Decision
from strata.core.task_spec import TaskSpec
from strata.core.task_state import DEFAULT_GROUP, Task
from strata.core.tasks.continuation import ContinueTask, continue_task
from strata.core.tasks.placement import SubmitTask, submit
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.errors import NotAllowedNow, NotFound, TaskEnded

NAMES_SHOWN = 5
NAME_IT = "name its task: STRATA_TASK=ID, or strata.join(task=ID)"


def task_for(d: Decision, c: "RegisterWorker") -> Task:
    """The task of a registering worker; the default task is created if none was submitted."""
    if c.task:
        return _named(d, c)
    task = _previous(d, c) or _waiting(d, c) or _shared(d, c) or _full(d, c) or _continued(d, c)
    if task is not None:
        return task
    spec = TaskSpec(
        name=DEFAULT_GROUP,
        external=True,
        syncs=c.syncs,
        worker_count=max(c.world_size, 1),
        keep_count=0,
    )
    return submit(d, SubmitTask(spec=spec, cause=c.cause))


def _named(d: Decision, c: "RegisterWorker") -> Task:
    task = d.state.tasks.get(c.task)
    if task is None:
        raise NotFound(f"there is no task {c.task!r}", hint="strata tasks lists them")
    if task.ended:
        refusal = NotAllowedNow if task.state == "failed" else TaskEnded
        raise refusal(f"task {c.task} is {task.state}", hint="submit it again, then join that run")
    if task.state == "queued":
        raise NotAllowedNow(
            f"task {c.task!r} still waits for slots", hint="its workers are started for it"
        )
    _require_kind(task, c)
    return task


def _require_kind(task: Task, c: "RegisterWorker") -> None:
    if not _same_kind(task, c):
        others = "strata.join" if task.syncs else "TrainingOrchestrator"
        raise NotAllowedNow(
            f"the workers of task {task.id!r} train with {others}, and this worker does not",
            hint="start every worker of a task with the same script",
        )


def _same_kind(task: Task, c: "RegisterWorker") -> bool:
    """Whether the worker is of the task's kind, which the first worker decides."""
    undecided = task.spec.syncs and not (task.generation or task.waiting)
    return undecided or task.syncs == c.syncs


def _joinable(d: Decision, c: "RegisterWorker") -> list[Task]:
    """The tasks whose workers are started by users and are of this worker's kind."""
    return [
        task
        for task in d.state.tasks.values()
        if task.spec.external
        and not task.ended
        and task.state != "stopping"
        and _same_kind(task, c)
    ]


def _previous(d: Decision, c: "RegisterWorker") -> Task | None:
    """The task that a worker of this id was in, unless it has ended."""
    known = d.state.workers.get(c.worker)
    task = d.state.tasks[known.task] if known is not None else None
    if task is None or task.ended or not task.spec.external:
        return None
    _require_kind(task, c)
    return task


def _waiting(d: Decision, c: "RegisterWorker") -> Task | None:
    """The one task that waits for such a worker; refuses if several do."""
    waiting = [task for task in _joinable(d, c) if _open_seats(task) > 0]
    fitting = [task for task in waiting if c.world_size in (0, task.spec.worker_count)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotAllowedNow(
            f"{len(fitting)} tasks wait for workers: {_names(fitting)}", hint=NAME_IT
        )
    submitted = [task for task in waiting if not task.shared]
    if submitted:
        raise NotAllowedNow(
            f"this worker is one of {c.world_size}, and no task waits for so many: "
            f"{_names(submitted)}",
            hint=f"leave the world size out, or {NAME_IT}",
        )
    return None


def _shared(d: Decision, c: "RegisterWorker") -> Task | None:
    """The default task, if there is one."""
    found = next(
        (task for task in d.state.tasks.values() if task.shared and not task.ended),
        None,
    )
    if found is not None:
        _require_kind(found, c)
    return found


def _continued(d: Decision, c: "RegisterWorker") -> Task | None:
    """The newest default task, which has ended and continues with this worker."""
    ended = [task.id for task in d.state.tasks.values() if task.shared and task.ended]
    if not ended or not d.state.rules.continue_ended:
        return None
    return continue_task(d, ContinueTask(task=ended[-1], cause=c.cause))


def _full(d: Decision, c: "RegisterWorker") -> Task | None:
    """The one submitted task, which has all its workers: this worker waits as a spare."""
    full = _joinable(d, c) if not c.world_size else []
    if len(full) > 1:
        raise NotAllowedNow(
            f"{len(full)} tasks run and have all their workers: {_names(full)}", hint=NAME_IT
        )
    return full[0] if full else None


def _open_seats(task: Task) -> int:
    """How many more workers a task waits for; none once a member has finished.

    The default task waits for none when all its workers are gone: submitted tasks come first.
    """
    here = len(task.members) + len(task.waiting)
    if task.finished or (task.shared and not here):
        return 0
    return task.spec.worker_count - here


def _names(tasks: list[Task]) -> str:
    shown = [f"{task.id} ({task.spec.worker_count} workers)" for task in tasks[:NAMES_SHOWN]]
    more = [f"and {len(tasks) - NAMES_SHOWN} more"] if len(tasks) > NAMES_SHOWN else []
    return ", ".join(shown + more)
