"""What waits for the engine's next turn, in the order in which it came.

Commands and batches of events are bounded: when the inbox is full their callers are told to try
again, and others are unaffected. Signals are never turned away, since there are not more of them
than sessions: a worker's beats wait as one, a newer one in the place of one that is not heard yet.
Beats alone do not wake the engine at once, so that many are heard together.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from strata.coordinator.kernel import Asked
from strata.core.signals import Signal, WorkerBeat, WorkerDisconnected
from strata.errors import Overloaded, StrataError
from strata.store.base import Batch

BEATS_S = 0.01
"""How long beats wait for others to be heard with them."""

Reply: TypeAlias = Callable[[object, StrataError | None], None]
"""Called with the answer to a request, or with its refusal."""


class Request(Struct, gc=False):
    """A command or signal, or a worker's batch of events.

    `early`: the answer may be given before it is on disk (see `Engine.ask`).
    """

    asked: Asked | None
    batch: Batch | None = None
    reply: Reply | None = None
    early: bool = False


class Inbox:
    """The requests that wait; `news` is set when the engine should take them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.news = asyncio.Event()
        self._waiting: deque[Request] = deque()
        self._beats: dict[tuple[str, int], Request] = {}
        self._hearing: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Request) -> None:
        """Adds a request; raises `Overloaded` when there are too many."""
        if len(self._waiting) >= self.limit:
            raise Overloaded(f"{self.limit} requests are waiting", hint="try again in a moment")
        self._waiting.append(request)
        self.news.set()

    def put_first(self, requests: Iterable[Request]) -> None:
        """Puts requests before everything that waits."""
        self._waiting.extendleft(reversed(list(requests)))
        self.news.set()

    def notice(self, signal: Signal, reply: Reply | None) -> None:
        """Adds a signal; a beat takes the place of one that was not heard yet."""
        request = Request(signal, None, reply)
        if isinstance(signal, WorkerBeat):
            sender = (signal.worker, signal.incarnation)
            waiting = self._beats.get(sender)
            if waiting is not None:
                waiting.asked, waiting.reply = signal, reply
                return
            self._beats[sender] = request
        elif isinstance(signal, WorkerDisconnected):
            # What comes over its next connection was said after this.
            self._beats.pop((signal.worker, signal.incarnation), None)
        self._waiting.append(request)
        if isinstance(signal, WorkerBeat) and not signal.beat.request:
            self._hear_soon()
        else:
            self.news.set()

    def take(self, most: int) -> list[Request]:
        """The requests that came first."""
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]
        for request in taken if self._beats else ():
            if isinstance(request.asked, WorkerBeat):
                sender = (request.asked.worker, request.asked.incarnation)
                if self._beats.get(sender) is request:
                    del self._beats[sender]
        return taken

    async def wait(self, delay_s: float) -> bool:
        """Waits for news, but not longer; says whether there was any."""
        self.news.clear()
        try:
            async with asyncio.timeout(delay_s):
                await self.news.wait()
        except TimeoutError:
            return False
        return True

    def _hear_soon(self) -> None:
        if self._hearing is None:
            self._hearing = asyncio.get_running_loop().call_later(BEATS_S, self.news.set)
