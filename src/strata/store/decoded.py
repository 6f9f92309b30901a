"""Batches that were decoded lately: who looks around one place of a log reads the same ones again.

The events of a stored batch never change, so they may be handed out twice. Facts that were joined
to one segment since are another batch, with another count. Events are bounded in number, and those
asked for longest ago go first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from strata.core.events import Event
from strata.store.base import Batch

Name = tuple[str, int, int, int]


class Decoded:
    """Remembers at most so many events; none means that nothing is remembered."""

    def __init__(self, most_events: int = 0) -> None:
        self._most_events = most_events
        self._events = 0
        self._kept: OrderedDict[Name, list[Event]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, batch: Batch, decode: Callable[[], list[Event]]) -> list[Event]:
        """The events of a batch; decoded anew if they are not remembered."""
        name = batch.node, batch.incarnation, batch.first_seq, batch.count
        with self._lock:
            if known := self._kept.get(name):
                self._kept.move_to_end(name)
                return known
        events = decode()
        with self._lock:
            if len(events) <= self._most_events and name not in self._kept:
                self._kept[name] = events
                self._events += len(events)
            while self._events > self._most_events:
                self._events -= len(self._kept.popitem(last=False)[1])
        return events
