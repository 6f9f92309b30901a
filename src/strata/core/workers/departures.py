"""Workers that leave: by themselves, because their process ended, or because they are lost.

Departures of the same turn are handled together: first a fact for each worker, then each task
changes its generation once, however many of its workers are gone. Otherwise the end of a task with
10,000 workers would make 10,000 generations.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from strata.core.checkpoints.checkpoint_lifecycle import fail_without
from strata.core.datasets.shard_leases import take_back_leases
from strata.core.decision import Decision, decides
from strata.core.generations.generation_members import (
    all_finished,
    complete,
    finish,
    leave,
    result_is_final,
    with_save_failure,
)
from strata.core.hosts.host_exclusion import attribute
from strata.core.limits import shortened
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks.placement import handle_loss, place_waiting
from strata.core.tasks.preemption import end_stopped
from strata.core.tasks.task_lifecycle import change_state
from strata.core.workers.worker_lifecycle import (
    NAMED_WORKERS,
    DeclareLost,
    DeregisterWorker,
    WorkerLost,
    WorkerStateChanged,
    were_lost,
)

HOST_LOSSES = frozenset({"agent", "absent"})
"""Signals of a loss with the whole host, or with the coordinator's restart."""


class _Gone(Struct):
    """The workers of one task that leave in one turn, and the facts that record it."""

    lost: list[DeclareLost] = field(default_factory=list)
    left: list[DeregisterWorker] = field(default_factory=list)
    exited: dict[str, list[str]] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    only_spares: bool = True
    doubtful_hosts: set[str] = field(default_factory=set)

    @property
    def why_lost(self) -> str:
        """Why workers were lost: the first few reasons, each once."""
        reasons = dict.fromkeys(loss.reason for loss in self.lost)
        return "; ".join(list(reasons)[:NAMED_WORKERS])

    @property
    def reason(self) -> str:
        """Why the membership changes."""
        reasons = [f"worker {each.worker} left: {_why(each)}" for each in self.left[:NAMED_WORKERS]]
        if len(self.left) > NAMED_WORKERS:
            reasons.append(f"{len(self.left) - NAMED_WORKERS} more workers left")
        if self.lost:
            reasons.append(f"{were_lost([each.worker for each in self.lost])}: {self.why_lost}")
        return "; ".join(reasons)


def _why(c: DeregisterWorker) -> str:
    return shortened(c.reason) or {"done": "it finished"}.get(c.outcome, "it was told to stop")


def left_after_release(c: DeclareLost) -> DeregisterWorker:
    """The departure of a released worker that ended in another way than by leaving.

    The task no longer needs it, so it does not count as lost.
    """
    return DeregisterWorker(
        worker=c.worker,
        incarnation=c.incarnation,
        outcome="stopped",
        reason=f"it was released; {c.reason}",
        cause=c.cause,
    )


class Departures:
    """Collects the workers that leave in one turn; `follow` changes their tasks."""

    def __init__(self, d: Decision) -> None:
        self._d = d
        self._tasks: dict[str, _Gone] = {}

    def lose(self, c: DeclareLost) -> None:
        """Declare a worker lost, unless it has ended or registered again since."""
        d = self._d
        worker = d.state.workers.get(c.worker)
        if worker is None or not worker.alive or worker.incarnation != c.incarnation:
            return
        task = d.state.tasks[worker.task]
        if worker.id in task.released:
            self.leave(left_after_release(c))
            return
        spare = worker.rank < 0 and task.phase != "forming"
        fact = WorkerLost(
            worker=worker.id,
            incarnation=worker.incarnation,
            task=task.id,
            signal=c.signal,
            reason=c.reason,
            evidence=c.evidence,
            failure=c.failure or c.signal,
        )
        lost = d.record(fact, c.cause)
        take_back_leases(d, task, worker.id, lost)
        gone = self._of(task)
        gone.lost.append(c)
        gone.facts.append(lost)
        gone.only_spares &= spare
        if c.signal not in HOST_LOSSES:
            attribute(d, task, worker.id, c.reason, c.failure or c.signal, lost, c.gpus)
        placement = task.placements.get(worker.id)
        if c.host_in_doubt and placement is not None:
            gone.doubtful_hosts.add(placement.agent)

    def leave(self, c: DeregisterWorker) -> None:
        """Remove a worker that leaves before it has finished."""
        if c.outcome == "failed":
            self.lose(
                DeclareLost(
                    worker=c.worker,
                    incarnation=c.incarnation,
                    signal="exit",
                    reason=shortened(c.reason) or "it gave up",
                    gave_up=True,
                    refused=c.refused,
                    failure="error",
                    cause=c.cause,
                )
            )
            return
        task = self._d.state.tasks[self._d.state.workers[c.worker].task]
        gone = self._of(task)
        gone.left.append(c)
        gone.facts.append(_record_leaving(self._d, task, c, finished=False))

    def exit(
        self,
        task: Task,
        worker: str,
        reason: str,
        how: str,
        exited: str,
        gpus: tuple[str, ...] = (),
    ) -> None:
        """Note the exit of a process whose worker had not joined, or was lost before."""
        if worker not in self._d.state.workers:
            attribute(self._d, task, worker, reason, how, exited, gpus)
        gone = self._of(task)
        gone.exited.setdefault(reason, []).append(worker)
        gone.facts.append(exited)

    def follow(self) -> None:
        """Change the generations, and everything that depends on them."""
        for task_id, gone in self._tasks.items():
            _follow(self._d, self._d.state.tasks[task_id], gone)

    def _of(self, task: Task) -> _Gone:
        return self._tasks.setdefault(task.id, _Gone())


def lose(d: Decision, losses: Iterable[DeclareLost]) -> None:
    """Declare workers lost together, so that each of their tasks changes its generation once."""
    departures = Departures(d)
    for loss in losses:
        departures.lose(loss)
    departures.follow()


@decides(DeregisterWorker)
def deregister(d: Decision, c: DeregisterWorker) -> None:
    """Remove a worker that leaves by itself: it finished, was told to stop, or failed."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if finishes(d.state, c):
        rank = worker.rank
        cause = _record_leaving(d, task, c, finished=True)
        fail_without(d, task, rank, f"worker {c.worker} finished without saving it", cause)
        finish(d, task, c.steps, "every worker finished", cause)
        place_waiting(d, cause)
        return
    departures = Departures(d)
    departures.leave(c)
    departures.follow()


def finishes(state: Cluster, c: DeregisterWorker) -> bool:
    """Whether a worker leaves because it has finished training, and keeps its rank."""
    worker = state.workers.get(c.worker)
    if worker is None or c.outcome != "done":
        return False
    return state.tasks[worker.task].syncs and worker.rank >= 0


def _record_leaving(d: Decision, task: Task, c: DeregisterWorker, finished: bool) -> str:
    last = finished or task.state == "stopping"
    cause = d.record(
        WorkerStateChanged(
            worker=c.worker,
            incarnation=c.incarnation,
            task=task.id,
            before=d.state.workers[c.worker].state,
            after="left",
            reason=_why(c),
            outcome=c.outcome,
            finished=finished,
            save_failure=shortened(c.save_failure) if last else "",
            step=c.steps if finished else -1,
        ),
        c.cause,
    )
    take_back_leases(d, task, c.worker, cause)
    return cause


def _follow(d: Decision, task: Task, gone: _Gone) -> None:
    causes = tuple(gone.facts)
    lost = [loss.worker for loss in gone.lost]
    leave(d, task, [*(each.worker for each in gone.left), *lost], gone.reason, causes)
    if gone.lost:
        _follow_losses(d, task, gone, causes)
    for reason, workers in gone.exited.items():
        if not task.ended and task.state != "queued":
            handle_loss(d, task, workers, reason, causes)
    if gone.left:
        _end_if_deserted(d, task, gone.left[-1], causes)
    if gone.left or task.ended or task.state == "queued":
        place_waiting(d, causes)


def _follow_losses(d: Decision, task: Task, gone: _Gone, causes: tuple[str, ...]) -> None:
    if (task.finished and all_finished(task)) or result_is_final(d, task):
        _complete(d, task, gone, causes)
    elif (refused := _refusal(d.state, task, gone)) is not None:
        reason = f"worker {refused.worker} cannot train: {refused.reason}"
        change_state(d, task, "failed", reason, causes, 1)
    elif not task.ended:
        lost = [loss.worker for loss in gone.lost]
        spare, doubtful = gone.only_spares, gone.doubtful_hosts
        handle_loss(d, task, lost, gone.why_lost, causes, spare, doubtful)


def _refusal(state: Cluster, task: Task, gone: _Gone) -> DeclareLost | None:
    """The loss of a worker that every start would repeat, in a task in which no worker trains."""
    if task.state not in ("starting", "running", "recovering"):
        return None
    present = (state.workers[worker] for worker in (*task.members, *task.waiting))
    if any(worker.ran and task.committed > worker.first_step for worker in present):
        return None
    return next((loss for loss in gone.lost if loss.refused), None)


def _complete(d: Decision, task: Task, gone: _Gone, causes: tuple[str, ...]) -> None:
    """Complete a task whose other members have finished, unless this worker reported a failure."""
    gave_up = next((loss for loss in gone.lost if loss.gave_up), None)
    if gave_up is not None and task.state in ("starting", "running", "recovering"):
        others = ", ".join(task.finished)
        reason = f"worker {gave_up.worker} failed after {others} had finished: {gave_up.reason}"
        change_state(d, task, "failed", reason, causes, 1)
    else:
        steps = max(task.committed, task.finished_step)
        finish(d, task, steps, "the others had finished", causes)


def _end_if_deserted(
    d: Decision, task: Task, last: DeregisterWorker, cause: str | tuple[str, ...]
) -> None:
    """End a task that all workers have left, unless its workers are to be started again.

    If its last worker was told to stop and none has finished, the task is stopped, not completed.
    """
    if task.members or task.waiting or task.ended:
        return
    reason = "every worker left"
    told_to_stop = task.spec.external and last.outcome == "stopped" and not task.finished
    if told_to_stop and task.state != "stopping":
        reason = f"{reason}: {_why(last)}"
        cause = change_state(d, task, "stopping", reason, cause)
    if task.preempted_by and result_is_final(d, task):
        complete(d, task, reason, cause)
    elif task.state == "stopping":
        end_stopped(d, task, with_save_failure(task, reason), cause)
    elif task.spec.external or (last.outcome == "done" and not task.syncs):
        change_state(d, task, "completed", reason, cause)
