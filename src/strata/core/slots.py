"""Free slots of the hosts, while workers are placed on them one after the other."""

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace


class FreeSlots:
    """Counts slots down; the roomiest host is found without looking at all of them.

    Hosts in `doubtful` may be lost already: they come last, whatever room they have.
    """

    def __init__(self, free: Mapping[str, int], doubtful: Collection[str] = ()) -> None:
        self.total = sum(free.values())
        self._free = dict(free)
        self._doubtful = frozenset(doubtful)
        # Counts only fall, so an entry with an outdated one is mended when it comes up.
        self._heap = [
            (agent in self._doubtful, -slots, order, agent)
            for order, (agent, slots) in enumerate(free.items())
        ]
        heapify(self._heap)

    def take(self, preferred: str = "") -> str:
        """The agent whose slot is taken: the preferred one if it has any and is not in doubt, else
        the roomiest; empty where no slot is free."""
        known = preferred not in self._doubtful and self._free.get(preferred, 0) > 0
        agent = preferred if known else self._roomiest()
        if agent:
            self._free[agent] -= 1
            self.total -= 1
        return agent

    def _roomiest(self) -> str:
        while self._heap:
            doubtful, counted, order, agent = self._heap[0]
            slots = self._free[agent]
            if slots <= 0:
                heappop(self._heap)
            elif slots != -counted:
                heapreplace(self._heap, (doubtful, -slots, order, agent))
            else:
                return agent
        return ""
