"""Virtual time, and the network between hosts and the coordinator.

Actions happen in the order of their times, and nothing else happens. One seed drives every choice,
so a run repeats exactly.

The network is ordered, delayed and sometimes cut. A cut link holds messages back, as TCP does, and
delivers them when it is restored; neither side can tell a cut from a peer that sends nothing.
Within a link messages arrive in the order they were sent.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from strata.core.events import Now

SECOND_NS = 1_000_000_000
EPOCH_NS = 1_750_000_000 * SECOND_NS


class World:
    """The clock, the random numbers, and the queue of actions."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.skew_ns = 0
        self.happened = 0
        self.failure: Exception | None = None
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def clock(self) -> Now:
        """The coordinator's clocks; only its wall clock may be wrong."""
        return Now(EPOCH_NS + self.now_ns + self.skew_ns, self.now_ns)

    def after(self, seconds: float, action: Callable[..., None], *args: object) -> None:
        """Schedule an action after a delay."""
        self.at(self.now_ns + int(seconds * SECOND_NS), action, *args)

    def at(self, when_ns: int, action: Callable[..., None], *args: object) -> None:
        """Schedule an action at a time; a time in the past means now."""
        self._count += 1
        heappush(self._queue, (max(when_ns, self.now_ns), self._count, action, args))

    def fail(self, error: Exception, where: str = "") -> None:
        """End the run with the first error that is reported."""
        if self.failure is None:
            if where:
                error.add_note(where)
            self.failure = error

    def run(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> None:
        """Run all actions up to a time, or until `done`; raises a reported error."""
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
        """A random duration around `seconds`."""
        return seconds * self.random.uniform(1 - spread, 1 + spread)


LATENCY_S = 0.001


class Network:
    """The links between hosts and the coordinator, by host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.carried = 0
        self._cut: dict[str, list[tuple[bool, Callable[..., None], tuple[object, ...]]]] = {}
        self._last_ns: dict[tuple[str, bool], int] = {}

    def send(self, host: str, inward: bool, action: Callable[..., None], *args: object) -> None:
        """Send a message over the link of a host, to or from the coordinator."""
        held = self._cut.get(host)
        if held is not None:
            held.append((inward, action, args))
            return
        self.carried += 1
        world = self.world
        delay_ns = int(LATENCY_S * SECOND_NS * (0.5 + world.random.random()))
        arrival_ns = max(world.now_ns + delay_ns, self._last_ns.get((host, inward), 0))
        self._last_ns[host, inward] = arrival_ns
        world.at(arrival_ns, action, *args)

    def cut(self, host: str) -> None:
        """Cut the link of a host: hold back all messages to and from it."""
        self._cut.setdefault(host, [])

    def heal(self, host: str) -> None:
        """Restore the link of a host: deliver the held messages before any later one."""
        for inward, action, args in self._cut.pop(host, []):
            self.send(host, inward, action, *args)
