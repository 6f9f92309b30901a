"""Preemption: tasks of lower priority make room for a task that waits.

If the first task in line does not fit, tasks of lower priority that were submitted as `preemptible`
are stopped for it, if their slots are enough. Their workers save, as after any stop. When all of
them are gone, the preempted task is queued again and keeps its place by its submission; it
continues by itself, from its newest checkpoint, when there are slots.

Tasks of the lowest priorities that are enough come into question, and of those as few workers as
possible are stopped, of the tasks that began last. Slots of tasks that are stopping already are
counted first, so that no task is stopped in vain. A task whose workers have begun to finish is not
preempted: its slots become free soon.
"""

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks.host_slots import free_slots, held_slots, is_usable
from strata.core.tasks.task_lifecycle import TaskStateChanged, change_state

NEVER_NS = 1 << 63


class TaskPreempted(Fact, frozen=True, kw_only=True):
    """A task stops to make room for a task of higher priority, and is queued again."""

    sentence = "{task} was preempted by {preemptor}[: {reason}]"

    task: str
    preemptor: str
    reason: str


@applies(TaskPreempted)
def _preempted(state: Cluster, fact: TaskPreempted, event: Event) -> None:
    state.tasks[fact.task].preempted_by = fact.preemptor


def preempt_for(d: Decision, task: Task, cause: str | tuple[str, ...]) -> bool:
    """Stop tasks of lower priority for a task that does not fit; True if it fits at once."""
    stopping = (each for each in d.state.tasks.values() if each.state == "stopping")
    leaving = [p for each in d.state.tasks.values() for p in each.released.values()]
    released = sum(is_usable(d.state, placement.agent) for placement in leaving)
    free = sum(free_slots(d.state).values())
    ending = released + sum(held_slots(d.state, each) for each in stopping)
    needed = task.spec.starting_slots - free - ending
    if needed > 0:
        for victim in victims(d.state, task.spec.priority, needed):
            _preempt(d, victim, task, cause)
    return sum(free_slots(d.state).values()) >= task.spec.starting_slots


def victims(state: Cluster, priority: int, needed: int) -> list[Task]:
    """The tasks to stop so that `needed` slots become free; empty if there are not enough."""
    newest_first = reversed(state.tasks.values())
    able = sorted((task for task in newest_first if _may_stop(task, priority)), key=_preference)
    slots = {task.id: held_slots(state, task) for task in able}
    for highest in sorted({task.spec.priority for task in able}):
        enough = [task for task in able if task.spec.priority <= highest]
        if sum(slots[task.id] for task in enough) >= needed:
            return _fewest(enough, slots, needed)
    return []


def _may_stop(task: Task, priority: int) -> bool:
    active = task.state in ("starting", "running", "recovering")
    lower = task.spec.preemptible and task.spec.priority < priority
    return active and lower and not (task.finished or task.ending)


def _preference(task: Task) -> tuple[int, int]:
    """The lowest priority first, then tasks that do not train yet, then those that began last."""
    return task.spec.priority, -(task.started_ns or NEVER_NS)


def _fewest(tasks: list[Task], slots: dict[str, int], needed: int) -> list[Task]:
    """The tasks with the fewest slots that are enough; of equal choices the first found."""
    chosen: dict[int, list[Task]] = {0: []}
    for task in tasks:
        for freed in sorted(chosen, reverse=True):
            if freed < needed:
                chosen.setdefault(freed + slots[task.id], [*chosen[freed], task])
    return chosen[min(freed for freed in chosen if freed >= needed)]


def _preempt(d: Decision, task: Task, by: Task, cause: str | tuple[str, ...]) -> None:
    reason = f"priority {by.spec.priority} is higher than {task.spec.priority}"
    preempted = d.record(TaskPreempted(task=task.id, preemptor=by.id, reason=reason), cause)
    stopping = change_state(d, task, "stopping", f"preempted by {by.id}", preempted)
    if not task.members and not task.waiting:
        end_stopped(d, task, "it had no workers", stopping)


def end_stopped(d: Decision, task: Task, reason: str, cause: str | tuple[str, ...]) -> str:
    """End a stopping task whose workers are gone; a preempted one is queued again."""
    return change_state(d, task, "queued" if task.preempted_by else "stopped", reason, cause)


def cancel_requeue(
    d: Decision, task: Task, reason: str, cause: str | tuple[str, ...], exit_code: int
) -> None:
    """Let a task that is being preempted end as stopped, for this reason."""
    stopped = TaskStateChanged(
        task=task.id, before="stopping", after="stopping", reason=reason, exit_code=exit_code
    )
    d.record(stopped, cause)
