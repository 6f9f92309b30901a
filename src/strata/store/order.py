"""Events of many batches in the order of their wall clocks, decoding one batch at a time.

Batches come by the start of their span. What starts at or after t holds nothing before t, so
everything earlier that was already decoded is safe to hand out: only batches whose spans overlap
are in memory together.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import TypeAlias

from strata.core.events import Event
from strata.errors import Corrupt
from strata.store.base import Found, OnDamage, Window

Source: TypeAlias = tuple[int, str, int, Callable[[], Iterable[Event]]]
"""Start of its span, node, incarnation, and how to load the events of one batch."""


def in_time_order(
    sources: Iterable[Source], wanted: Window, limit: int, on_damage: OnDamage | None
) -> Iterator[Found]:
    """At most `limit` events of the sources that are wanted."""

    def matching() -> Iterator[Found]:
        heap: list[tuple[int, str, int, int, Event]] = []
        for start_ns, node, incarnation, load in sources:
            while heap and heap[0][0] < start_ns:
                yield _found(heappop(heap))
            for event in _loaded(load, on_damage):
                if wanted.holds(event):
                    heappush(heap, (event.wall_ns, node, incarnation, event.seq, event))
        while heap:
            yield _found(heappop(heap))

    return islice(matching(), limit)


def _found(entry: tuple[int, str, int, int, Event]) -> Found:
    return entry[1], entry[2], entry[4]


def _loaded(load: Callable[[], Iterable[Event]], on_damage: OnDamage | None) -> Iterable[Event]:
    try:
        return load()
    except Corrupt as error:
        if on_damage is None:
            raise
        on_damage(error)
        return ()
