"""The network between hosts and the coordinator: ordered, delayed, sometimes cut.

A cut link holds messages back, as TCP does, and delivers them when it heals; neither side can
tell a cut from silence. Within a link messages arrive in the order they were sent.
"""

from collections.abc import Callable

from strata.sim.world import SECOND_NS, World

LATENCY_S = 0.001


class Network:
    """Links by the name of the host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.carried = 0
        self._cut: dict[str, list[tuple[bool, Callable[..., None], tuple[object, ...]]]] = {}
        self._last_ns: dict[tuple[str, bool], int] = {}

    def send(self, host: str, inward: bool, action: Callable[..., None], *args: object) -> None:
        """Carries a message over a host's link, to the coordinator or from it."""
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
        """Holds back everything to and from a host."""
        self._cut.setdefault(host, [])

    def heal(self, host: str) -> None:
        """Delivers what was held back, before anything that is sent from now on."""
        for inward, action, args in self._cut.pop(host, []):
            self.send(host, inward, action, *args)
