"""The tasks that a log has."""

from strata.core.events import COORDINATOR
from strata.core.tasks.task_lifecycle import TaskSubmitted
from strata.errors import NotFound
from strata.timeline.read.past_states import state_at
from strata.timeline.read.run_timeline import Timeline

NAMED = 10


def recorded_tasks(timeline: Timeline) -> list[str]:
    """The tasks in the order of their submission; a log may begin after it, with a snapshot."""
    kept = state_at(timeline, timeline.position).state.tasks
    submitted = timeline.records(node=COORDINATOR, kinds={TaskSubmitted.__name__})
    own = [timeline.task] if timeline.task else []
    return list(dict.fromkeys([*(each.text("task") for each in submitted), *kept, *own]))


def require_task(timeline: Timeline, task: str) -> None:
    """Raise if the log has no such task."""
    known = recorded_tasks(timeline)
    if task not in known:
        raise NotFound(
            f"no task {task!r} is recorded here",
            hint=f"the tasks are {', '.join(known[-NAMED:])}"
            if known
            else "no task was submitted yet",
        )
