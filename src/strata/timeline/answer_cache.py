"""Cache for expensive answers that every open page asks for.

An answer is reused for `SHARE` times as long as it took to compute, so computing takes a small
share of the time, whatever the size of the log and the number of pages.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SHARE = 50
MOST_S = 30.0
KEPT = 16

Answer = TypeVar("Answer")


class Paced(Generic[Answer]):
    """The newest answers by query. An answer that cannot change is computed once.

    Another one is reused for `share` times as long as it took, at most `most_s`.
    """

    def __init__(self, share: int = SHARE, most_s: float = MOST_S) -> None:
        self._share, self._most_s = share, most_s
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, tuple[Answer, float]] = OrderedDict()

    def get(self, asked: Hashable, make: Callable[[], Answer], changes: bool) -> Answer:
        """The cached answer; calls `make` if there is none, or if it changes and has expired."""
        with self._lock:
            began_s = time.monotonic()
            known = self._made.get(asked)
            if known is not None and (not changes or began_s < known[1]):
                return known[0]
            answer = make()
            ended_s = time.monotonic()
            self._made[asked] = (
                answer,
                ended_s + min(self._share * (ended_s - began_s), self._most_s),
            )
            self._made.move_to_end(asked)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return answer
