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

Told: TypeAlias = Callable[[pb.WaitBarrierResponse], None]


class BarrierRoom:
    """The waiters of every barrier."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str, int], list[tuple[str, Told]]] = {}
        engine.on_facts.append(self._follow)

    def wait(self, task: Task, barrier: Barrier, worker: str, told: Told) -> None:
        """Calls back when the round has ended; at once if it has."""
        if barrier.state == "waiting":
            key = (task.id, barrier.name, barrier.round)
            self._waiters.setdefault(key, []).append((worker, told))
        else:
            order = list(barrier.arrived).index(worker)
            told(convert.barrier_outcome(barrier, order))

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            body = event.body
            if isinstance(body, BarrierReleased | BarrierFailed):
                waiters = self._waiters.pop((body.task, body.barrier, body.round), [])
                if waiters:
                    barrier = self._engine.kernel.state.tasks[body.task].barriers[body.barrier]
                    self._tell(barrier, waiters)

    def _tell(self, barrier: Barrier, waiters: list[tuple[str, Told]]) -> None:
        order = {worker: place for place, worker in enumerate(barrier.arrived)}
        for worker, told in waiters:
            told(convert.barrier_outcome(barrier, order.get(worker, -1)))
