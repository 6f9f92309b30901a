"""Answers that everybody asks for and that cost much: made at a pace that their cost sets.

Every open page asks how far the log goes and how much happened when. One answer serves all who ask
until it is due again, which is the later the longer it took, so that asking takes a small share of
the time whatever the size of the log and the number of pages.
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
    """The newest answers by what was asked. What does not change is never made again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, tuple[Answer, float]] = OrderedDict()

    def get(self, asked: Hashable, make: Callable[[], Answer], changes: bool) -> Answer:
        """The answer; `make` gives a new one where there is none, or it changes and is due."""
        with self._lock:
            began_s = time.monotonic()
            known = self._made.get(asked)
            if known is not None and (not changes or began_s < known[1]):
                return known[0]
            answer = make()
            ended_s = time.monotonic()
            self._made[asked] = answer, ended_s + min(SHARE * (ended_s - began_s), MOST_S)
            self._made.move_to_end(asked)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return answer
