"""Workers: one training process each; every start is a new incarnation.

The coordinator hands out incarnations from one counter for the whole cluster, so a number is
never used twice. A worker's id belongs to one living incarnation at a time: another process that
claims it is refused while that one lives. A registration that is repeated (its answer was lost) is
recognised by its nonce and answered again.

A worker is *lost* when the coordinator decides so, with the signal and the evidence recorded:
its process ended, its connection broke, its beats or its steps stopped, its agent went, or it did
not come back after a restart. It has *left* when it said so itself.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.fencing import living
from strata.core.generations import finish, join, leave
from strata.core.lifecycle import Lifecycle
from strata.core.scheduling import group_for, handle_loss, place_waiting
from strata.core.tasks import Task, TaskState, change_state
from strata.errors import AlreadyExists, Fenced, InvalidArgument, LimitExceeded, NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster

Reported: TypeAlias = Literal[
    "initializing", "idle", "loading_data", "training", "checkpointing", "recovering", "error"
]
WorkerState: TypeAlias = Literal[
    "initializing",
    "idle",
    "loading_data",
    "training",
    "checkpointing",
    "recovering",
    "error",
    "lost",
    "left",
]
Signal: TypeAlias = Literal["exit", "connection", "heartbeat", "hang", "agent", "absent"]
Outcome: TypeAlias = Literal["done", "stopped", "failed"]

REPORTED: tuple[Reported, ...] = (
    "initializing",
    "idle",
    "loading_data",
    "training",
    "checkpointing",
    "recovering",
    "error",
)

LIFECYCLE = Lifecycle(
    "worker",
    "initializing",
    (
        *((a, b, "reported") for a in REPORTED for b in REPORTED if a != b),
        *((a, "lost", "WorkerLost") for a in REPORTED),
        *((a, "left", "deregistered") for a in REPORTED),
        ("lost", "initializing", "registered again"),
        ("left", "initializing", "registered again"),
    ),
)

MAX_ID_LENGTH = 200


class Worker(Struct):
    """A worker as the coordinator knows it. `rank` is -1 outside a generation."""

    id: str
    incarnation: int
    task: str
    nonce: str
    hostname: str
    address: str
    port: int
    gpu_count: int
    memory_bytes: int
    weight: int
    registered_ns: int
    changed_ns: int
    state: WorkerState = "initializing"
    reason: str = ""
    rank: int = -1
    fenced: int = 0
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it counts."""
        return self.state not in ("lost", "left")


class WorkerRegistered(Fact, frozen=True):
    """A process joined as a new incarnation of a worker."""

    worker: str
    incarnation: int
    task: str
    nonce: str = ""
    hostname: str = ""
    address: str = ""
    port: int = 0
    gpu_count: int = 0
    memory_bytes: int = 0
    weight: int = 1
    metadata: dict[str, str] = field(default_factory=dict)


class WorkerRejected(Fact, frozen=True):
    """A process was not let in."""

    worker: str
    reason: str
    holder: int = 0


class WorkerStateChanged(Fact, frozen=True):
    """A worker said what it does now, or that it leaves."""

    worker: str
    incarnation: int
    task: str
    before: WorkerState
    after: WorkerState
    reason: str = ""
    outcome: Outcome | Literal[""] = ""
    step: int = -1


class WorkerReturned(Fact, frozen=True):
    """A worker that was out of sight came back in time, as the same incarnation."""

    worker: str
    incarnation: int
    task: str
    reason: str


class WorkerLost(Fact, frozen=True):
    """A worker was declared lost: by which signal, on what evidence."""

    worker: str
    incarnation: int
    task: str
    signal: Signal
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)


class LimitHit(Fact, frozen=True):
    """Something was refused because a limit was reached."""

    limit: str
    value: int
    reason: str


class RegisterWorker(Command, frozen=True):
    worker: str = ""
    task: str = ""
    nonce: str = ""
    hostname: str = ""
    address: str = ""
    port: int = 0
    gpu_count: int = 0
    memory_bytes: int = 0
    weight: int = 1
    world_size: int = 0
    start: int = 0
    syncs: bool = False
    metadata: dict[str, str] = field(default_factory=dict)


class ReattachWorker(Command, frozen=True):
    worker: str
    incarnation: int
    reason: str = "its connection was made anew"


class ReportState(Command, frozen=True):
    worker: str
    incarnation: int
    state: Reported
    reason: str = ""
    step: int = -1


class DeregisterWorker(Command, frozen=True):
    worker: str
    incarnation: int
    outcome: Outcome = "done"
    reason: str = ""
    steps: int = 0


class DeclareLost(Command, frozen=True):
    worker: str
    incarnation: int
    signal: Signal
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)


@applies(WorkerRegistered)
def _registered(state: "Cluster", fact: WorkerRegistered, event: Event) -> None:
    before = state.workers.get(fact.worker)
    state.last_incarnation = fact.incarnation
    state.last_worker += before is None
    state.workers[fact.worker] = Worker(
        fact.worker,
        fact.incarnation,
        fact.task,
        fact.nonce,
        fact.hostname,
        fact.address,
        fact.port,
        fact.gpu_count,
        fact.memory_bytes,
        fact.weight,
        event.wall_ns,
        event.wall_ns,
        fenced=before.fenced if before else 0,
        metadata=fact.metadata,
    )
    task = state.tasks[fact.task]
    task.waiting.append(fact.worker)
    if fact.worker in task.vacant:
        task.vacant.remove(fact.worker)


@applies(WorkerRejected)
def _rejected(state: "Cluster", fact: WorkerRejected, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(LimitHit)
def _limit_hit(state: "Cluster", fact: LimitHit, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(WorkerReturned)
def _returned(state: "Cluster", fact: WorkerReturned, event: Event) -> None:
    state.workers[fact.worker].changed_ns = event.wall_ns


@applies(WorkerStateChanged)
def _state_changed(state: "Cluster", fact: WorkerStateChanged, event: Event) -> None:
    worker = state.workers[fact.worker]
    worker.state = fact.after
    worker.reason = fact.reason
    worker.changed_ns = event.wall_ns
    if fact.after == "left":
        task = state.tasks[fact.task]
        if fact.outcome == "done":
            task.finished.append(fact.worker)
        if fact.worker in task.waiting:
            task.waiting.remove(fact.worker)


@applies(WorkerLost)
def _lost(state: "Cluster", fact: WorkerLost, event: Event) -> None:
    worker = state.workers[fact.worker]
    worker.state = "lost"
    worker.reason = fact.reason
    worker.changed_ns = event.wall_ns
    task = state.tasks[fact.task]
    if fact.worker in task.waiting:
        task.waiting.remove(fact.worker)
    if fact.worker in task.placements and fact.worker not in task.vacant:
        task.vacant.append(fact.worker)


@decides(RegisterWorker)
def register(d: Decision, c: RegisterWorker) -> Worker:
    """Lets a process in as a new incarnation, and into its task's generation if it can begin."""
    if len(c.worker) > MAX_ID_LENGTH or c.weight < 1:
        raise InvalidArgument(
            "worker_id is too long" if c.weight >= 1 else f"weight is {c.weight}",
            hint=f"at most {MAX_ID_LENGTH} characters, and a weight of at least 1",
        )
    worker_id = c.worker or f"worker-{d.state.last_worker + 1}"
    holder = d.state.workers.get(worker_id)
    if holder is not None and holder.alive:
        if c.nonce and holder.nonce == c.nonce:
            return holder
        _reject(d, c, holder)
    living_workers = sum(worker.alive for worker in d.state.workers.values())
    if living_workers >= d.state.rules.max_workers:
        limit = d.state.rules.max_workers
        d.record(LimitHit("max_workers", limit, f"worker {worker_id!r} was refused"), c.cause)
        raise LimitExceeded(
            f"{limit} workers are registered", hint="raise max_workers, or let some leave"
        )
    task = group_for(d, c.task, c.world_size, c.syncs, c.cause)
    _require_wanted(d, c, task)
    registered = WorkerRegistered(
        worker_id,
        d.state.last_incarnation + 1,
        task.id,
        c.nonce,
        c.hostname,
        c.address,
        c.port,
        c.gpu_count,
        c.memory_bytes,
        c.weight,
        c.metadata,
    )
    join(d, task, f"worker {worker_id} joined", d.record(registered, c.cause))
    return d.state.workers[worker_id]


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
    worker = living(d, c.worker, c.incarnation)
    d.record(WorkerReturned(c.worker, c.incarnation, worker.task, c.reason), c.cause)
    return worker


@decides(ReportState)
def report_state(d: Decision, c: ReportState) -> Worker:
    """Records what a worker does, when that changed."""
    worker = living(d, c.worker, c.incarnation)
    if worker.state != c.state:
        d.record(
            WorkerStateChanged(
                c.worker, c.incarnation, worker.task, worker.state, c.state, c.reason, step=c.step
            ),
            c.cause,
        )
    return worker


@decides(DeregisterWorker)
def deregister(d: Decision, c: DeregisterWorker) -> None:
    """A worker leaves by itself: it has finished, was told to stop, or gives up."""
    worker = living(d, c.worker, c.incarnation)
    task = d.state.tasks[worker.task]
    if c.outcome == "failed":
        reason = c.reason or "it gave up"
        lose(
            d,
            worker,
            DeclareLost(
                worker=c.worker,
                incarnation=c.incarnation,
                signal="exit",
                reason=reason,
                cause=c.cause,
            ),
        )
        return
    reason = c.reason or {"done": "it finished", "stopped": "it was told to stop"}[c.outcome]
    cause = d.record(
        WorkerStateChanged(
            c.worker, c.incarnation, task.id, worker.state, "left", reason, c.outcome
        ),
        c.cause,
    )
    if c.outcome == "done" and task.spec.syncs:
        finish(d, task, c.steps, "every worker finished", cause)
    else:
        leave(d, task, c.worker, f"worker {c.worker} left: {reason}", cause)
        if not task.members and not task.waiting and not task.ended:
            over: TaskState = "stopped" if task.state == "stopping" else "completed"
            if over == "stopped" or task.spec.external:
                change_state(d, task, over, "every worker left", cause)
    place_waiting(d, cause)


@decides(DeclareLost)
def declare_lost(d: Decision, c: DeclareLost) -> None:
    """Takes a worker out; one that has already ended, or has returned since, is left alone."""
    worker = d.state.workers.get(c.worker)
    if worker is not None and worker.alive and worker.incarnation == c.incarnation:
        lose(d, worker, c)


def lose(d: Decision, worker: Worker, c: DeclareLost) -> None:
    """Declares a living worker lost, and lets everything that depends on it follow."""
    task = d.state.tasks[worker.task]
    lost = d.record(
        WorkerLost(worker.id, worker.incarnation, task.id, c.signal, c.reason, c.evidence), c.cause
    )
    if worker.id in task.finished:
        return
    leave(d, task, worker.id, f"worker {worker.id} was lost: {c.reason}", lost)
    if task.finished and set(task.members) <= set(task.finished):
        finish(d, task, task.committed, "the others had finished", lost)
    elif not task.ended:
        handle_loss(d, task, worker.id, c.reason, lost)
    if task.ended:
        place_waiting(d, lost)
