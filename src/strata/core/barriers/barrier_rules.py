"""Barriers: named points at which all workers of a generation wait for each other.

A barrier is released when every expected worker has arrived. Each worker counts once; workers
outside the generation and dead workers do not count. The expected workers are the members of the
present generation: when it changes, arrivals of former members are dropped and the barrier is
checked again. It fails, naming the missing workers, on a timeout or when too few workers are left
for the task to continue.

A barrier's name can be used many times; each use is a *round*. An arrival carries the worker's
request number, counted within its incarnation: the same number again is a resend after a lost
answer, a higher one asks for the next round. So no worker is released twice or waits again after
its release.

A release is sent before it is on disk. If the coordinator dies in between, some workers have left
a round that the log shows as waiting or does not contain. So a worker that opens a new session
lists the rounds it left last, and the missing release is recorded then; `told` is the round number
that those workers got. A worker that did not receive the release arrives again with its generation
and the round it left before, which match it to that release.
"""

from typing import TypeGuard

from msgspec import Struct

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.lifecycle import Lifecycle
from strata.core.limits import require_name
from strata.core.state import Cluster
from strata.core.task_state import Barrier, Task
from strata.core.workers.fencing import WorkerCommand
from strata.errors import InvalidArgument, NotAllowedNow

LIFECYCLE = Lifecycle(
    name="barrier",
    initial="waiting",
    moves=(("waiting", "released", "BarrierReleased"), ("waiting", "failed", "BarrierFailed")),
)

MAX_BARRIERS = 256
"""Barriers a task remembers; the oldest that has ended makes room."""

MAX_LEFT = 16
"""Barrier rounds that a worker remembers having left; at most one per thread can be unstored."""

MAX_UNSTORED = 65_536
"""Rounds that may be released in one turn before they are stored."""


class BarrierOpened(Fact, frozen=True, kw_only=True):
    """The first worker arrived at a barrier; `expected` workers must arrive."""

    sentence = "barrier {barrier} opened for {expected:worker}"

    task: str
    barrier: str
    round: int
    step: int
    generation: int
    expected: int


class BarrierArrived(Fact, frozen=True, kw_only=True):
    """A worker arrived at a barrier."""

    sentence = "{worker} arrived at barrier {barrier}"

    task: str
    barrier: str
    round: int
    worker: str
    incarnation: int
    request: int


class BarrierReleased(Fact, frozen=True, kw_only=True):
    """Every expected worker arrived, and all were released.

    `told` is set if workers left the round before its release was stored: the round number that
    they were given.
    """

    sentence = "barrier {barrier} released {participants:worker}[: {reason}]"

    task: str
    barrier: str
    round: int
    generation: int
    participants: int
    reason: str
    told: int = 0


class BarrierFailed(Fact, frozen=True, kw_only=True):
    """The barrier failed; `missing` are the workers that had not arrived."""

    sentence = "barrier {barrier} failed[ (missing: {missing})][: {reason}]"

    task: str
    barrier: str
    round: int
    missing: list[str]
    reason: str


class LeftBarrier(Struct, frozen=True, gc=False):
    """A barrier round that a worker was released from."""

    barrier: str
    round: int
    generation: int
    participants: int
    step: int = 0


class ArriveAtBarrier(WorkerCommand, frozen=True):
    """`generation` is that in which the worker arrived, `after` the round of this barrier that it
    left last; 0 if not given."""

    barrier: str
    request: int
    step: int = 0
    generation: int = 0
    after: int = 0


class NoteRelease(Command, frozen=True):
    """A release that was sent and then not stored; `arrived` are the workers that were released."""

    task: str
    left: LeftBarrier
    arrived: dict[str, tuple[int, int]]


class FailBarrier(Command, frozen=True):
    task: str
    barrier: str
    round: int
    reason: str


@applies(BarrierOpened)
def _opened(state: Cluster, fact: BarrierOpened, event: Event) -> None:
    barriers = state.tasks[fact.task].barriers
    last = barriers.pop(fact.barrier, None)
    if last is not None:
        last.last = None
    if len(barriers) >= MAX_BARRIERS:
        ended = next((name for name, b in barriers.items() if b.state != "waiting"), None)
        if ended is not None:
            del barriers[ended]
    barriers[fact.barrier] = Barrier(
        name=fact.barrier,
        round=fact.round,
        state="waiting",
        step=fact.step,
        opened_ns=event.wall_ns,
        generation=fact.generation,
        last=last,
    )
    state.tasks[fact.task].last_round = fact.round


@applies(BarrierArrived)
def _arrived(state: Cluster, fact: BarrierArrived, event: Event) -> None:
    arrived = state.tasks[fact.task].barriers[fact.barrier].arrived
    arrived[fact.worker] = (fact.incarnation, fact.request)


@applies(BarrierReleased)
def _released(state: Cluster, fact: BarrierReleased, event: Event) -> None:
    barrier = state.tasks[fact.task].barriers[fact.barrier]
    barrier.state = "released"
    barrier.ended_ns = event.wall_ns
    barrier.reason = fact.reason
    barrier.generation = fact.generation
    if fact.told:
        barrier.participants, barrier.told = fact.participants, fact.told


@applies(BarrierFailed)
def _failed(state: Cluster, fact: BarrierFailed, event: Event) -> None:
    barrier = state.tasks[fact.task].barriers[fact.barrier]
    barrier.state = "failed"
    barrier.ended_ns = event.wall_ns
    barrier.reason = fact.reason
    barrier.missing = fact.missing


@decides(ArriveAtBarrier)
def arrive(d: Decision, c: ArriveAtBarrier) -> Barrier:
    """Record a worker's arrival; return its round, which may be released already."""
    require_name("barrier_id", c.barrier)
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if worker.rank < 0:
        raise NotAllowedNow(
            f"worker {c.worker!r} is not in generation {task.generation} of task {task.id!r}",
            hint="wait until the task's generation includes it, then arrive again",
        )
    barrier = task.barriers.get(c.barrier)
    for known in (barrier, barrier.last if barrier else None):
        if known is not None and (c.incarnation, c.request) <= known.arrived.get(c.worker, (0, 0)):
            return known
    if barrier is not None and _was_released(barrier.ended, c):
        return barrier.ended
    cause = c.cause
    if barrier is None or barrier.state != "waiting":
        cause = (_open(d, task, c),)
        barrier = task.barriers[c.barrier]
    cause = (_count(d, task, barrier, c.worker, (c.incarnation, c.request), cause),)
    release_if_complete(d, task, barrier, "everyone arrived", cause)
    return barrier


def _count(
    d: Decision,
    task: Task,
    barrier: Barrier,
    worker: str,
    sender: tuple[int, int],
    cause: tuple[str, ...],
) -> str:
    """Record an arrival; `sender` is the worker's incarnation and its request."""
    arrived = BarrierArrived(
        task=task.id,
        barrier=barrier.name,
        round=barrier.round,
        worker=worker,
        incarnation=sender[0],
        request=sender[1],
    )
    return d.record(arrived, cause)


def _was_released(round: Barrier | None, c: ArriveAtBarrier) -> TypeGuard[Barrier]:
    """Whether a round that workers reported is the one that this arrival belongs to: the worker was
    a member when it was released, and has not left it."""
    if round is None or not round.told or round.state != "released":
        return False
    return 0 < c.generation <= round.generation and c.after < min(round.round, round.told)


def require_possible(task: Task, left: LeftBarrier) -> None:
    """Refuse a round that this task cannot have released."""
    require_name("barrier_id", left.barrier)
    newest = task.last_round + MAX_UNSTORED
    if not (0 < left.round <= newest and 0 < left.generation <= task.generation):
        raise InvalidArgument(
            f"round {left.round} of barrier {left.barrier!r} in generation {left.generation} was "
            f"never released in task {task.id!r}",
            hint="list only rounds that the coordinator released this worker from",
        )


def record_missing_release(
    d: Decision,
    task: Task,
    left: LeftBarrier,
    who: str,
    cause: tuple[str, ...],
    arrived: dict[str, tuple[int, int]] | None = None,
) -> Barrier | None:
    """Record a release that workers report and the log lacks, with the arrivals that are known.
    Return the round if a release was recorded."""
    barrier = task.barriers.get(left.barrier)
    ended = barrier.ended if barrier is not None else None
    if ended is not None and left.round <= max(ended.round, ended.told):
        return None
    causes = cause
    if barrier is None or barrier.state != "waiting":
        round = max(task.last_round + 1, left.round)
        opened = BarrierOpened(
            task=task.id,
            barrier=left.barrier,
            round=round,
            step=left.step,
            generation=left.generation,
            expected=left.participants,
        )
        causes = (d.record(opened, cause),)
        barrier = task.barriers[left.barrier]
    for worker, sender in (arrived or {}).items():
        if worker not in barrier.arrived:
            _count(d, task, barrier, worker, sender, causes)
    released = BarrierReleased(
        task=task.id,
        barrier=left.barrier,
        round=barrier.round,
        generation=left.generation,
        participants=left.participants,
        reason=f"{who} left it before its release was stored",
        told=left.round,
    )
    d.record(released, causes)
    return barrier


@decides(NoteRelease)
def note_release(d: Decision, c: NoteRelease) -> Barrier | None:
    """Record a release that this coordinator sent and could not store."""
    task = d.state.tasks.get(c.task)
    if task is None:
        return None
    require_possible(task, c.left)
    return record_missing_release(d, task, c.left, "its workers", c.cause, c.arrived)


def _open(d: Decision, task: Task, c: ArriveAtBarrier) -> str:
    if len(task.barriers) >= MAX_BARRIERS and all(
        b.state == "waiting" for b in task.barriers.values()
    ):
        raise NotAllowedNow(
            f"task {task.id!r} has {MAX_BARRIERS} waiting barriers already",
            hint="use fewer barriers at the same time",
        )
    opened = BarrierOpened(
        task=task.id,
        barrier=c.barrier,
        round=task.last_round + 1,
        step=c.step,
        generation=task.generation,
        expected=len(task.members),
    )
    return d.record(opened, c.cause)


def release_if_complete(
    d: Decision, task: Task, barrier: Barrier, reason: str, cause: str | tuple[str, ...]
) -> None:
    """Release a waiting barrier once every member of the generation has arrived."""
    if barrier.state != "waiting" or not task.members:
        return
    # Counting first, because listing the missing workers takes time in proportion to the group.
    if len(barrier.arrived) + len(task.finished) < len(task.members):
        return
    if missing_workers(task, barrier):
        return
    released = BarrierReleased(
        task=task.id,
        barrier=barrier.name,
        round=barrier.round,
        generation=task.generation,
        participants=len(barrier.arrived),
        reason=reason,
    )
    d.record(released, cause)


def release_completed(d: Decision, task: Task, reason: str, cause: str | tuple[str, ...]) -> None:
    """Release the waiting barriers that a change of generation has completed."""
    for barrier in list(task.barriers.values()):
        release_if_complete(d, task, barrier, reason, cause)


def fail_waiting(d: Decision, task: Task, left: list[str], reason: str, cause: str) -> None:
    """Fail all waiting barriers, because too few workers are left for the task to continue."""
    for barrier in list(task.barriers.values()):
        if barrier.state == "waiting":
            _fail(d, task, barrier, left + missing_workers(task, barrier), reason, cause)


def drop_arrivals(task: Task, gone: list[str]) -> None:
    """Drop the arrivals of workers that are no longer members; part of applying a new
    generation."""
    for barrier in task.barriers.values():
        if barrier.state == "waiting":
            for worker in gone:
                barrier.arrived.pop(worker, None)


@decides(FailBarrier)
def fail(d: Decision, c: FailBarrier) -> None:
    """Fail a waiting barrier and name the missing workers; a round that has ended is left as it
    is."""
    task = d.state.task(c.task)
    barrier = task.barriers.get(c.barrier)
    if barrier is None or barrier.round != c.round or barrier.state != "waiting":
        return
    _fail(d, task, barrier, missing_workers(task, barrier), c.reason, c.cause)


def _fail(
    d: Decision,
    task: Task,
    barrier: Barrier,
    missing: list[str],
    reason: str,
    cause: str | tuple[str, ...],
) -> None:
    failed = BarrierFailed(
        task=task.id, barrier=barrier.name, round=barrier.round, missing=missing, reason=reason
    )
    d.record(failed, cause)


def missing_workers(task: Task, barrier: Barrier) -> list[str]:
    """The expected workers that have not arrived, by rank."""
    there = barrier.arrived.keys() | set(task.finished)
    return [worker for worker in task.members if worker not in there]
