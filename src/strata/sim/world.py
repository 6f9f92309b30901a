"""Virtual time: actions happen in the order of their moments, and nothing else happens.

One seed drives every choice, so a run repeats exactly.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from strata.core.events import Now

SECOND_NS = 1_000_000_000
EPOCH_NS = 1_750_000_000 * SECOND_NS


class World:
    """The clock, the dice, and what is to happen next."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.skew_ns = 0
        self.happened = 0
        self.failure: Exception | None = None
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def clock(self) -> Now:
        """The coordinator's clocks; its wall clock may be wrong, its monotonic one is not."""
        return Now(EPOCH_NS + self.now_ns + self.skew_ns, self.now_ns)

    def after(self, seconds: float, action: Callable[..., None], *args: object) -> None:
        """Lets something happen later."""
        self.at(self.now_ns + int(seconds * SECOND_NS), action, *args)

    def at(self, when_ns: int, action: Callable[..., None], *args: object) -> None:
        """Lets something happen at a moment; what is due already happens next."""
        self._count += 1
        heappush(self._queue, (max(when_ns, self.now_ns), self._count, action, args))

    def fail(self, error: Exception, where: str = "") -> None:
        """Ends the run with the first error that is reported, also from where nobody raises it."""
        if self.failure is None:
            if where:
                error.add_note(where)
            self.failure = error

    def run(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> None:
        """Lets everything happen up to a moment, or until `done`; raises what was reported."""
        queue = self._queue
        while queue and queue[0][0] <= until_ns and not done():
            self.now_ns, _, action, args = heappop(queue)
            self.happened += 1
            action(*args)
            if self.failure is not None:
                raise self.failure
        if not done():
            self.now_ns = max(self.now_ns, until_ns)

    def about(self, seconds: float, spread: float = 0.2) -> float:
        """A duration that varies."""
        return seconds * self.random.uniform(1 - spread, 1 + spread)
