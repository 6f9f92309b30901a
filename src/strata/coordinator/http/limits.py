"""How much the HTTP side takes on: every bound in one place, and the bucket that paces requests."""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from strata.errors import Overloaded


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of the API; what is beyond them is refused, and nobody else notices."""

    body_bytes: int = 1024 * 1024
    body_timeout_s: float = 30.0
    head_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    heartbeat_s: float = 15.0
    connections: int = 2048
    streams: int = 64
    writes_per_s: float = 50.0
    writes_burst: int = 200
    clients: int = 1024


class Pace:
    """A token bucket per client; the one that was quiet the longest makes room for a new one."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._rate_per_s = limits.writes_per_s
        self._burst = limits.writes_burst
        self._clients = limits.clients
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Counts one request; refuses it when the client asks faster than it may."""
        now_s = self._clock()
        tokens, at_s = self._buckets.pop(client, (float(self._burst), now_s))
        tokens = min(tokens + (now_s - at_s) * self._rate_per_s, self._burst)
        enough = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if enough else tokens, now_s)
        if len(self._buckets) > self._clients:
            self._buckets.popitem(last=False)
        if not enough:
            raise Overloaded(
                f"more than {self._rate_per_s:g} changes a second",
                hint="wait a moment between requests that change something",
                retry_after_s=(1.0 - tokens) / self._rate_per_s,
            )
