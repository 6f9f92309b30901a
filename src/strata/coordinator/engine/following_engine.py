"""The engine of a standby: it applies the facts that another coordinator stores, and decides
nothing.

It looks for new facts every `LOOK_S`. Readers and subscribers see them like those of the leader,
a moment later. Every request is refused with the name of the leader.
"""

import asyncio
import logging
from collections.abc import Callable

from strata.coordinator.engine.engine import MAX_TURN, Engine
from strata.coordinator.engine.inbox import Reply, Request
from strata.coordinator.engine.kernel import Kernel, Turn
from strata.core.cluster import apply
from strata.core.workers.heartbeats import Signal
from strata.errors import NotLeading, Unavailable

log = logging.getLogger(__name__)

LOOK_S = 0.2


class FollowingEngine(Engine):
    """Follows the log of a leader; `leader` returns its name."""

    def __init__(self, kernel: Kernel, leader: Callable[[], str]) -> None:
        super().__init__(kernel)
        self._leader = leader

    def notice(self, signal: Signal, reply: Reply | None = None) -> None:
        raise self._refusal()

    def _put(self, request: Request) -> None:
        raise self._refusal()

    def _refusal(self) -> NotLeading:
        leader = self._leader()
        if not leader:
            return NotLeading("no coordinator leads at the moment", hint="try again in a second")
        return NotLeading(
            f"this coordinator is a standby, which only answers reading requests; {leader} leads",
            hint="send the request to the coordinator that leads",
        )

    async def _run(self) -> None:
        while not self._stopping:
            try:
                more = await self._apply_new()
            except Unavailable as error:
                log.warning("the log of the leader cannot be read: %s", error)
                more = False
            if not more:
                await self.inbox.wait(LOOK_S)
        self._published.set()

    async def _apply_new(self) -> bool:
        """Apply the facts that were stored since; returns whether there were some."""
        kernel = self.kernel
        start = kernel.durable
        events = await asyncio.to_thread(
            lambda: list(kernel.store.read(start, min(kernel.store.position, start + MAX_TURN)))
        )
        async with self._turn:
            for event in events:
                apply(kernel.state, event)
            kernel.durable = kernel.state.position
            self._publish(Turn(events=events))
        return bool(events)
