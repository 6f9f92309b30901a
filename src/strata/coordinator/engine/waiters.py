"""Workers that wait for the end of a barrier or of a checkpoint, and their answers.

Barriers. An arrival is a command; its answer is the round of the barrier. While that round is open,
the waiter's callback is kept here. Waiters that report the rounds they left get a release at once
(see `core/barriers/barrier_rules`); all others, and all waiters of a failed round, when it is on
disk.

Checkpoints. A rank that has acknowledged its part is answered when the checkpoint is committed or
has failed, so that no rank exits while a checkpoint is unfinished.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from strata.coordinator.engine.engine import Engine
from strata.core.barriers.barrier_rules import BarrierFailed, BarrierReleased
from strata.core.checkpoints.checkpoint_lifecycle import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
)
from strata.core.events import Event
from strata.core.task_state import Barrier, Checkpoint
from strata.wire.messages import worker_messages
from strata.wire.v1 import coordinator_pb2 as pb


class BarrierEnd:
    """The outcome of a round, encoded for each of its waiters.

    One message is changed for each waiter, because creating a new one takes five times as long. A
    message has to be encoded before the next one is requested.
    """

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier
        self.order = {worker: place for place, worker in enumerate(barrier.arrived)}
        outcome = worker_messages.barrier_outcome(barrier, -1)
        answer = pb.BarrierOutcome(barrier_id=barrier.name, outcome=outcome)
        self._message = pb.CoordinatorMessage(barrier=answer)
        self._answer = self._message.barrier
        self._outcome = self._answer.outcome

    def message(self, request: int, arrival: int, order: int) -> pb.CoordinatorMessage:
        """The answer to a request of a session."""
        self._message.request = request
        self._answer.arrival = arrival
        self._outcome.arrival_order = order
        return self._message

    def outcome(self, order: int) -> pb.WaitBarrierResponse:
        """The answer to a unary call."""
        return worker_messages.barrier_outcome(self.barrier, order)


Notify: TypeAlias = Callable[[BarrierEnd, int], None]
Waiter: TypeAlias = tuple[Notify, bool]
"""A callback, and whether it may be called with a release before that is on disk."""


class BarrierWaiters:
    """The waiters of all barriers: one per round and worker, however often it asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str, int], tuple[Barrier, dict[str, Waiter]]] = {}
        self._newest: BarrierEnd | None = None
        engine.follow_releases(self._release)
        engine.follow(self._follow, BarrierReleased, BarrierFailed)

    def wait(
        self, task: str, barrier: Barrier, worker: str, notify: Notify, early: bool = False
    ) -> None:
        """Call `notify` when the round has ended; at once if it has."""
        if barrier.state == "waiting":
            key = (task, barrier.name, barrier.round)
            self._waiters.setdefault(key, (barrier, {}))[1][worker] = (notify, early)
            return
        if self._newest is None or self._newest.barrier is not barrier:
            self._newest = BarrierEnd(barrier)
        notify(self._newest, self._newest.order.get(worker, -1))

    def _release(self, task: str, barrier: Barrier) -> None:
        """Notify the early waiters of a round whose release is not on disk yet."""
        key = (task, barrier.name, barrier.round)
        held, waiters = self._waiters.pop(key, (barrier, {}))
        later = {worker: waiter for worker, waiter in waiters.items() if not waiter[1]}
        if later:
            self._waiters[key] = (held, later)
        self._tell(barrier, {worker: waiters[worker] for worker in waiters if worker not in later})

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            body = event.body
            assert isinstance(body, BarrierReleased | BarrierFailed)
            found = self._waiters.pop((body.task, body.barrier, body.round), None)
            if found is not None:
                barrier, waiters = found
                self._tell(self._ended(body, barrier), waiters)

    def _ended(self, body: BarrierReleased | BarrierFailed, held: Barrier) -> Barrier:
        """The round that ended: `held`, unless the state was folded again.

        The barrier's name may refer to the next round by now, or to none: a turn has many facts.
        """
        if held.state != "waiting":
            return held
        task = self._engine.kernel.state.tasks.get(body.task)
        found = task.barriers.get(body.barrier) if task is not None else None
        for barrier in (found, found.last if found else None):
            if barrier is not None and barrier.round == body.round:
                return barrier
        return held

    def _tell(self, barrier: Barrier, waiters: dict[str, Waiter]) -> None:
        self._newest = ended = BarrierEnd(barrier)
        for worker, (notify, _) in waiters.items():
            notify(ended, ended.order.get(worker, -1))


NotifySaved: TypeAlias = Callable[[Checkpoint], None]
UNDECIDED = ("in_progress", "sealing")


class SaveWaiters:
    """The waiters of all checkpoints: one per worker, however often it asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str], tuple[Checkpoint, dict[str, NotifySaved]]] = {}
        engine.follow(self._follow, CheckpointCommitted, CheckpointFailed, CheckpointDeleted)

    def wait(self, task: str, checkpoint: Checkpoint, worker: str, notify: NotifySaved) -> None:
        """Call `notify` when the checkpoint has ended; at once if it has."""
        if checkpoint.state in UNDECIDED:
            self._waiters.setdefault((task, checkpoint.id), (checkpoint, {}))[1][worker] = notify
        else:
            notify(checkpoint)

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            body = event.body
            assert isinstance(body, CheckpointCommitted | CheckpointFailed | CheckpointDeleted)
            held, waiters = self._waiters.pop((body.task, body.checkpoint), (None, {}))
            for notify in waiters.values():
                notify(self._ended(body.task, body.checkpoint, held))

    def _ended(self, task: str, checkpoint: str, held: Checkpoint | None) -> Checkpoint:
        """The checkpoint in the present state, or `held` if the state has deleted it."""
        known = self._engine.kernel.state.tasks.get(task)
        found = known.checkpoints.get(checkpoint, held) if known is not None else held
        assert found is not None, "a waiter has a checkpoint"
        return found
