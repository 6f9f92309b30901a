"""An engine whose facts come from a simulation: the state is folded from them as time goes by.

Readers find what they find in a real engine: a settled state, a position, the facts as they are
published, a store that holds them. What would change something is refused.
"""

import asyncio
from collections.abc import Callable

from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.inbox import Request
from strata.coordinator.engine.kernel import Kernel, Turn
from strata.core.cluster import fold
from strata.core.events import Event
from strata.errors import NotAllowedNow

TICK_S = 0.1


class Playback(Engine):
    """Takes the facts that `advance` gives; it is called in a thread, a few times a second."""

    def __init__(self, kernel: Kernel, advance: Callable[[], list[Event]]) -> None:
        super().__init__(kernel)
        self._advance = advance

    async def play(self) -> None:
        """Let happen what is due."""
        async with self._turn:
            events = await asyncio.to_thread(self._advance)
            fold(self.kernel.state, events)
            self.kernel.durable = self.kernel.state.position
        self._publish(Turn([], events))

    async def _run(self) -> None:
        while not self._stopping:
            await self.play()
            await asyncio.sleep(TICK_S)
        self._published.set()

    def _put(self, request: Request) -> None:
        raise NotAllowedNow(
            "this is a demo: nothing can be changed", hint="start a coordinator with: strata up"
        )
