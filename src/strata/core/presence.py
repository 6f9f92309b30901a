"""Who is there: the rules by which workers come, return, report, leave and are lost."""

from collections.abc import Iterable

from msgspec import Struct, field

from strata.core.barriers import learn_release, require_possible
from strata.core.checkpoints import fail_without
from strata.core.decision import Decision
from strata.core.events import decides
from strata.core.generations import (
    all_finished,
    finish,
    join,
    leave,
    result_stands,
    with_save_failure,
)
from strata.core.leases import take_back_leases
from strata.core.limits import (
    require_entries,
    require_name,
    require_room,
    require_text,
    shortened,
)
from strata.core.retention import release_all
from strata.core.scheduling import handle_loss, place_waiting
from strata.core.task_choice import task_for
from strata.core.tasks import Task, change_state
from strata.core.workers import (
    NAMED_LOSSES,
    DeclareLost,
    DeregisterWorker,
    Outcome,
    ReattachWorker,
    RegisterWorker,
    ReportState,
    Worker,
    WorkerLost,
    WorkerRegistered,
    WorkerRejected,
    WorkerReturned,
    WorkerStateChanged,
    were_lost,
)
from strata.errors import AlreadyExists, Fenced, InvalidArgument, NotAllowedNow


@decides(RegisterWorker)
def register(d: Decision, c: RegisterWorker) -> Worker:
    """Lets a process in as a new incarnation, and into its task's generation if it can begin."""
    _check(c)
    holder = _holder(d, c)
    if holder is not None and c.nonce and holder.nonce == c.nonce:
        return holder
    if holder is not None:
        _reject(d, c, holder)
    worker_id = c.worker or _new_id(d)
    limit = d.state.rules.max_workers
    subject = f"worker {worker_id!r}"
    require_room(d, "max_workers", limit, d.state.living_workers, subject, c.cause)
    task = task_for(d, c)
    _require_wanted(d, c, task)
    registered = WorkerRegistered(
        worker=worker_id,
        incarnation=d.state.last_incarnation + 1,
        task=task.id,
        nonce=c.nonce,
        hostname=c.hostname,
        address=c.address,
        port=c.port,
        gpu_count=c.gpu_count,
        memory_bytes=c.memory_bytes,
        weight=c.weight,
        metadata=c.metadata,
        syncs=c.syncs,
    )
    join(d, task, f"worker {worker_id} joined", d.record(registered, c.cause))
    return d.state.workers[worker_id]


def _check(c: RegisterWorker) -> None:
    if c.worker:
        require_name("worker_id", c.worker)
    require_text(hostname=c.hostname, address=c.address, nonce=c.nonce)
    require_entries("metadata", c.metadata)
    if c.weight < 1:
        raise InvalidArgument(f"weight is {c.weight}", hint="it must be at least 1")


def _holder(d: Decision, c: RegisterWorker) -> Worker | None:
    """The living worker that has the id, or the nonce of a request that named no id."""
    if c.worker:
        found = d.state.workers.get(c.worker)
        return found if found is not None and found.alive else None
    if not c.nonce:
        return None
    same = (worker for worker in d.state.workers.values() if worker.nonce == c.nonce)
    return next((worker for worker in same if worker.alive), None)


def _new_id(d: Decision) -> str:
    number = d.state.last_worker + 1
    while f"worker-{number}" in d.state.workers:
        number += 1
    return f"worker-{number}"


def _require_wanted(d: Decision, c: RegisterWorker, task: Task) -> None:
    """A process that has finished, or whose slot belongs to a newer one, must not come back."""
    if c.worker in task.finished:
        raise NotAllowedNow(
            f"worker {c.worker!r} has finished its part of task {task.id!r}",
            hint="end this process",
        )
    placement = task.placements.get(c.worker)
    if placement is not None and c.start < placement.start:
        reason = f"start {placement.start} of it was ordered, this is start {c.start}"
        d.record(WorkerRejected(c.worker, reason), c.cause)
        raise Fenced(f"worker {c.worker!r} may not join: {reason}", hint="end this process")


def _reject(d: Decision, c: RegisterWorker, holder: Worker) -> None:
    reason = f"its id belongs to incarnation {holder.incarnation}, which is alive"
    d.record(WorkerRejected(holder.id, reason, holder.incarnation), c.cause)
    raise AlreadyExists(
        f"worker id {holder.id!r} is taken by a living worker on {holder.hostname or 'some host'}",
        hint="choose another id, or try again once that worker has ended",
    )


@decides(ReattachWorker)
def reattach(d: Decision, c: ReattachWorker) -> Worker:
    """A worker's new connection: the same incarnation goes on, unless it was declared lost."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    for left in c.left:
        require_possible(task, left)
    if not c.first:
        returned = WorkerReturned(c.worker, c.incarnation, worker.task, c.reason)
        cause = (d.record(returned, c.cause),)
        for left in c.left:
            learn_release(d, task, left, f"worker {c.worker}", cause)
    return worker


@decides(ReportState)
def report_state(d: Decision, c: ReportState) -> Worker:
    """Records what a worker does, when that changed."""
    worker = d.state.workers[c.worker]
    if worker.state != c.state:
        d.record(
            WorkerStateChanged(
                c.worker,
                c.incarnation,
                worker.task,
                worker.state,
                c.state,
                shortened(c.reason),
                step=c.step,
            ),
            c.cause,
        )
    return worker


@decides(DeregisterWorker)
def deregister(d: Decision, c: DeregisterWorker) -> None:
    """A worker leaves by itself: it has finished, was told to stop, or gives up."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.outcome == "failed":
        reason = shortened(c.reason) or "it gave up"
        gave_up = DeclareLost(
            worker=c.worker,
            incarnation=c.incarnation,
            signal="exit",
            reason=reason,
            gave_up=True,
            cause=c.cause,
        )
        lose(d, [gave_up])
        return
    reason = (
        shortened(c.reason) or {"done": "it finished", "stopped": "it was told to stop"}[c.outcome]
    )
    finished = c.outcome == "done" and task.syncs and worker.rank >= 0
    last = finished or task.state == "stopping"
    cause = d.record(
        WorkerStateChanged(
            worker=c.worker,
            incarnation=c.incarnation,
            task=task.id,
            before=worker.state,
            after="left",
            reason=reason,
            outcome=c.outcome,
            finished=finished,
            save_failure=shortened(c.save_failure) if last else "",
            step=c.steps if finished else -1,
        ),
        c.cause,
    )
    _let_go(d, task, c.worker, cause)
    if finished:
        fail_without(d, task, worker.rank, f"worker {c.worker} finished without saving it", cause)
        finish(d, task, c.steps, "every worker finished", cause)
    else:
        leave(d, task, [c.worker], f"worker {c.worker} left: {reason}", cause)
        _end_if_deserted(d, task, c.outcome, reason, cause)
    place_waiting(d, cause)


def _let_go(d: Decision, task: Task, worker: str, cause: str) -> None:
    """One who is gone holds no leases and reads no checkpoints."""
    take_back_leases(d, task, worker, cause)
    release_all(d, task, worker, cause)


def _end_if_deserted(d: Decision, task: Task, outcome: Outcome, why: str, cause: str) -> None:
    """A task that everyone has left is over, unless its workers are to be started again.

    One whose last worker was told to stop, and in which none has finished, is not completed.
    """
    if task.members or task.waiting or task.ended:
        return
    reason = "every worker left"
    told_to_stop = task.spec.external and outcome == "stopped" and not task.finished
    if told_to_stop and task.state != "stopping":
        reason = f"{reason}: {why}"
        cause = change_state(d, task, "stopping", reason, cause)
    if task.state == "stopping":
        change_state(d, task, "stopped", with_save_failure(task, reason), cause)
    elif task.spec.external or (outcome == "done" and not task.syncs):
        change_state(d, task, "completed", reason, cause)


class _Losses(Struct):
    """Workers of one task that are lost at the same time, and the facts that say so."""

    declared: list[DeclareLost] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    only_spares: bool = True
    doubtful_hosts: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[str]:
        """Their ids."""
        return [loss.worker for loss in self.declared]

    @property
    def reason(self) -> str:
        """Why they were lost: the first few reasons, each once."""
        reasons = dict.fromkeys(loss.reason for loss in self.declared)
        return "; ".join(list(reasons)[:NAMED_LOSSES])


def lose(d: Decision, losses: Iterable[DeclareLost]) -> None:
    """Declares workers lost together, so that each of their tasks changes its generation once.

    A worker that has already ended, or has registered again since, is left alone.
    """
    of_tasks: dict[str, _Losses] = {}
    for c in losses:
        worker = d.state.workers.get(c.worker)
        if worker is None or not worker.alive or worker.incarnation != c.incarnation:
            continue
        task = d.state.tasks[worker.task]
        spare = worker.rank < 0 and task.phase != "forming"
        fact = WorkerLost(worker.id, worker.incarnation, task.id, c.signal, c.reason, c.evidence)
        lost = d.record(fact, c.cause)
        _let_go(d, task, worker.id, lost)
        together = of_tasks.setdefault(task.id, _Losses())
        together.declared.append(c)
        together.facts.append(lost)
        together.only_spares &= spare
        placement = task.placements.get(worker.id)
        if c.host_in_doubt and placement is not None:
            together.doubtful_hosts.add(placement.agent)
    for task_id, together in of_tasks.items():
        _follow_losses(d, d.state.tasks[task_id], together)


def _follow_losses(d: Decision, task: Task, lost: _Losses) -> None:
    """Lets everything that depends on lost workers follow."""
    workers, causes = lost.workers, tuple(lost.facts)
    leave(d, task, workers, f"{were_lost(workers)}: {lost.reason}", causes)
    if (task.finished and all_finished(task)) or result_stands(d, task):
        _complete(d, task, lost, causes)
    elif not task.ended:
        spare, doubtful = lost.only_spares, lost.doubtful_hosts
        handle_loss(d, task, workers, lost.reason, causes, spare, doubtful)
    if task.ended:
        place_waiting(d, causes)


def _complete(d: Decision, task: Task, lost: _Losses, causes: tuple[str, ...]) -> None:
    """Ends a task whose other members have finished; a worker's own failure is not passed over."""
    gave_up = next((loss for loss in lost.declared if loss.gave_up), None)
    if gave_up is not None and task.state in ("starting", "running", "recovering"):
        others = ", ".join(task.finished)
        reason = f"worker {gave_up.worker} failed after {others} had finished: {gave_up.reason}"
        change_state(d, task, "failed", reason, causes, 1)
    else:
        steps = max(task.committed, task.finished_step)
        finish(d, task, steps, "the others had finished", causes)
