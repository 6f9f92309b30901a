"""What must hold after every fact; checked by tests and the simulator, not in production.

`broken` looks at a state alone. `Historian` also remembers what must never go back: generations,
incarnations, attempts, and that a life cycle moves only along its table.
"""

from collections.abc import Iterator

from strata.core.cluster import LIFECYCLES
from strata.core.state import Cluster
from strata.core.tasks import Task


def broken(state: Cluster) -> list[str]:
    """Every promise that the state breaks, in words."""
    return [fault for task in state.tasks.values() for fault in _task_faults(state, task)]


def _task_faults(state: Cluster, task: Task) -> Iterator[str]:
    where = f"task {task.id}"
    yield from _membership_faults(state, task, where)
    for barrier in task.barriers.values():
        if barrier.state == "waiting":
            outsiders = set(barrier.arrived) - set(task.members)
            if outsiders:
                yield f"{where}: outsiders {sorted(outsiders)} count at barrier {barrier.name}"
            if task.members and len(barrier.arrived) >= len(task.members):
                yield f"{where}: barrier {barrier.name} is complete and still waits"
    for checkpoint in task.checkpoints.values():
        complete = len(checkpoint.parts) == checkpoint.expected
        if checkpoint.state in ("committed", "sealing") and not complete:
            yield f"{where}: checkpoint {checkpoint.id} is {checkpoint.state} without all its parts"
        if checkpoint.state == "in_progress" and checkpoint.generation != task.generation:
            yield f"{where}: checkpoint {checkpoint.id} waits for a generation that has ended"
    yield from _feed_faults(state, task, where)


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
    if task.phase == "running" and len(task.members) < min(task.required, task.spec.min_workers):
        yield f"{where}: trains with {len(task.members)} of {task.required} workers"


def _feed_faults(state: Cluster, task: Task, where: str) -> Iterator[str]:
    for feed in task.feeds.values():
        if feed.unit == "lease":
            for lease in feed.leases.values():
                holder = state.workers[lease.worker]
                if not holder.alive or holder.incarnation != lease.incarnation:
                    yield f"{where}: lease {lease.id} is held by one who is gone"
        elif task.phase != "forming" and not task.ended:
            held = [item for items in feed.holdings.values() for item in items]
            if sorted(held) != list(range(feed.count)):
                yield f"{where}: not every {feed.unit} of {feed.dataset} has exactly one owner"
            if not set(feed.holdings) <= set(task.members):
                yield f"{where}: an outsider owns a {feed.unit} of {feed.dataset}"


class Historian:
    """Remembers the last state it saw of each thing, and what must only grow."""

    def __init__(self) -> None:
        self._grown: dict[tuple[str, str], int] = {}
        self._states: dict[tuple[str, str], str] = {}

    def broken(self, state: Cluster) -> list[str]:
        """What went backwards or jumped since the last look."""
        faults: list[str] = []
        for what, name, value in _growing(state):
            before = self._grown.get((what, name), -1)
            if value < before:
                faults.append(f"{what} of {name or 'the cluster'} fell from {before} to {value}")
            self._grown[what, name] = value
        for lifecycle, (kind, things) in zip(LIFECYCLES, _living(state), strict=True):
            for name, now in things:
                before_state = self._states.get((kind, name), now)
                if before_state != now and not lifecycle.allows(before_state, now):
                    faults.append(f"{kind} {name} jumped from {before_state} to {now}")
                self._states[kind, name] = now
        return faults


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


def _living(state: Cluster) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    tasks = state.tasks.values()
    yield "worker", ((w.id, w.state) for w in state.workers.values())
    yield "task", ((t.id, t.state) for t in tasks)
    yield (
        "barrier",
        ((f"{t.id}/{b.name}#{b.round}", b.state) for t in tasks for b in t.barriers.values()),
    )
    yield "checkpoint", ((f"{t.id}/{c.id}", c.state) for t in tasks for c in t.checkpoints.values())
