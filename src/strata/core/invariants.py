"""Invariants that hold after every fact; checked by tests and the simulator, not in production.

`broken` checks one state. `HistoryChecker` checks the history: generations, incarnations and
attempts never go back, and every fact follows a life cycle.
"""

from collections.abc import Iterator

from strata.core.barriers import barrier_rules
from strata.core.checkpoints import checkpoint_lifecycle
from strata.core.events import Fact
from strata.core.lifecycle import Lifecycle
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks import task_forks, task_lifecycle
from strata.core.workers import worker_lifecycle


def broken(state: Cluster) -> list[str]:
    """Every invariant that the state breaks, as text."""
    return [fault for task in state.tasks.values() for fault in _task_faults(state, task)]


def _task_faults(state: Cluster, task: Task) -> Iterator[str]:
    where = f"task {task.id}"
    yield from _membership_faults(state, task, where)
    for barrier in task.barriers.values():
        if barrier.state == "waiting":
            outsiders = set(barrier.arrived) - set(task.members)
            if outsiders:
                yield f"{where}: outsiders {sorted(outsiders)} count at barrier {barrier.name}"
            if task.members and not barrier_rules.missing_workers(task, barrier):
                yield f"{where}: barrier {barrier.name} is complete and still waits"
    for checkpoint in task.checkpoints.values():
        complete = len(checkpoint.parts) == checkpoint.expected
        if checkpoint.state in ("committed", "sealing") and not complete:
            yield f"{where}: checkpoint {checkpoint.id} is {checkpoint.state} without all its parts"
        if not all(0 <= rank < checkpoint.expected for rank in checkpoint.parts):
            yield f"{where}: checkpoint {checkpoint.id} has parts of ranks that do not exist"
        if checkpoint.state == "in_progress" and checkpoint.generation != task.generation:
            yield f"{where}: checkpoint {checkpoint.id} waits for a generation that has ended"
    yield from _feed_faults(state, task, where)
    if task.state == "queued" and (task.members or task.waiting or task.placements):
        yield f"{where}: is queued and has workers"
    if task.preempted_by and task.state != "stopping":
        yield f"{where}: is preempted by {task.preempted_by} and {task.state}"


def _membership_faults(state: Cluster, task: Task, where: str) -> Iterator[str]:
    for rank, member in enumerate(task.members):
        worker = state.workers[member]
        if worker.rank != rank:
            yield f"{where}: {member} sits at rank {rank} and believes to be {worker.rank}"
        if not worker.alive and member not in task.finished and not task.ended:
            yield f"{where}: {member} is {worker.state} and still a member"
        if worker.task != task.id:
            yield f"{where}: {member} belongs to task {worker.task}"
    if len(set(task.members)) != len(task.members):
        yield f"{where}: a worker sits at two ranks"
    if set(task.waiting) & set(task.members):
        yield f"{where}: a member is also waiting to join"
    if task.phase == "running" and len(task.members) < task.required:
        yield f"{where}: trains with {len(task.members)} of {task.required} workers"


def _feed_faults(state: Cluster, task: Task, where: str) -> Iterator[str]:
    for feed in task.feeds.values():
        if feed.unit == "lease":
            for lease in feed.leases.values():
                holder = state.workers[lease.worker]
                if not holder.alive or holder.incarnation != lease.incarnation:
                    yield f"{where}: lease {lease.id} is held by a worker that is gone"
        elif task.phase != "forming" and not task.ended:
            held = [item for items in feed.holdings.values() for item in items]
            if sorted(held) != list(range(feed.count)):
                yield f"{where}: not every {feed.unit} of {feed.dataset} has exactly one owner"
            if not set(feed.holdings) <= set(task.members):
                yield f"{where}: an outsider owns a {feed.unit} of {feed.dataset}"


class HistoryChecker:
    """Remembers numbers that must only grow, and the state of each thing with a life cycle."""

    def __init__(self) -> None:
        self._grown: dict[tuple[str, str], int] = {}
        self._lives: dict[tuple[str, str], str] = {}

    def shrunk(self, state: Cluster) -> list[str]:
        """Numbers that fell since the last call."""
        faults: list[str] = []
        for what, name, value in _growing(state):
            before = self._grown.get((what, name), -1)
            if value < before:
                faults.append(f"{what} of {name or 'the cluster'} fell from {before} to {value}")
            self._grown[what, name] = value
        return faults

    def jumped(self, body: Fact) -> list[str]:
        """Whether a fact makes a move that its life cycle does not have."""
        if isinstance(body, task_forks.TaskForked):  # the fork inherits a committed checkpoint
            name = f"{body.task}/{body.checkpoint}"
            self._lives[checkpoint_lifecycle.LIFECYCLE.name, name] = "committed"
            return []
        moved = _moved(body)
        if moved is None:
            return []
        lifecycle, name, after = moved
        before = self._lives.get((lifecycle.name, name))
        self._lives[lifecycle.name, name] = after
        if before is None and after == lifecycle.initial:
            return []
        if before is not None and (before == after or lifecycle.allows(before, after)):
            return []
        return [f"{lifecycle.name} {name} jumped from {before or 'nowhere'} to {after}"]


def _growing(state: Cluster) -> Iterator[tuple[str, str, int]]:
    yield "position", "", state.position
    yield "coordinator incarnation", "", state.coordinator_incarnation
    yield "last incarnation", "", state.last_incarnation
    for worker in state.workers.values():
        yield "incarnation", worker.id, worker.incarnation
    for task in state.tasks.values():
        yield "generation", task.id, task.generation
        yield "attempt", task.id, task.attempt
        yield "barrier round", task.id, task.last_round


_BARRIERS: dict[type[Fact], str] = {
    barrier_rules.BarrierOpened: "waiting",
    barrier_rules.BarrierReleased: "released",
    barrier_rules.BarrierFailed: "failed",
}
_CHECKPOINTS: dict[type[Fact], str] = {
    checkpoint_lifecycle.CheckpointStarted: "in_progress",
    checkpoint_lifecycle.CheckpointSealed: "sealing",
    checkpoint_lifecycle.CheckpointCommitted: "committed",
    checkpoint_lifecycle.CheckpointFailed: "failed",
    checkpoint_lifecycle.CheckpointDeleted: "deleted",
}


def _moved(body: Fact) -> tuple[Lifecycle, str, str] | None:
    """The thing that a fact changes, and its new state."""
    match body:
        case worker_lifecycle.WorkerRegistered():
            return worker_lifecycle.LIFECYCLE, body.worker, "initializing"
        case worker_lifecycle.WorkerStateChanged():
            return worker_lifecycle.LIFECYCLE, body.worker, body.after
        case worker_lifecycle.WorkerLost():
            return worker_lifecycle.LIFECYCLE, body.worker, "lost"
        case task_lifecycle.TaskSubmitted():
            return task_lifecycle.LIFECYCLE, body.task, "queued"
        case task_lifecycle.TaskStateChanged():
            return task_lifecycle.LIFECYCLE, body.task, body.after
        case (
            barrier_rules.BarrierOpened()
            | barrier_rules.BarrierReleased()
            | barrier_rules.BarrierFailed()
        ):
            name = f"{body.task}/{body.barrier}#{body.round}"
            return barrier_rules.LIFECYCLE, name, _BARRIERS[type(body)]
        case (
            checkpoint_lifecycle.CheckpointStarted()
            | checkpoint_lifecycle.CheckpointSealed()
            | checkpoint_lifecycle.CheckpointCommitted()
            | checkpoint_lifecycle.CheckpointFailed()
            | checkpoint_lifecycle.CheckpointDeleted()
        ):
            name = f"{body.task}/{body.checkpoint}"
            return checkpoint_lifecycle.LIFECYCLE, name, _CHECKPOINTS[type(body)]
    return None
