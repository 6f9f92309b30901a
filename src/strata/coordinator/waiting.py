"""Who waits at which barrier, and tells them how it ended.

An arrival is a command; its answer is the round it counts in. If that has not ended, the caller
is kept here until it does. A caller that counts the rounds it left is told of a release at once
(see `core.barriers`); all others, and everyone when a round fails, once that is on disk. Each
waiter has a callback of its own: one that is gone takes nobody with it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from strata.coordinator.engine import Engine
from strata.core.barriers import Barrier, BarrierFailed, BarrierReleased
from strata.core.events import Event
from strata.wire import convert
from strata.wire.v1 import coordinator_pb2 as pb


class Ended:
    """A round that has ended, as it is told to a thousand workers within milliseconds.

    One message is made and then changed for each of them: making a new one takes five times as
    long. It has to be encoded before the next is asked for.
    """

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier
        self.order = {worker: place for place, worker in enumerate(barrier.arrived)}
        outcome = convert.barrier_outcome(barrier, -1)
        told = pb.BarrierOutcome(barrier_id=barrier.name, outcome=outcome)
        self._message = pb.CoordinatorMessage(barrier=told)
        self._told = self._message.barrier
        self._outcome = self._told.outcome

    def message(self, request: int, arrival: int, order: int) -> pb.CoordinatorMessage:
        """The answer to a request of a session."""
        self._message.request = request
        self._told.arrival = arrival
        self._outcome.arrival_order = order
        return self._message

    def outcome(self, order: int) -> pb.WaitBarrierResponse:
        """The answer to a call; it may be kept."""
        return convert.barrier_outcome(self.barrier, order)


Told: TypeAlias = Callable[[Ended, int], None]
Waiter: TypeAlias = tuple[Told, bool]
"""Whom to tell, and whether a release may be told before it is on disk."""


class BarrierRoom:
    """The waiters of every barrier: for each round one per worker, however often it asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str, int], tuple[Barrier, dict[str, Waiter]]] = {}
        self._newest: Ended | None = None
        engine.follow_releases(self._release)
        engine.follow(self._follow, BarrierReleased, BarrierFailed)

    def wait(
        self, task: str, barrier: Barrier, worker: str, told: Told, early: bool = False
    ) -> None:
        """Calls back when the round has ended; at once if it has."""
        if barrier.state == "waiting":
            key = (task, barrier.name, barrier.round)
            self._waiters.setdefault(key, (barrier, {}))[1][worker] = (told, early)
            return
        if self._newest is None or self._newest.barrier is not barrier:
            self._newest = Ended(barrier)
        told(self._newest, self._newest.order.get(worker, -1))

    def _release(self, task: str, barrier: Barrier) -> None:
        """A round is complete, and that is not on disk yet."""
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
        """The round that ended: the one that was waited for, unless the state was folded anew.

        The name may stand for the next round by now, or for none: a turn has many facts.
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
        self._newest = ended = Ended(barrier)
        for worker, (told, _) in waiters.items():
            told(ended, ended.order.get(worker, -1))
