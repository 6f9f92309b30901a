"""Changes of a task's number of workers: new placements, released workers, slots given back.

A task has as many placements as it wants workers and spares. After a resize it may want more: the
missing ones are placed as slots become free, before queued tasks. An elastic task takes free slots
up to its `worker_count` only while no task is queued, oldest task first. When the next queued task
needs slots, elastic tasks give back the fewest that it needs, down to their `min_workers`, the
newest task first; if all of them together have too few, none is given back.

A *released* worker leaves its generation at once, is told so, and ends. It is not lost: nothing is
rolled back and no restart is counted. The workers with the highest ranks are released first. Its
slot stays taken until its agent reports the end of the process. Numbers of workers are not used
again, so the id of a released worker never means another process.
"""

from collections.abc import Callable

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.generations.generation_members import join, leave, restart_generation
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Placement, Task
from strata.core.tasks.framework_trainer import fixed_by_trainer
from strata.core.tasks.host_slots import first_placement
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.errors import InvalidArgument


def batch_workers(task: Task) -> int:
    """The number of workers to which batch sizes per worker refer; 0 before the task has begun."""
    if task.batch_workers or not task.generation:
        return task.batch_workers
    return task.spec.min_workers if task.spec.elastic else task.spec.worker_count


class WorkersReleased(Fact, frozen=True, kw_only=True):
    """A task no longer needs these workers; their processes on `agents` are to end."""

    sentence = "{task} released {left}[: {reason}]"

    task: str
    left: list[str]
    agents: list[str]
    reason: str


@applies(WorkersReleased)
def _released(state: Cluster, fact: WorkersReleased, event: Event) -> None:
    task = state.tasks[fact.task]
    for worker_id in fact.left:
        placement, worker = task.placements.pop(worker_id), state.workers.get(worker_id)
        task.retired += 1
        if worker is not None and worker.alive:
            task.released[worker_id] = placement
    left = set(fact.left)
    task.vacant = [worker for worker in task.vacant if worker not in left]
    task.waiting = [worker for worker in task.waiting if worker not in left]


def check_range(spec: TaskSpec) -> None:
    """Refuse an elastic task whose number of workers cannot change."""
    if not spec.elastic:
        return
    if spec.min_workers < 1:
        raise InvalidArgument(
            "an elastic task has no min_workers", hint="set it to at least 1: --workers 1:4"
        )
    if spec.spares:
        raise InvalidArgument(
            f"an elastic task has {spec.spares} spares", hint="leave out spares, or the range"
        )
    if spec.model_state == "sharded":
        raise InvalidArgument(
            "the model of an elastic task is sharded", hint="give a fixed number of workers"
        )


def keeps_workers(task: Task) -> str:
    """Why the number of workers must not change; empty if it may."""
    if task.finished or task.ending:
        return "its workers have ended their training"
    if task.spec.model_state == "sharded" or task.rebuilds:
        return "no worker holds the whole model, so steps since the last checkpoint would be lost"
    return fixed_by_trainer(task)


def wanted_workers(task: Task) -> int:
    """How many placements a task wants, spares included: no more than there are lanes to train."""
    return min([task.spec.worker_count, *lane_counts(task)]) + task.spec.spares


def lane_counts(task: Task) -> list[int]:
    """The number of lanes of each dataset that is trained in lanes."""
    return [feed.count for feed in task.feeds.values() if feed.unit == "lane"]


def missing_workers(task: Task) -> int:
    """How many more placements a task wants; an ending task wants none."""
    active = task.state in ("starting", "running", "recovering") and not task.spec.external
    if not active or keeps_workers(task):
        return 0
    return max(wanted_workers(task) - len(task.placements), 0)


def waiting_workers(task: Task) -> str:
    """That a resized task waits for slots; empty if it does not."""
    missing = 0 if task.spec.elastic else missing_workers(task)
    if not missing:
        return ""
    waits = "1 waits for a slot" if missing == 1 else f"{missing} wait for slots"
    return f"{len(task.placements)} of {wanted_workers(task)} workers; {waits}"


def place_missing(
    d: Decision, task: Task, take: Callable[[], str], cause: str | tuple[str, ...]
) -> None:
    """Place the workers that a task wants; `take` returns the agent of a free slot, or nothing."""
    first = len(task.placements) + task.retired
    placed: dict[str, Placement] = {}
    for number in range(first, first + missing_workers(task)):
        agent = take()
        if not agent:
            break
        name = f"{task.id}-w{number}"
        placed[name] = first_placement(d.state, task, name, agent)
    if placed:
        reason = "the elastic task takes free slots" if task.spec.elastic else "it was resized"
        d.record(TaskPlaced(task=task.id, placements=placed, reason=reason), cause)


def give_back(d: Decision, queued: Task, needed: int, cause: str | tuple[str, ...]) -> None:
    """Release workers of elastic tasks, if that frees the `needed` slots of a queued task.

    Slots of workers that were released before become free by themselves.
    """
    reason = f"{queued.id} needs {needed} more slots" if needed > 1 else f"{queued.id} needs a slot"
    givers = [task for task in reversed(d.state.tasks.values()) if task.spec.elastic]
    givers = [task for task in givers if task.placements and not keeps_workers(task)]
    for task in givers:
        waiting = task.vacant[: max(_above_minimum(task), 0)]
        if waiting:
            release(d, task, waiting, reason, cause)
    needed -= sum(len(task.released) for task in d.state.tasks.values())
    if needed > sum(max(_above_minimum(task), 0) for task in givers):
        return
    for task in givers:
        count = min(needed, _above_minimum(task))
        if count > 0:
            release(d, task, by_priority(task)[-count:], reason, cause)
            needed -= count


def _above_minimum(task: Task) -> int:
    return len(task.placements) - task.spec.min_workers


def by_priority(task: Task) -> list[str]:
    """The placed workers of a task: members by rank, then those that wait, start, and are lost."""
    here = {*task.members, *task.waiting, *task.vacant}
    starting = [worker for worker in task.placements if worker not in here]
    ordered = [*task.members, *task.waiting, *starting, *task.vacant]
    return [worker for worker in ordered if worker in task.placements]


def release(
    d: Decision, task: Task, workers: list[str], reason: str, cause: str | tuple[str, ...]
) -> None:
    """Release placed workers; their generation goes on without them."""
    released = record_release(d, task, workers, reason, cause)
    leave(d, task, [worker for worker in workers if worker in d.state.workers], reason, released)


def record_release(
    d: Decision, task: Task, workers: list[str], reason: str, cause: str | tuple[str, ...]
) -> str:
    """Record that placed workers are released; the caller changes their generation."""
    agents = sorted({task.placements[worker].agent for worker in workers})
    fact = WorkersReleased(task=task.id, left=workers, agents=agents, reason=reason)
    return d.record(fact, cause)


def regroup_if_enough(d: Decision, task: Task, reason: str, cause: str) -> None:
    """Start a generation with the workers that are here, if a resize made them enough."""
    if task.phase == "forming" and task.members and len(task.members) >= task.required:
        restart_generation(d, task, reason, cause)
    else:
        join(d, task, reason, cause)
