"""Rules by which workers register, reconnect and report their state; `departures` has the rest."""

from strata.core.barriers.barrier_rules import record_missing_release, require_possible
from strata.core.checkpoints.checkpoint_retention import follow_script
from strata.core.checkpoints.keep_reasons import require_retention
from strata.core.decision import Decision, decides
from strata.core.generations.generation_members import join
from strata.core.limits import (
    require_entries,
    require_name,
    require_room,
    require_text,
    shortened,
)
from strata.core.state import Worker
from strata.core.task_spec import Retention
from strata.core.task_state import Task
from strata.core.tasks.task_choice import task_for
from strata.core.workers.worker_lifecycle import (
    AdmitWorkers,
    ReattachWorker,
    RegisterWorker,
    ReportState,
    WorkerRegistered,
    WorkerRejected,
    WorkerReturned,
    WorkerStateChanged,
    joined,
)
from strata.errors import AlreadyExists, Fenced, InvalidArgument, NotAllowedNow, TaskEnded


@decides(RegisterWorker)
def register(d: Decision, c: RegisterWorker) -> Worker:
    """Register a process as a new incarnation, and add it to its task's generation if that can
    start."""
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
    cause = d.record(registered, c.cause)
    follow_script(d, task, worker_id, c.retention, cause)
    if c.admit:
        join(d, task, joined([worker_id]), cause)
    return d.state.workers[worker_id]


@decides(AdmitWorkers)
def admit(d: Decision, c: AdmitWorkers) -> None:
    """Add workers that registered in the same turn in one new generation."""
    task = d.state.task(c.task)
    if not task.ended:
        join(d, task, joined(c.workers), c.cause)


def _check(c: RegisterWorker) -> None:
    if c.worker:
        require_name("worker_id", c.worker)
    require_text(hostname=c.hostname, address=c.address, nonce=c.nonce)
    require_entries("metadata", c.metadata)
    require_retention(c.retention.over(Retention(keep_count=1)))
    if c.weight < 1:
        raise InvalidArgument(f"weight is {c.weight}", hint="it must be at least 1")


def _holder(d: Decision, c: RegisterWorker) -> Worker | None:
    """The living worker with the requested id, or with the nonce if the request names no id."""
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
    """Refuse a process that has finished, was released, or was replaced by a newer start."""
    if c.worker in task.finished:
        raise NotAllowedNow(
            f"worker {c.worker!r} has finished its part of task {task.id!r}",
            hint="end this process",
        )
    placement = task.placements.get(c.worker)
    if placement is None and c.start and not task.spec.external:
        raise TaskEnded(
            f"task {task.id!r} has released worker {c.worker!r}", hint="end this process"
        )
    if placement is not None and c.start < placement.start:
        reason = f"start {placement.start} has replaced it, and this process is start {c.start}"
        d.record(WorkerRejected(worker=c.worker, reason=reason), c.cause)
        raise Fenced(f"worker {c.worker!r} may not join: {reason}", hint="end this process")


def _reject(d: Decision, c: RegisterWorker, holder: Worker) -> None:
    reason = f"incarnation {holder.incarnation}, which is alive, has this id"
    d.record(WorkerRejected(worker=holder.id, reason=reason, holder=holder.incarnation), c.cause)
    raise AlreadyExists(
        f"worker id {holder.id!r} is taken by a living worker on {holder.hostname or 'a host'}",
        hint="choose another id, or try again once that worker has ended",
    )


@decides(ReattachWorker)
def reattach(d: Decision, c: ReattachWorker) -> Worker:
    """Accept a worker's new connection: the same incarnation continues unless it was declared
    lost."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    for left in c.left:
        require_possible(task, left)
    if not c.first:
        returned = WorkerReturned(
            worker=c.worker, incarnation=c.incarnation, task=worker.task, reason=c.reason
        )
        cause = (d.record(returned, c.cause),)
        for left in c.left:
            record_missing_release(d, task, left, f"worker {c.worker}", cause)
    return worker


@decides(ReportState)
def report_state(d: Decision, c: ReportState) -> Worker:
    """Record a worker's state if it changed."""
    worker = d.state.workers[c.worker]
    if worker.state != c.state:
        d.record(
            WorkerStateChanged(
                worker=c.worker,
                incarnation=c.incarnation,
                task=worker.task,
                before=worker.state,
                after=c.state,
                reason=shortened(c.reason),
                step=c.step,
            ),
            c.cause,
        )
    return worker
