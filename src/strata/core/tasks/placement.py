"""Placement: queued tasks start when there are slots, and lost workers are replaced.

An agent offers slots on its host. Tasks are placed in the order of submission, each with all its
workers and spares at once. A task that does not fit blocks the tasks behind it, so that a large
task is never starved. A lost worker is started again, on the same host if that is still up. A
worker that fails again and again with little or no progress is in a restart loop
(`core/tasks/restart_limit`): the task ends with exit code 93.

Free slots of the hosts, while workers are placed on them one after the other.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

import msgspec

from strata.core.decision import Decision, decides
from strata.core.events import Command
from strata.core.limits import require_room, shortened
from strata.core.state import Cluster
from strata.core.task_state import Placement, Task, TaskSpec
from strata.core.tasks.restart_limit import failures
from strata.core.tasks.task_lifecycle import (
    INTERRUPTED_EXIT_CODE,
    RESTART_LOOP_EXIT_CODE,
    TaskPlaced,
    TaskSubmitted,
    change_state,
)
from strata.core.workers.fencing import WorkerCommand
from strata.core.workers.worker_lifecycle import were_lost
from strata.errors import InvalidArgument


class FreeSlots:
    """Counts slots down, and finds the host with the most free slots without a scan.

    Hosts in `doubtful` may be lost already: they come last, however many slots they have.
    """

    def __init__(self, free: Mapping[str, int], doubtful: Collection[str] = ()) -> None:
        self.total = sum(free.values())
        self._free = dict(free)
        self._doubtful = frozenset(doubtful)
        # Counts only fall, so an outdated entry is corrected when it is popped.
        self._heap = [
            (agent in self._doubtful, -slots, order, agent)
            for order, (agent, slots) in enumerate(free.items())
        ]
        heapify(self._heap)

    def take(self, preferred: str = "") -> str:
        """The agent whose slot is taken: the preferred one if it has any and is not in doubt, else
        the roomiest; empty where no slot is free."""
        known = preferred not in self._doubtful and self._free.get(preferred, 0) > 0
        agent = preferred if known else self._roomiest()
        if agent:
            self._free[agent] -= 1
            self.total -= 1
        return agent

    def _roomiest(self) -> str:
        while self._heap:
            doubtful, counted, order, agent = self._heap[0]
            slots = self._free[agent]
            if slots <= 0:
                heappop(self._heap)
            elif slots != -counted:
                heapreplace(self._heap, (doubtful, -slots, order, agent))
            else:
                return agent
        return ""


class SubmitTask(Command, frozen=True):
    spec: TaskSpec


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
    rules = d.state.rules
    spec = msgspec.structs.replace(c.spec, keep_count=c.spec.keep_count or rules.keep_count)
    _check(d, spec)
    unended = sum(not task.ended for task in d.state.tasks.values())
    require_room(d, "max_tasks", rules.max_tasks, unended, f"task {spec.name!r}", c.cause)
    task_id = f"{_slug(spec.name)}-{d.state.last_task + 1}"
    submitted = d.record(TaskSubmitted(task=task_id, spec=spec), c.cause)
    task = d.state.tasks[task_id]
    if spec.external:
        change_state(d, task, "starting", "the user starts its workers", submitted)
    else:
        place_waiting(d, submitted)
    return task


def _check(d: Decision, spec: TaskSpec) -> None:
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
    if spec.dataset_id:
        d.state.dataset(spec.dataset_id)
    for name, least in (("keep_count", 1), ("max_restarts", 0), ("spares", 0)):
        if getattr(spec, name) < least:
            raise InvalidArgument(
                f"{name} is {getattr(spec, name)}", hint=f"it must be at least {least}"
            )


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
    """Stop a task gracefully: its workers may save first. Stopping twice changes nothing."""
    task = d.state.task(c.task)
    if task.state == "stopping" or task.ended:
        return task
    code = 0 if c.by_script else INTERRUPTED_EXIT_CODE
    if task.state == "queued":
        place_waiting(d, change_state(d, task, "stopped", c.reason, c.cause, code))
        return task
    cause = change_state(d, task, "stopping", c.reason, c.cause, code)
    if not task.members and not task.waiting:
        change_state(d, task, "stopped", "it had no workers", cause)
        place_waiting(d, cause)
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
            change_state(d, task, "stopped", "every worker is gone", cause)
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
    """Start queued tasks, oldest first, for as long as the next one fits."""
    for task in [task for task in d.state.tasks.values() if task.vacant]:
        place_vacant(d, task, "a slot became free", cause)
    for task in [task for task in d.state.tasks.values() if task.state == "queued"]:
        free = FreeSlots(free_slots(d.state))
        if free.total < task.spec.slots:
            return
        placements = {
            f"{task.id}-w{number}": Placement(agent=free.take())
            for number in range(task.spec.slots)
        }
        placed = d.record(
            TaskPlaced(task=task.id, placements=placements, reason="its slots are free"), cause
        )
        change_state(d, task, "starting", "its workers are being started", placed)


def free_slots(state: Cluster) -> dict[str, int]:
    """Free slots of each agent that is up."""
    taken = Counter[str]()
    for task in state.tasks.values():
        vacant = set(task.vacant)
        taken.update(p.agent for worker, p in task.placements.items() if worker not in vacant)
    return {
        agent.id: max(agent.slots - taken[agent.id], 0)
        for agent in state.agents.values()
        if agent.up
    }


def why_waiting(state: Cluster, task: Task) -> str:
    """What a task waits for: slots, or workers that the user starts; empty if it does not wait."""
    if task.spec.external:
        return _missing_workers(task)
    if task.state == "queued":
        ahead = next(t for t in state.tasks.values() if t.state == "queued")
        if ahead.id != task.id:
            return f"it waits behind {ahead.id}"
        return f"it needs {_slots(task.spec.slots)} and {_offer(state)}"
    if task.vacant and task.phase == "forming" and task.state != "stopping":
        return f"its lost workers need {_slots(len(task.vacant))} and {_offer(state)}"
    return ""


def _missing_workers(task: Task) -> str:
    here, needed = len(task.members) + len(task.waiting), task.required
    waits = task.phase == "forming" and not task.ended and task.state != "stopping"
    if not waits or here >= needed:
        return ""
    more = f"start {needed - here} more with STRATA_TASK={task.id}"
    return f"{here} of {needed} workers are here: {more}"


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def _offer(state: Cluster) -> str:
    offered = sum(agent.slots for agent in state.agents.values() if agent.up)
    if not offered:
        return "no agent is up"
    return f"{sum(free_slots(state).values())} of {offered} are free"
