"""Tasks: one training job each, from submission to its end.

A task owns everything that belongs to its run: the generation of its workers, the committed steps,
its datasets, barriers and checkpoints. Its life cycle is a table. Its `policy` says what happens
after a lost worker: `continue` with fewer workers, `replace` it, or `stop`.

A task is either placed by Strata on agents, or *external*: the user starts its workers, which
register by themselves (`core/tasks/task_choice` chooses the task).
"""

from collections import Counter
from typing import Literal, TypeAlias

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.lifecycle import Lifecycle
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import ENDED, Placement, Task, TaskState
from strata.core.tasks.task_reset import reset_for_start

TaskType: TypeAlias = Literal["training", "tuning", "evaluation", "data"]

LIFECYCLE = Lifecycle(
    name="task",
    initial="queued",
    moves=(
        ("queued", "starting", "slots are free"),
        ("queued", "stopped", "stopped while it waited"),
        ("starting", "running", "the first generation trains"),
        ("starting", "failed", "it cannot start"),
        ("starting", "stopping", "asked to stop"),
        ("running", "recovering", "a generation ended"),
        ("recovering", "running", "the next generation trains"),
        ("recovering", "failed", "no progress between losses"),
        ("recovering", "stopping", "asked to stop"),
        ("recovering", "completed", "the rest had finished"),
        ("running", "stopping", "asked to stop"),
        ("running", "completed", "every worker finished"),
        ("running", "failed", "a loss that the policy does not forgive"),
        ("stopping", "stopped", "every worker left"),
        ("stopping", "queued", "every worker of a preempted task left"),
        ("stopping", "completed", "every worker of a preempted task had finished"),
        ("starting", "completed", "every worker left"),
        ("completed", "queued", "continued"),
        ("failed", "queued", "continued"),
        ("stopped", "queued", "continued"),
    ),
    final=("completed", "failed", "stopped"),
)

RESTART_LOOP_EXIT_CODE = 93
UNSAVED_EXIT_CODE = 94
"""Exit code of a task that completed although its final checkpoint failed."""

INTERRUPTED_EXIT_CODE = 130
"""Exit code of a task that was stopped from outside. If its script stops it, it ends as
completed."""


MAX_ENDED_TASKS = 200
FORGOTTEN_AT_ONCE = 50
MAX_THEIR_WORKERS = 10_000
WORKERS_AT_ONCE = 1_000


class TaskSubmitted(Fact, frozen=True, kw_only=True):
    """A user submitted a task."""

    sentence = "{task} was submitted"

    task: str
    spec: TaskSpec


class TaskPlaced(Fact, frozen=True, kw_only=True):
    """Workers are to be started on agents."""

    sentence = "workers of {task} were assigned to hosts[: {reason}]"

    task: str
    placements: dict[str, Placement]
    reason: str


class TaskStateChanged(Fact, frozen=True, kw_only=True):
    """The task changed its state; `last_start` is the highest start number of the workers whose
    places it gave up."""

    sentence = "{task} went from {before} to {after}[: {reason}]"

    task: str
    before: TaskState
    after: TaskState
    reason: str
    exit_code: int = 0
    last_start: int = 0


@applies(TaskSubmitted)
def _submitted(state: Cluster, fact: TaskSubmitted, event: Event) -> None:
    state.last_task += 1
    state.tasks[fact.task] = Task(id=fact.task, spec=fact.spec, submitted_ns=event.wall_ns)


@applies(TaskPlaced)
def _placed(state: Cluster, fact: TaskPlaced, event: Event) -> None:
    task = state.tasks[fact.task]
    task.placements.update(fact.placements)
    task.vacant = [worker for worker in task.vacant if worker not in fact.placements]


@applies(TaskStateChanged)
def _changed(state: Cluster, fact: TaskStateChanged, event: Event) -> None:
    task = state.tasks[fact.task]
    task.state = fact.after
    task.reason = fact.reason
    task.exit_code = fact.exit_code
    task.last_start = max(task.last_start, fact.last_start)
    if fact.before == "stopping":
        task.preempted_by = ""
    if fact.after == "queued":
        reset_for_start(state, task)
    if fact.after == "running" and not task.started_ns:
        task.started_ns = event.wall_ns
    if fact.after in ENDED:
        task.ended_ns = event.wall_ns
        task.placements = {}
        task.vacant = []
        task.released = {}
        task.exits = {}
        _forget_oldest_ended(state, task)


def _forget_oldest_ended(state: Cluster, newest: Task) -> None:
    """Remove the oldest ended tasks from the state; the log keeps them all.

    Fewer are kept if they had many workers, which stay in the state as long as their task. Tasks
    that others wait for are kept in any case.
    """
    awaited = {name for task in state.tasks.values() if not task.ended for name in task.spec.after}
    ended = [task.id for task in state.tasks.values() if task.ended and task.id not in awaited]
    many = len(ended) >= MAX_ENDED_TASKS + FORGOTTEN_AT_ONCE
    dead = len(state.workers) - state.living_workers
    if not many and dead < MAX_THEIR_WORKERS + WORKERS_AT_ONCE:
        return
    workers = Counter(worker.task for worker in state.workers.values())
    kept = {newest.id} | {worker.task for worker in state.workers.values() if worker.alive}
    tasks_over = FORGOTTEN_AT_ONCE if many else 0
    workers_over = sum(workers[task] for task in ended) - MAX_THEIR_WORKERS
    forgotten = set[str]()
    for task_id in ended:
        if task_id not in kept and (tasks_over > 0 or workers_over > 0):
            forgotten.add(task_id)
            workers_over -= workers[task_id]
        tasks_over -= 1
    for task_id in forgotten:
        del state.tasks[task_id]
    for worker_id in [w.id for w in state.workers.values() if w.task in forgotten]:
        del state.workers[worker_id]


def change_state(
    d: Decision,
    task: Task,
    after: TaskState,
    reason: str,
    cause: str | tuple[str, ...],
    exit_code: int = 0,
) -> str:
    """Change a task's state if the life cycle allows it.

    A task that was stopped ends with the reason and the exit code of the stop, and a preempted one
    is queued with the reason of the preemption.
    """
    LIFECYCLE.require(task.id, task.state, after)
    if after in ("stopped", "queued") and task.state == "stopping":
        repeated = reason.startswith(task.reason)
        reason = reason if repeated or not task.reason else f"{task.reason}; {reason}"
    if after == "stopped" and task.state == "stopping":
        exit_code = task.exit_code or (UNSAVED_EXIT_CODE if task.save_failure else 0)
    gives_up = after == "queued" or after in ENDED
    starts = [place.start for place in task.placements.values()] if gives_up else []
    changed = TaskStateChanged(
        task=task.id,
        before=task.state,
        after=after,
        reason=reason,
        exit_code=exit_code,
        last_start=max(starts, default=0),
    )
    return d.record(changed, cause)
