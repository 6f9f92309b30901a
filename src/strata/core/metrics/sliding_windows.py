"""Figures over a sliding window, in bounded memory: sums by time, quantiles, histograms.

Time is a monotonic clock that the caller reads, in nanoseconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import ceil

SECOND_NS = 1_000_000_000

LATENCY_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""For microseconds to seconds: the coordinator's own work."""

WAIT_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
"""For milliseconds to minutes: waiting for workers and storage."""


class Tally:
    """Sums by second over the last `seconds`; the window ends now and may begin mid-second."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self._second = [-1] * seconds
        self._amount = [0] * seconds

    def add(self, at_ns: int, amount: int = 1) -> None:
        """Count an amount at a moment."""
        second = at_ns // SECOND_NS
        slot = second % self.seconds
        if self._second[slot] != second:
            self._second[slot] = second
            self._amount[slot] = 0
        self._amount[slot] += amount

    def add_span(self, start_ns: int, end_ns: int) -> None:
        """Count each nanosecond between two moments."""
        start_ns = max(start_ns, end_ns - self.seconds * SECOND_NS)
        while start_ns < end_ns:
            until_ns = min((start_ns // SECOND_NS + 1) * SECOND_NS, end_ns)
            self.add(start_ns, until_ns - start_ns)
            start_ns = until_ns

    def total(self, now_ns: int) -> int:
        """The sum over the window."""
        oldest = now_ns // SECOND_NS - self.seconds
        pairs = zip(self._second, self._amount, strict=True)
        return sum(amount for second, amount in pairs if second > oldest)

    def rate(self, now_ns: int, since_ns: int) -> float:
        """The sum per second of the window, or of the time since counting began if shorter."""
        oldest_ns = (now_ns // SECOND_NS - self.seconds + 1) * SECOND_NS
        covered_ns = now_ns - max(oldest_ns, since_ns)
        return self.total(now_ns) * SECOND_NS / covered_ns if covered_ns > 0 else 0.0


class Samples:
    """The newest measurements: at most `limit`, none older than `window_ns`."""

    def __init__(self, limit: int, window_ns: int) -> None:
        self.window_ns = window_ns
        self._samples: deque[tuple[int, float]] = deque(maxlen=limit)

    def add(self, at_ns: int, value: float) -> None:
        """Keep a measurement."""
        self._samples.append((at_ns, value))

    def quantile(self, share: float, now_ns: int) -> float | None:
        """The smallest value that at least this share does not exceed; None without samples."""
        oldest_ns = now_ns - self.window_ns
        values = sorted(value for at_ns, value in self._samples if at_ns > oldest_ns)
        return values[max(ceil(share * len(values)), 1) - 1] if values else None


class Histogram:
    """Measurements since the start, counted by size."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a measurement; a value equal to a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of measurements."""
        return sum(self.counts)
