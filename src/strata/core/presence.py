"""Who is there: the rules by which workers come, return, report, leave and are lost."""

from strata.core.checkpoints import fail_without
from strata.core.decision import Decision
from strata.core.events import decides
from strata.core.fencing import living
from strata.core.generations import finish, join, leave, result_stands, with_save_failure
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
    worker = living(d, c.worker, c.incarnation, c.cause)
    d.record(WorkerReturned(c.worker, c.incarnation, worker.task, c.reason), c.cause)
    return worker


@decides(ReportState)
def report_state(d: Decision, c: ReportState) -> Worker:
    """Records what a worker does, when that changed."""
    worker = living(d, c.worker, c.incarnation, c.cause)
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
    worker = living(d, c.worker, c.incarnation, c.cause)
    task = d.state.tasks[worker.task]
    if c.outcome == "failed":
        reason = shortened(c.reason) or "it gave up"
        lose(
            d,
            worker,
            DeclareLost(
                worker=c.worker,
                incarnation=c.incarnation,
                signal="exit",
                reason=reason,
                gave_up=True,
                cause=c.cause,
            ),
        )
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
        leave(d, task, c.worker, f"worker {c.worker} left: {reason}", cause)
        _end_if_deserted(d, task, c.outcome, cause)
    place_waiting(d, cause)


def _let_go(d: Decision, task: Task, worker: str, cause: str) -> None:
    """One who is gone holds no leases and reads no checkpoints."""
    take_back_leases(d, task, worker, cause)
    release_all(d, task, worker, cause)


def _end_if_deserted(d: Decision, task: Task, outcome: Outcome, cause: str) -> None:
    """A task that everyone has left is over, unless its workers are to be started again.

    One whose last worker was told to stop, and in which none has finished, is not completed.
    """
    if task.members or task.waiting or task.ended:
        return
    told_to_stop = task.spec.external and outcome == "stopped" and not task.finished
    if told_to_stop and task.state != "stopping":
        cause = change_state(d, task, "stopping", "its workers were told to stop", cause)
    if task.state == "stopping":
        change_state(d, task, "stopped", with_save_failure(task, "every worker left"), cause)
    elif task.spec.external or (outcome == "done" and not task.syncs):
        change_state(d, task, "completed", "every worker left", cause)


@decides(DeclareLost)
def declare_lost(d: Decision, c: DeclareLost) -> None:
    """Takes a worker out; one that has already ended, or has returned since, is left alone."""
    worker = d.state.workers.get(c.worker)
    if worker is not None and worker.alive and worker.incarnation == c.incarnation:
        lose(d, worker, c)


def _complete(d: Decision, task: Task, worker: Worker, c: DeclareLost, cause: str) -> None:
    """Ends a task whose other members have finished; a worker's own failure is not passed over."""
    if c.gave_up and task.state in ("starting", "running", "recovering"):
        others = ", ".join(task.finished)
        reason = f"worker {worker.id} failed after {others} had finished: {c.reason}"
        change_state(d, task, "failed", reason, cause, 1)
    else:
        steps = max(task.committed, task.finished_step)
        finish(d, task, steps, "the others had finished", cause)


def lose(d: Decision, worker: Worker, c: DeclareLost) -> None:
    """Declares a living worker lost, and lets everything that depends on it follow."""
    task = d.state.tasks[worker.task]
    spare = worker.rank < 0 and task.phase != "forming"
    lost = d.record(
        WorkerLost(worker.id, worker.incarnation, task.id, c.signal, c.reason, c.evidence), c.cause
    )
    _let_go(d, task, worker.id, lost)
    leave(d, task, worker.id, f"worker {worker.id} was lost: {c.reason}", lost)
    finished = task.finished and set(task.members) <= set(task.finished)
    if finished or result_stands(d, task):
        _complete(d, task, worker, c, lost)
    elif not task.ended:
        handle_loss(d, task, worker.id, c.reason, lost, spare)
    if task.ended:
        place_waiting(d, lost)
