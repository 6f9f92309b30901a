"""Followers of the log: each has a bounded buffer; a slow one skips lines and is told how many.

Lines are offered by the thread that writes them, matched there, and handed to the follower's event
loop with one wake-up a batch. When the buffer is full the oldest lines go, so a follower that
falls behind sees the gap first and then the newest lines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from strata.coordinator.logs.entries import LogEntry
from strata.coordinator.logs.query import Matcher


class Skipped(Struct, frozen=True):
    """Stands for matching lines that the follower was too slow for."""

    count: int


class Follower:
    """One reader's buffer; made and read in its event loop, filled from any thread."""

    def __init__(self, matcher: Matcher, limit: int) -> None:
        self._matcher = matcher
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[LogEntry] = deque()
        self._skipped = 0
        self._closed = False
        self._woken = asyncio.Event()

    def offer(self, entries: Sequence[LogEntry]) -> None:
        """Takes in what matches of lines that were just stored."""
        wanted = [entry for entry in entries if self._matcher.wants(entry)]
        if not wanted:
            return
        with self._lock:
            self._waiting.extend(wanted)
            while len(self._waiting) > self._limit:
                self._waiting.popleft()
                self._skipped += 1
        self._wake()

    def close(self) -> None:
        """Lets the reader end once it has read what waits."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            # The reader's event loop has ended, and the reader with it.
            self._closed = True

    async def next(self) -> list[LogEntry | Skipped]:
        """What waits, at least one; empty when the log was closed."""
        while True:
            self._woken.clear()
            with self._lock:
                waiting: list[LogEntry | Skipped] = list(self._waiting)
                skipped, self._skipped = self._skipped, 0
                self._waiting.clear()
            if skipped:
                waiting.insert(0, Skipped(skipped))
            if waiting or self._closed:
                return waiting
            await self._woken.wait()
