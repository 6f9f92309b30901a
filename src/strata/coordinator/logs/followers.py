"""Followers of the log: each has a bounded buffer; a slow follower loses lines and is told so.

Lines are matched in the thread that writes them, and passed to the follower's event loop with one
wake-up per batch. When the buffer is full the oldest lines are dropped, so a slow follower first
gets the number of dropped lines and then the newest lines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from strata.coordinator.logs.log_entries import LogEntry, Skipped
from strata.coordinator.logs.log_query import Matcher


class Follower:
    """Buffer of one reader; created and read in its event loop, filled from any thread."""

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
        """Buffer the matching ones of new lines."""
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
        """End the reader after it has read the buffered lines."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            # The reader's event loop has ended, and the reader with it.
            self._closed = True

    async def next(self) -> list[LogEntry | Skipped]:
        """Wait for lines and return them; empty if the log was closed."""
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
