"""Workers: one training process each; every start is a new incarnation.

The coordinator hands out incarnations from one counter for the whole cluster, so a number is never
used twice. A worker id belongs to one living incarnation at a time: another process that claims it
is refused. A registration that is repeated because its answer was lost is recognised by its nonce
and answered again.

A worker is *lost* when the coordinator decides so, with the signal and the evidence recorded: its
process ended, its connection broke, its heartbeats or its steps stopped, its agent was lost, or it
did not return after a restart of the coordinator. It has *left* when it deregistered.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import field

from strata.core.barriers.barrier_rules import LeftBarrier
from strata.core.decision import applies
from strata.core.events import Command, Event, Fact
from strata.core.lifecycle import Lifecycle
from strata.core.state import REPORTED, Cluster, Outcome, Reported, Worker, WorkerState
from strata.core.task_spec import RetentionRequest
from strata.core.task_state import Task
from strata.core.workers.fencing import WorkerCommand

Signal: TypeAlias = Literal["exit", "connection", "heartbeat", "hang", "agent", "absent"]


LIFECYCLE = Lifecycle(
    name="worker",
    initial="initializing",
    moves=(
        ("alive", "lost", "WorkerLost"),
        ("alive", "left", "it deregistered"),
        ("lost", "initializing", "it registered again"),
        ("left", "initializing", "it registered again"),
    ),
    group="alive",
    members=REPORTED,
)

MAX_DEAD = 10_000
"""Dead workers that stay in the state; the log keeps them all."""

FORGOTTEN_AT_ONCE = 1_000
NAMED_WORKERS = 3


class WorkerRegistered(Fact, frozen=True, kw_only=True):
    """A process registered as a new incarnation of a worker."""

    sentence = "{worker} registered for {task}[ from {hostname}], incarnation {incarnation}"
    lane_mark = True

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
    syncs: bool = True  # whether it enters generations


class WorkerRejected(Fact, frozen=True, kw_only=True):
    """A registration was refused."""

    sentence = "{worker} was refused registration[: {reason}]"
    lane_mark = True

    worker: str
    reason: str
    holder: int = 0


class WorkerStateChanged(Fact, frozen=True, kw_only=True):
    """A worker reported a new state, or left; `finished` if its part of the task is done."""

    sentence = "{worker} went from {before} to {after}[: {reason}]"

    worker: str
    incarnation: int
    task: str
    before: WorkerState
    after: WorkerState
    reason: str = ""
    outcome: Outcome | Literal[""] = ""
    finished: bool = False
    step: int = -1
    save_failure: str = ""  # why the state at the end of training is not saved


class WorkerReturned(Fact, frozen=True, kw_only=True):
    """A worker reconnected in time, as the same incarnation."""

    sentence = "{worker} reconnected[: {reason}]"
    lane_mark = True

    worker: str
    incarnation: int
    task: str
    reason: str


class WorkerLost(Fact, frozen=True, kw_only=True):
    """A worker was declared lost: by which signal, on what evidence.

    `failure` is the kind of failure, to be compared with others (`core/tasks/restart_limit`): `exit
    code 1`, `signal 9`, `error` if the worker itself reported that it failed, else the same as
    `signal`.
    """

    sentence = "{worker} was declared lost ({signal})[: {reason}]"
    lane_mark = True

    worker: str
    incarnation: int
    task: str
    signal: Signal
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)
    failure: str = ""


class RegisterWorker(Command, frozen=True):
    """A process registers as a worker. `retention` is what its script asks for. If several
    register in one turn, `admit` is false, and `AdmitWorkers` adds them to their task together."""

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
    retention: RetentionRequest = RetentionRequest()
    admit: bool = True


class AdmitWorkers(Command, frozen=True):
    """Add registered workers to their task, if it can start or has room."""

    task: str
    workers: list[str]


class ReattachWorker(WorkerCommand, frozen=True):
    """A worker opens a session; `first` if it is the first since the worker registered.

    `left` are the barrier rounds that it was released from last.
    """

    first: bool = False
    left: tuple[LeftBarrier, ...] = ()
    reason: str = "it opened a new connection"


class ReportState(WorkerCommand, frozen=True):
    state: Reported
    reason: str = ""
    step: int = -1


class DeregisterWorker(WorkerCommand, frozen=True):
    outcome: Outcome = "done"
    reason: str = ""
    steps: int = 0
    save_failure: str = ""
    refused: bool = False


class DeclareLost(Command, frozen=True):
    """`gave_up`: the worker itself reported that it failed. `refused`: before its first step, with
    an error that the script gets again at every start. `host_in_doubt`: its host's agent is
    silent too, so that its replacement is better placed on another host. `failure`: as in
    `WorkerLost`, if that is more than the signal. `gpus`: those of its process, if it ended."""

    worker: str
    incarnation: int
    signal: Signal
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)
    gave_up: bool = False
    refused: bool = False
    host_in_doubt: bool = False
    failure: str = ""
    gpus: tuple[str, ...] = ()


def were_lost(workers: Sequence[str]) -> str:
    """The sentence that workers were lost, short however many there are."""
    return _sentence(workers, "was lost", "were lost")


def joined(workers: Sequence[str]) -> str:
    """The sentence that workers joined, short however many there are."""
    return _sentence(workers, "joined", "joined")


def _sentence(workers: Sequence[str], one: str, several: str) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} {one}"
    named = ", ".join(workers[:NAMED_WORKERS])
    more = f" and {len(workers) - NAMED_WORKERS} more" if len(workers) > NAMED_WORKERS else ""
    return f"{len(workers)} workers {several} ({named}{more})"


@applies(WorkerRegistered)
def _registered(state: Cluster, fact: WorkerRegistered, event: Event) -> None:
    before = state.workers.pop(fact.worker, None)
    state.last_incarnation = fact.incarnation
    state.last_worker += before is None
    state.living_workers += 1
    state.workers[fact.worker] = Worker(
        id=fact.worker,
        incarnation=fact.incarnation,
        task=fact.task,
        nonce=fact.nonce,
        hostname=fact.hostname,
        address=fact.address,
        port=fact.port,
        gpu_count=fact.gpu_count,
        memory_bytes=fact.memory_bytes,
        weight=fact.weight,
        registered_ns=event.wall_ns,
        changed_ns=event.wall_ns,
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


def _forget_oldest_dead(state: Cluster) -> None:
    """Remove the oldest dead workers from the state, many at a time, because finding them scans all
    workers.

    Incarnations come from one counter, so a worker that returns still gets a new one.
    """
    dead = (
        worker.id
        for worker in state.workers.values()
        if not worker.alive
        and worker.rank < 0
        and worker.id not in state.tasks[worker.task].placements
        and worker.id not in state.tasks[worker.task].released
        and worker.id not in state.tasks[worker.task].finished
    )
    for worker_id in list(islice(dead, FORGOTTEN_AT_ONCE)):
        del state.workers[worker_id]


@applies(WorkerRejected)
def _rejected(state: Cluster, fact: WorkerRejected, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@applies(WorkerReturned)
def _returned(state: Cluster, fact: WorkerReturned, event: Event) -> None:
    state.workers[fact.worker].changed_ns = event.wall_ns


@applies(WorkerStateChanged)
def _state_changed(state: Cluster, fact: WorkerStateChanged, event: Event) -> None:
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
        _forget_released(state, task, fact.worker)


@applies(WorkerLost)
def _lost(state: Cluster, fact: WorkerLost, event: Event) -> None:
    worker = state.workers[fact.worker]
    state.living_workers -= 1
    worker.state = "lost"
    worker.reason = fact.reason
    worker.failure = fact.failure
    worker.changed_ns = event.wall_ns
    task = state.tasks[fact.task]
    worker.last_step = task.committed
    _forget_waiting(task, fact.worker)
    if fact.worker in task.placements and fact.worker not in task.vacant:
        task.vacant.append(fact.worker)


def _forget_released(state: Cluster, task: Task, worker: str) -> None:
    """Remove a released worker of a lost host, which will not report the end of its process."""
    placement = task.released.get(worker)
    if placement is not None and not state.agents[placement.agent].up:
        del task.released[worker]


def _forget_waiting(task: Task, worker: str) -> None:
    """Remove a lost worker from those that wait for a rank or for storage."""
    if worker in task.waiting:
        task.waiting.remove(worker)
    if task.storage_wait is not None and worker in task.storage_wait.workers:
        task.storage_wait.workers.remove(worker)
