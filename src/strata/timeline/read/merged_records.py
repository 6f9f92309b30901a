"""Facts and workers' events as one stream, in the order of the timeline's clock.

The store returns events by the wall clock of the node that wrote them. Clock samples give the skew
of each node, so a window of the timeline is a slightly wider window of each wall clock. Nodes with
nearly correct clocks share one query. A node whose clock is far off gets its own query, so that one
wrong clock does not widen the window of all.

A receive is never shown before its send. Clocks are aligned to half a round trip of a heartbeat,
and a message between peers may be faster. So records are buffered for `HELD_NS`: an arrival whose
send follows it is moved right after the send. Nothing else moves, and facts never do.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge
from typing import TypeAlias

import msgspec
from msgspec import structs

from strata.core.workers.exchange_facts import MessageReceived, MessageRejected, MessageSent
from strata.store.event_store import (
    FOREVER_NS,
    NEVER_NS,
    EventReader,
    Found,
    OnDamage,
    Window,
)
from strata.timeline.read.clock_alignment import Clocks
from strata.timeline.read.records import SECOND_NS, Key, Record

HELD_NS = SECOND_NS // 10

Arrived: TypeAlias = dict[tuple[str, str], list[Record]]
"""Buffered arrivals by message and sender; several workers may forward one message."""


def in_causal_order(records: Iterable[Record]) -> Iterator[Record]:
    """The records in order, with each arrival after its send."""
    held: list[Record] = []
    arrived: Arrived = {}
    for record in records:
        body = record.event.body
        held.append(record)
        if isinstance(body, MessageReceived | MessageRejected):
            arrived.setdefault((body.message, body.sender), []).append(record)
        elif isinstance(body, MessageSent):
            for early in arrived.pop((body.message, record.node), []):
                held.remove(early)
                later = msgspec.structs.replace(early, at_ns=record.at_ns + 1)
                insort(held, later, key=lambda each: each.key)
        settled = record.at_ns - HELD_NS
        if held[0].at_ns < settled:
            place = next(i for i, each in enumerate(held) if each.at_ns >= settled)
            yield from _released(held[:place], arrived)
            del held[:place]
    yield from held


def _released(records: list[Record], arrived: Arrived) -> Iterator[Record]:
    """Release records; an arrival without a later send was in order already."""
    for record in records:
        body = record.event.body
        if isinstance(body, MessageReceived | MessageRejected):
            arrived.pop((body.message, body.sender), None)
        yield record


ARRIVALS = frozenset({MessageReceived.__name__, MessageRejected.__name__})
NEARLY_NS = 2 * SECOND_NS
ERROR_NS = SECOND_NS // 50
UNLIMITED = 2**62

Skew: TypeAlias = tuple[int, int]
"""How far a wall clock is ahead of the timeline's, at least and at most."""

Skews: TypeAlias = dict[str, Skew]


class Merged:
    """Reads windows of a log in order."""

    def __init__(self, reader: EventReader, clocks: Clocks, on_damage: OnDamage) -> None:
        self._reader = reader
        self._clocks = clocks
        self._on_damage = on_damage

    def read(self, window: Window, skews: Skews) -> Iterator[Record]:
        """The records of a window in order, read lazily; `skews` is the skew of each node's clock.

        If arrivals of messages are wanted, their sends are read as well, because an arrival is
        placed after its send; kinds that were not asked for are dropped again.
        """
        kinds = window.kinds
        if kinds & ARRIVALS:
            window = structs.replace(window, kinds=kinds | {MessageSent.__name__})
        far, common = skew_groups(skews)
        if window.node is not None:
            sources = [self._source(window, skews.get(window.node, common))]
        elif far:
            sources = [
                self._source(structs.replace(window, node=node), skew)
                for node, skew in skews.items()
            ]
        else:
            sources = [self._source(window, common)]
        merged = merge(*sources, key=lambda record: record.key)
        if kinds and not kinds & ARRIVALS:
            return merged
        ordered = in_causal_order(merged)
        return (each for each in ordered if each.kind in kinds) if kinds else ordered

    def _source(self, window: Window, skew: Skew) -> Iterator[Record]:
        """The records of one node, or of all nodes with nearly correct clocks.

        Between two samples a clock may be off by slightly more than the samples show.
        """
        low, high = skew[0] - ERROR_NS, skew[1] + ERROR_NS
        since_ns = max(window.since_ns + low, NEVER_NS) if window.since_ns > NEVER_NS else NEVER_NS
        until_ns = (
            min(window.until_ns + high, FOREVER_NS) if window.until_ns < FOREVER_NS else FOREVER_NS
        )
        raw = structs.replace(window, since_ns=since_ns, until_ns=until_ns)
        found = self._reader.query(raw, UNLIMITED, self._on_damage)
        return self._settled(found, window, high - low)

    def _settled(self, found: Iterable[Found], window: Window, spread_ns: int) -> Iterator[Record]:
        """Sort events, which come by wall clocks that differ by `spread_ns`, by the timeline's."""
        heap: list[tuple[Key, Record]] = []
        at = self._clocks.at_ns
        for node, incarnation, event in found:
            at_ns = at(node, incarnation, event)
            if window.since_ns <= at_ns < window.until_ns:
                record = Record(at_ns=at_ns, node=node, incarnation=incarnation, event=event)
                heappush(heap, (record.key, record))
            settled_ns = event.wall_ns - spread_ns
            while heap and heap[0][0][0] < settled_ns:
                yield heappop(heap)[1]
        while heap:
            yield heappop(heap)[1]


def skew_groups(skews: Skews) -> tuple[set[str], Skew]:
    """The nodes whose clocks are far off, and the range of skew of all others."""
    far = {node for node, skew in skews.items() if max(map(abs, skew)) > NEARLY_NS}
    near = [skew for node, skew in skews.items() if node not in far]
    low_ns = min((low for low, _ in near), default=0)
    high_ns = max((high for _, high in near), default=0)
    return far, (low_ns, high_ns)
