"""Which requests of a client are admitted beside those it has running already.

A client is a network (`network_of`). It may change something at a limited rate, and have a limited
number of requests and of streams running; streams are bounded for all clients together too. What is
above a limit is refused with a time to wait, and costs the coordinator no more than that answer.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from strata.coordinator.rest.request_checks import HttpLimits, RateLimit
from strata.errors import Overloaded


class Admission:
    """Counts the running requests and streams of each client."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._rate_limit = RateLimit(limits, time.monotonic)
        self._running: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()

    @property
    def open_streams(self) -> int:
        """The number of streams of all clients."""
        return self._streams.total()

    @property
    def running(self) -> int:
        """The number of running requests of all clients, without the streams."""
        return self._running.total()

    @contextmanager
    def admitted(self, client: str, *, changes: bool, streams: bool) -> Iterator[None]:
        """Count a request while the context is open; raises `Overloaded` above a limit."""
        if changes:
            self._rate_limit.take(client)
        counted = self._streams if streams else self._running
        if streams:
            self._check_streams(client)
        elif counted[client] >= self._limits.requests_each:
            raise Overloaded(
                f"{client} has {counted[client]} requests running",
                hint="wait for their answers before the next request",
                retry_after_s=1.0,
            )
        counted[client] += 1
        try:
            yield
        finally:
            counted[client] -= 1
            if not counted[client]:
                del counted[client]

    def _check_streams(self, client: str) -> None:
        limits, own = self._limits, self._streams[client]
        if self.open_streams >= limits.streams or own >= limits.streams_each:
            raise Overloaded(
                f"{self.open_streams} streams are open, {own} of them from {client}",
                hint="close a stream, or poll /api/events instead",
                retry_after_s=5.0,
            )
