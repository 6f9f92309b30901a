"""Barriers: named meeting points of the workers of a generation.

The promise. Everyone who is expected arrives, then all are released at once; nobody is counted
twice, nobody from outside is counted, and nobody waits for the dead. The expected set is the
present generation: when that changes, arrivals of those who left are dropped and the barrier is
looked at again. It fails, and says for whom it waited, when it does not fill up in time or when
too few are left for the task to go on.

A barrier's name may be used again and again; each use is a *round*. An arrival carries the
worker's own request number, counted within its incarnation: the same number again is the same
arrival (a resend after a lost answer), a higher one asks for the next round. So nobody is released
twice, and nobody who was released is made to wait again.

A release is sent before it is on disk. If the coordinator dies in between, some workers have left
a round that the log shows as waiting, or does not contain. So a worker that opens a session again
says which rounds it left last, and the missing release is recorded then; `told` is the number by
which the worker knows the round. A worker that did not receive the release arrives again. It says
in which generation it arrived and which round it left before, so it is matched to that release.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard

from msgspec import Struct, field

from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.fencing import WorkerCommand
from strata.core.lifecycle import Lifecycle
from strata.core.limits import require_name
from strata.errors import InvalidArgument, NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

BarrierState: TypeAlias = Literal["waiting", "released", "failed"]

LIFECYCLE = Lifecycle(
    "barrier",
    "waiting",
    (
        ("waiting", "released", "BarrierReleased"),
        ("waiting", "failed", "BarrierFailed"),
    ),
)

MAX_BARRIERS = 256
"""Barriers a task remembers; the oldest that has ended makes room."""


MAX_LEFT = 16
"""Rounds that a worker remembers to have left; no more than one per thread can be unknown."""


MAX_UNSTORED = 65_536
"""So many rounds at most may be told in one turn, before they are stored."""


class Barrier(Struct, gc=False):
    """The newest round of a barrier, and the `last` one, for those whose answer was lost.

    `arrived` maps each worker, in order of arrival, to its incarnation and request. Of a round that
    was learnt from those who left it, `told` is the number that they were told, and `participants`
    how many met; others may be missing in `arrived`.
    """

    name: str
    round: int
    state: BarrierState
    step: int
    opened_ns: int
    generation: int
    arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended_ns: int = 0
    reason: str = ""
    missing: list[str] = field(default_factory=list)
    last: "Barrier | None" = None
    participants: int = 0
    told: int = 0

    @property
    def met(self) -> int:
        """How many were released, or had arrived when it failed."""
        return self.participants or len(self.arrived)

    @property
    def ended(self) -> "Barrier | None":
        """The newest round that has ended."""
        return self.last if self.state == "waiting" else self


class BarrierOpened(Fact, frozen=True):
    """The first worker arrived; `expected` workers must."""

    task: str
    barrier: str
    round: int
    step: int
    generation: int
    expected: int


class BarrierArrived(Fact, frozen=True):
    """A worker reached the barrier."""

    task: str
    barrier: str
    round: int
    worker: str
    incarnation: int
    request: int


class BarrierReleased(Fact, frozen=True):
    """Everyone expected is there.

    `told` is set if workers left the round before its release was stored: the number under which
    they know it.
    """

    task: str
    barrier: str
    round: int
    generation: int
    participants: int
    reason: str
    told: int = 0


class BarrierFailed(Fact, frozen=True):
    """The barrier will not be reached; these were missing."""

    task: str
    barrier: str
    round: int
    missing: list[str]
    reason: str


class LeftBarrier(Struct, frozen=True, gc=False):
    """A round that a worker was released from."""

    barrier: str
    round: int
    generation: int
    participants: int
    step: int = 0


class ArriveAtBarrier(WorkerCommand, frozen=True):
    """`generation` is the one in which the worker arrived, `after` the round of this barrier that
    it left last; 0 if it does not say."""

    barrier: str
    request: int
    step: int = 0
    generation: int = 0
    after: int = 0


class NoteRelease(Command, frozen=True):
    """A release that was told and then not stored; `arrived` is who was there."""

    task: str
    left: LeftBarrier
    arrived: dict[str, tuple[int, int]]


class FailBarrier(Command, frozen=True):
    task: str
    barrier: str
    round: int
    reason: str


@applies(BarrierOpened)
def _opened(state: "Cluster", fact: BarrierOpened, event: Event) -> None:
    barriers = state.tasks[fact.task].barriers
    last = barriers.pop(fact.barrier, None)
    if last is not None:
        last.last = None
    if len(barriers) >= MAX_BARRIERS:
        ended = next((name for name, b in barriers.items() if b.state != "waiting"), None)
        if ended is not None:
            del barriers[ended]
    barriers[fact.barrier] = Barrier(
        fact.barrier,
        fact.round,
        "waiting",
        fact.step,
        event.wall_ns,
        fact.generation,
        last=last,
    )
    state.tasks[fact.task].last_round = fact.round


@applies(BarrierArrived)
def _arrived(state: "Cluster", fact: BarrierArrived, event: Event) -> None:
    arrived = state.tasks[fact.task].barriers[fact.barrier].arrived
    arrived[fact.worker] = (fact.incarnation, fact.request)


@applies(BarrierReleased)
def _released(state: "Cluster", fact: BarrierReleased, event: Event) -> None:
    barrier = state.tasks[fact.task].barriers[fact.barrier]
    barrier.state = "released"
    barrier.ended_ns = event.wall_ns
    barrier.reason = fact.reason
    barrier.generation = fact.generation
    if fact.told:  # else they are those who arrived
        barrier.participants, barrier.told = fact.participants, fact.told


@applies(BarrierFailed)
def _failed(state: "Cluster", fact: BarrierFailed, event: Event) -> None:
    barrier = state.tasks[fact.task].barriers[fact.barrier]
    barrier.state = "failed"
    barrier.ended_ns = event.wall_ns
    barrier.reason = fact.reason
    barrier.missing = fact.missing


@decides(ArriveAtBarrier)
def arrive(d: Decision, c: ArriveAtBarrier) -> Barrier:
    """Counts a worker in; the answer is the round it belongs to, perhaps released already."""
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
    arrived = BarrierArrived(task.id, c.barrier, barrier.round, c.worker, c.incarnation, c.request)
    release_if_complete(d, task, barrier, "everyone arrived", d.record(arrived, cause))
    return barrier


def _was_released(round: Barrier | None, c: ArriveAtBarrier) -> TypeGuard[Barrier]:
    """Whether a learnt round is the one in which this arrival counted: the worker was a member
    when it was released, and has not left it."""
    if round is None or not round.told or round.state != "released":
        return False
    return 0 < c.generation <= round.generation and c.after < min(round.round, round.told)


def require_possible(task: "Task", left: LeftBarrier) -> None:
    """Refuses a round that this task cannot have had."""
    require_name("barrier_id", left.barrier)
    newest = task.last_round + MAX_UNSTORED
    if not (0 < left.round <= newest and 0 < left.generation <= task.generation):
        raise InvalidArgument(
            f"round {left.round} of barrier {left.barrier!r} in generation {left.generation} was "
            f"never released in task {task.id!r}",
            hint="say only which rounds the coordinator released this worker from",
        )


def learn_release(
    d: Decision,
    task: "Task",
    left: LeftBarrier,
    who: str,
    cause: tuple[str, ...],
    arrived: dict[str, tuple[int, int]] | None = None,
) -> Barrier | None:
    """Records a release that workers heard of and the log does not know, with those arrivals that
    are known; answers with the round, if there was one to record."""
    barrier = task.barriers.get(left.barrier)
    ended = barrier.ended if barrier is not None else None
    if ended is not None and left.round <= max(ended.round, ended.told):
        return None
    causes = cause
    if barrier is None or barrier.state != "waiting":
        round = max(task.last_round + 1, left.round)
        opened = BarrierOpened(
            task.id, left.barrier, round, left.step, left.generation, left.participants
        )
        causes = (d.record(opened, cause),)
        barrier = task.barriers[left.barrier]
    for worker, (incarnation, request) in (arrived or {}).items():
        if worker not in barrier.arrived:
            arrival = BarrierArrived(
                task.id, left.barrier, barrier.round, worker, incarnation, request
            )
            d.record(arrival, causes)
    d.record(
        BarrierReleased(
            task=task.id,
            barrier=left.barrier,
            round=barrier.round,
            generation=left.generation,
            participants=left.participants,
            reason=f"{who} left it before its release was stored",
            told=left.round,
        ),
        causes,
    )
    return barrier


@decides(NoteRelease)
def note_release(d: Decision, c: NoteRelease) -> Barrier | None:
    """Records a release that this coordinator has told and could not store."""
    task = d.state.tasks.get(c.task)
    if task is None:
        return None
    require_possible(task, c.left)
    return learn_release(d, task, c.left, "its workers", c.cause, c.arrived)


def _open(d: Decision, task: "Task", c: ArriveAtBarrier) -> str:
    if len(task.barriers) >= MAX_BARRIERS and all(
        b.state == "waiting" for b in task.barriers.values()
    ):
        raise NotAllowedNow(
            f"task {task.id!r} already waits at {MAX_BARRIERS} barriers",
            hint="meet at fewer barriers at a time",
        )
    return d.record(
        BarrierOpened(
            task.id, c.barrier, task.last_round + 1, c.step, task.generation, len(task.members)
        ),
        c.cause,
    )


def release_if_complete(
    d: Decision, task: "Task", barrier: Barrier, reason: str, cause: str | tuple[str, ...]
) -> None:
    """Releases a waiting barrier once every member of the generation has arrived."""
    if barrier.state != "waiting" or not task.members:
        return
    # Counting first: naming the missing takes as long as the group is large.
    if len(barrier.arrived) + len(task.finished) < len(task.members):
        return
    if missing_workers(task, barrier):
        return
    d.record(
        BarrierReleased(
            task.id,
            barrier.name,
            barrier.round,
            task.generation,
            len(barrier.arrived),
            reason,
        ),
        cause,
    )


def look_again(d: Decision, task: "Task", reason: str, cause: str | tuple[str, ...]) -> None:
    """After a change of generation: a waiting barrier may now be complete."""
    for barrier in list(task.barriers.values()):
        release_if_complete(d, task, barrier, reason, cause)


def give_up(d: Decision, task: "Task", left: list[str], reason: str, cause: str) -> None:
    """When too few are left to go on: whoever waits is told at once, and for whom."""
    for barrier in list(task.barriers.values()):
        if barrier.state == "waiting":
            missing = left + missing_workers(task, barrier)
            d.record(BarrierFailed(task.id, barrier.name, barrier.round, missing, reason), cause)


def forget_arrivals(task: "Task", gone: list[str]) -> None:
    """Part of applying a new generation: those who left, or gave up, are not waiting any more."""
    for barrier in task.barriers.values():
        if barrier.state == "waiting":
            for worker in gone:
                barrier.arrived.pop(worker, None)


@decides(FailBarrier)
def fail(d: Decision, c: FailBarrier) -> None:
    """Gives a waiting barrier up and names the missing; one that has ended stays as it is."""
    task = d.state.task(c.task)
    barrier = task.barriers.get(c.barrier)
    if barrier is None or barrier.round != c.round or barrier.state != "waiting":
        return
    missing = missing_workers(task, barrier)
    d.record(BarrierFailed(c.task, c.barrier, c.round, missing, c.reason), c.cause)


def missing_workers(task: "Task", barrier: Barrier) -> list[str]:
    """Who is expected and has not arrived, by rank."""
    there = barrier.arrived.keys() | set(task.finished)
    return [worker for worker in task.members if worker not in there]
