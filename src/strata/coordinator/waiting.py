"""Who waits at which barrier, and tells them how it ended.

An arrival is a command; its answer is the round it counts in. If that has not ended, whoever asked
is kept here until the fact that ends it is published. Each waiter has a callback of its own: one
that is gone takes nobody with it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from strata.coordinator.engine import Engine
from strata.core.barriers import Barrier, BarrierFailed, BarrierReleased
from strata.core.events import Event
from strata.core.tasks import Task
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


class BarrierRoom:
    """The waiters of every barrier: for each round one per worker, however often it asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str, int], tuple[Barrier, dict[str, Told]]] = {}
        self._newest: Ended | None = None
        engine.follow(self._follow, BarrierReleased, BarrierFailed)

    def wait(self, task: Task, barrier: Barrier, worker: str, told: Told) -> None:
        """Calls back when the round has ended; at once if it has."""
        if barrier.state == "waiting":
            key = (task.id, barrier.name, barrier.round)
            self._waiters.setdefault(key, (barrier, {}))[1][worker] = told
            return
        if self._newest is None or self._newest.barrier is not barrier:
            self._newest = Ended(barrier)
        told(self._newest, self._newest.order.get(worker, -1))

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
        found = self._engine.kernel.state.tasks[body.task].barriers.get(body.barrier)
        for barrier in (found, found.last if found else None):
            if barrier is not None and barrier.round == body.round:
                return barrier
        return held

    def _tell(self, barrier: Barrier, waiters: dict[str, Told]) -> None:
        self._newest = ended = Ended(barrier)
        for worker, told in waiters.items():
            told(ended, ended.order.get(worker, -1))
