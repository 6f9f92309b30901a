"""Workers: one training process each; every start is a new incarnation.

The coordinator hands out incarnations from one counter for the whole cluster, so a number is
never used twice. A worker's id belongs to one living incarnation at a time: another process that
claims it is refused while that one lives. A registration that is repeated (its answer was lost) is
recognised by its nonce and answered again.

A worker is *lost* when the coordinator decides so, with the signal and the evidence recorded:
its process ended, its connection broke, its beats or its steps stopped, its agent went, or it did
not come back after a restart. It has *left* when it said so itself.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.barriers import LeftBarrier
from strata.core.events import Command, Event, Fact, applies
from strata.core.fencing import WorkerCommand
from strata.core.lifecycle import Lifecycle

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

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
        ("alive", "lost", "WorkerLost"),
        ("alive", "left", "it deregistered"),
        ("lost", "initializing", "it registered again"),
        ("left", "initializing", "it registered again"),
    ),
    group="alive",
    members=REPORTED,
)

MAX_DEAD = 10_000
"""Dead workers that are remembered; the log keeps them all."""

FORGOTTEN_AT_ONCE = 1_000
NAMED_WORKERS = 3


class Worker(Struct, gc=False):
    """A worker as the coordinator knows it. `rank` is -1 outside a generation; `ran` is the newest
    generation that this incarnation trained in, 0 for none. It has taken part in the task's
    steps from `first_step` to `last_step`, which is set when it is lost."""

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
    outcome: Outcome | Literal[""] = ""
    rank: int = -1
    ran: int = 0
    first_step: int = 0
    last_step: int = 0
    fenced: list[int] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it counts."""
        return self.state not in ("lost", "left")

    @property
    def done(self) -> bool:
        """Whether it left because its part is done; one that was preempted has left without."""
        return self.state == "left" and self.outcome == "done"


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
    syncs: bool = True  # whether it enters generations, or only meets


class WorkerRejected(Fact, frozen=True):
    """A process was not let in."""

    worker: str
    reason: str
    holder: int = 0


class WorkerStateChanged(Fact, frozen=True):
    """A worker said what it does now, or that it leaves; `finished` with its part of the task."""

    worker: str
    incarnation: int
    task: str
    before: WorkerState
    after: WorkerState
    reason: str = ""
    outcome: Outcome | Literal[""] = ""
    finished: bool = False
    step: int = -1
    save_failure: str = ""  # why the state in which its training ended is not saved


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


class RegisterWorker(Command, frozen=True):
    """A process wants to be a worker. If several register in one turn, `admit` is false, and
    `AdmitWorkers` takes them into their task together."""

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
    syncs: bool = True
    metadata: dict[str, str] = field(default_factory=dict)
    admit: bool = True


class AdmitWorkers(Command, frozen=True):
    """Workers that have registered are taken into their task, if it can begin or has room."""

    task: str
    workers: list[str]


class ReattachWorker(WorkerCommand, frozen=True):
    """A worker opens a session; `first` if it is the first one since it registered.

    `left` are the rounds of barriers that it was released from last.
    """

    first: bool = False
    left: tuple[LeftBarrier, ...] = ()
    reason: str = "its connection was made anew"


class ReportState(WorkerCommand, frozen=True):
    state: Reported
    reason: str = ""
    step: int = -1


class DeregisterWorker(WorkerCommand, frozen=True):
    outcome: Outcome = "done"
    reason: str = ""
    steps: int = 0
    save_failure: str = ""


class DeclareLost(Command, frozen=True):
    """`gave_up`: the worker itself said that it failed. `host_in_doubt`: the agent of its host is
    not heard either, so that its replacement is better placed on another host."""

    worker: str
    incarnation: int
    signal: Signal
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)
    gave_up: bool = False
    host_in_doubt: bool = False


def were_lost(workers: Sequence[str]) -> str:
    """That workers were lost, in words that stay short however many there are."""
    return _told(workers, "was lost", "were lost")


def joined(workers: Sequence[str]) -> str:
    """That workers joined, as short."""
    return _told(workers, "joined", "joined")


def _told(workers: Sequence[str], one: str, several: str) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} {one}"
    named = ", ".join(workers[:NAMED_WORKERS])
    more = f" and {len(workers) - NAMED_WORKERS} more" if len(workers) > NAMED_WORKERS else ""
    return f"{len(workers)} workers {several} ({named}{more})"


@applies(WorkerRegistered)
def _registered(state: "Cluster", fact: WorkerRegistered, event: Event) -> None:
    before = state.workers.pop(fact.worker, None)
    state.last_incarnation = fact.incarnation
    state.last_worker += before is None
    state.living_workers += 1
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
        fenced=before.fenced if before else [],
        metadata=fact.metadata,
    )
    task = state.tasks[fact.task]
    task.waiting.append(fact.worker)
    task.only_meets = not fact.syncs
    if fact.worker in task.vacant:
        task.vacant.remove(fact.worker)
    if len(state.workers) - state.living_workers > MAX_DEAD + FORGOTTEN_AT_ONCE:
        _forget_oldest_dead(state)


def _forget_oldest_dead(state: "Cluster") -> None:
    """Makes room, many at a time, since looking for them takes as long as the fleet is large.

    Incarnations come from one counter, so one who returns is still a new one.
    """
    dead = (
        worker.id
        for worker in state.workers.values()
        if not worker.alive
        and worker.rank < 0
        and worker.id not in state.tasks[worker.task].placements
        and worker.id not in state.tasks[worker.task].finished
    )
    for worker_id in list(islice(dead, FORGOTTEN_AT_ONCE)):
        del state.workers[worker_id]


@applies(WorkerRejected)
def _rejected(state: "Cluster", fact: WorkerRejected, event: Event) -> None:
    """Changes nothing: it is there to be read."""


@applies(WorkerReturned)
def _returned(state: "Cluster", fact: WorkerReturned, event: Event) -> None:
    state.workers[fact.worker].changed_ns = event.wall_ns


@applies(WorkerStateChanged)
def _state_changed(state: "Cluster", fact: WorkerStateChanged, event: Event) -> None:
    worker = state.workers[fact.worker]
    worker.state = fact.after
    worker.reason = fact.reason
    worker.outcome = fact.outcome
    worker.changed_ns = event.wall_ns
    if fact.after == "left":
        state.living_workers -= 1
        task = state.tasks[fact.task]
        if fact.finished:
            task.finished.append(fact.worker)
            task.finished_step = max(task.finished_step, fact.step)
        if fact.save_failure:
            task.save_failure = task.save_failure or fact.save_failure
        _forget_waiting(task, fact.worker)


@applies(WorkerLost)
def _lost(state: "Cluster", fact: WorkerLost, event: Event) -> None:
    worker = state.workers[fact.worker]
    state.living_workers -= 1
    worker.state = "lost"
    worker.reason = fact.reason
    worker.changed_ns = event.wall_ns
    task = state.tasks[fact.task]
    worker.last_step = task.committed
    _forget_waiting(task, fact.worker)
    if fact.worker in task.placements and fact.worker not in task.vacant:
        task.vacant.append(fact.worker)


def _forget_waiting(task: "Task", worker: str) -> None:
    """Removes a worker that is gone from those that wait for a seat or for storage."""
    if worker in task.waiting:
        task.waiting.remove(worker)
    if task.storage_wait is not None and worker in task.storage_wait.workers:
        task.storage_wait.workers.remove(worker)
