"""The queue of requests for the engine's next turn, in order of arrival.

The number of commands and batches of events is limited: when the inbox is full, new ones are
refused with `Overloaded`. Signals are never refused, because there are at most as many as sessions:
a new heartbeat replaces a queued one of the same worker. Heartbeats alone wake the engine after
`BEATS_S`, so that many are processed in one turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from strata.coordinator.engine.kernel import KernelInput
from strata.core.workers.heartbeats import Signal, WorkerBeat, WorkerDisconnected
from strata.errors import Overloaded, StrataError
from strata.store.event_store import Batch

BEATS_S = 0.01
"""How long heartbeats wait for others to be processed in the same turn."""

Reply: TypeAlias = Callable[[object, StrataError | None], None]
"""Callback with the answer to a request, or its refusal."""


class Request(Struct, gc=False):
    """A command or signal, or a worker's batch of events.

    `early`: the answer may be sent before it is on disk (see `Engine.ask`).
    """

    asked: KernelInput | None
    batch: Batch | None = None
    reply: Reply | None = None
    early: bool = False


class Inbox:
    """The queued requests; `news` is set when the engine should take them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.news = asyncio.Event()
        self._waiting: deque[Request] = deque()
        self._beats: dict[tuple[str, int], Request] = {}
        self._hearing: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Request) -> None:
        """Append a request; raises `Overloaded` if the queue is full."""
        if len(self._waiting) >= self.limit:
            raise Overloaded(
                f"the queue of {self.limit} requests is full", hint="try again in a moment"
            )
        self._waiting.append(request)
        self.news.set()

    def put_first(self, requests: Iterable[Request]) -> None:
        """Insert requests at the front of the queue."""
        self._waiting.extendleft(reversed(list(requests)))
        self.news.set()

    def notice(self, signal: Signal, reply: Reply | None) -> None:
        """Append a signal; a heartbeat replaces a queued one of the same worker."""
        request = Request(asked=signal, batch=None, reply=reply)
        if isinstance(signal, WorkerBeat):
            sender = (signal.worker, signal.incarnation)
            waiting = self._beats.get(sender)
            if waiting is not None:
                waiting.asked, waiting.reply = signal, reply
                return
            self._beats[sender] = request
        elif isinstance(signal, WorkerDisconnected):
            # Heartbeats of the next connection must be processed after this signal.
            self._beats.pop((signal.worker, signal.incarnation), None)
        self._waiting.append(request)
        if isinstance(signal, WorkerBeat) and not signal.beat.request:
            self._hear_soon()
        else:
            self.news.set()

    def take(self, most: int) -> list[Request]:
        """Remove and return the first requests, at most `most`."""
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
        """Wait until requests should be taken, at most `delay_s`; False after a timeout."""
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
