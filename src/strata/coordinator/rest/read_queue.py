"""Runs reads that take long in threads of their own: searches of the log, queries of the past.

They never run in the event loop's own threads, in which the engine writes facts. The queue is
bounded, and one client may have a part of it only, so that the reads of others are still accepted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

from strata.errors import Overloaded

Answer = TypeVar("Answer")

THREADS = 2
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The network of the client whose request is handled; empty in the coordinator's own tasks."""


class ReadQueue:
    """Threads for reads, and the number of reads that each client has in the queue."""

    def __init__(self, name: str, limit: int = 32) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"strata-{name}")
        self._name = name
        self._limit = limit
        self._waiting: Counter[str] = Counter()

    async def work(self, read: Callable[[], Answer]) -> Answer:
        """Run a function in a thread; raises `Overloaded` if the queue or the share is full."""
        client = CLIENT.get()
        if self._waiting.total() >= self._limit:
            raise self._full(f"the queue of {self._limit} reads of the {self._name} is full")
        if client and self._waiting[client] >= self._limit // 2:
            raise self._full(f"{client} has {self._limit // 2} reads of the {self._name} queued")
        self._waiting[client] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]

    def close(self) -> None:
        """Drop the queued reads, and wait for those that run."""
        self._threads.shutdown(cancel_futures=True)

    @staticmethod
    def _full(message: str) -> Overloaded:
        return Overloaded(message, hint="try again in a moment", retry_after_s=1.0)
