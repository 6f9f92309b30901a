"""The open HTTP connections, their number, and which one closes for a new one.

A connection is in use while it has a request that was allowed, from its head to the end of its
answer. The others are idle, still sending a head, or reading a file that needs no token. At the
limit a new connection closes the oldest unused one of the network that has the most connections:
HTTP lets a server close those at any time, and clients open another. So a client that fills all
places is the first to lose them. If all are in use, the new one gets status 503.
"""

import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0


class HttpConnection(Protocol):
    """What is needed of a connection."""

    network: str

    @property
    def in_use(self) -> bool:
        """Whether it has an allowed request that is not answered yet."""

    def evict(self) -> None:
        """Close it at once."""


class HttpConnections:
    """The open connections by network, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._networks: dict[str, dict[HttpConnection, None]] = {}
        self._log_at_s = float("-inf")

    def admit(self, connection: HttpConnection) -> bool:
        """Add a connection, if necessary by closing an unused one; False if all are in use."""
        if self._count >= self._limit:
            unused = self._oldest_unused()
            self._log(unused)
            if unused is None:
                return False
            self.dismiss(unused)
            unused.evict()
        self._networks.setdefault(connection.network, {})[connection] = None
        self._count += 1
        return True

    def dismiss(self, connection: HttpConnection) -> None:
        """Remove a closed connection; removing it twice is harmless."""
        known = self._networks.get(connection.network, {})
        if connection in known:
            del known[connection]
            self._count -= 1
            if not known:
                del self._networks[connection.network]

    def _oldest_unused(self) -> HttpConnection | None:
        crowded_first = sorted(self._networks.values(), key=len, reverse=True)
        return next((each for known in crowded_first for each in known if not each.in_use), None)

    def _log(self, closed: HttpConnection | None) -> None:
        now_s = time.monotonic()
        if now_s - self._log_at_s >= LOG_INTERVAL_S:
            self._log_at_s = now_s
            done = f"closed one of {closed.network}" if closed else "refused a new one"
            log.warning("%d HTTP connections are open: %s", self._count, done)
