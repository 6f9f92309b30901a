"""Tasks whose newest events a client is reading: their workers send events more often.

Workers send their events every two seconds, because each message costs the training process more
than its bytes do. While a client reads the curves of a task, its first workers are asked, with the
answer to each heartbeat, to send several times a second. The number of these workers is bounded, so
a large task adds no load.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from strata.core.state import Cluster

WATCH_S = 15.0
FIRST_RANKS = 16
MAX_TASKS = 64


class WatchedTasks:
    """The tasks that were looked at in the last `WATCH_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s: OrderedDict[str, float] = OrderedDict()

    def look(self, task: str) -> None:
        """Note that a client reads the newest events of a task."""
        self._until_s[task] = self._clock() + WATCH_S
        self._until_s.move_to_end(task)
        while len(self._until_s) > MAX_TASKS:
            self._until_s.popitem(last=False)

    def seconds(self, state: Cluster, worker: str) -> float:
        """How long a worker is to send often; 0 if it is not."""
        found = state.workers.get(worker) if self._until_s else None
        if found is None or not 0 <= found.rank < FIRST_RANKS:
            return 0.0
        return max(self._until_s.get(found.task, 0.0) - self._clock(), 0.0)
