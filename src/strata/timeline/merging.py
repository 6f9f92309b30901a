"""Facts and workers' events as one stream, in the order of the timeline's clock.

The store hands events out by the wall clock of the node that wrote them. How far those clocks are
off is known from samples, so a window of the timeline is a slightly wider window of each node's
wall clock. As long as all are nearly right one query serves all nodes; a node whose clock is far
off gets its own, so that one wrong clock does not make everybody's reading slow.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge

from msgspec import structs

from strata.core.events import COORDINATOR
from strata.core.worker_facts import MessageReceived, MessageRejected, MessageSent
from strata.store.base import FOREVER_NS, NEVER_NS, EventReader, Found, OnDamage, Window
from strata.timeline.causal import in_causal_order
from strata.timeline.clocks import Clocks
from strata.timeline.records import SECOND_NS, Key, Record

ARRIVALS = frozenset({MessageReceived.__name__, MessageRejected.__name__})
NEARLY_NS = 2 * SECOND_NS
ERROR_NS = SECOND_NS // 50
UNLIMITED = 2**62


class Merged:
    """Reads windows of a log."""

    def __init__(self, reader: EventReader, clocks: Clocks, on_damage: OnDamage) -> None:
        self._reader = reader
        self._clocks = clocks
        self._on_damage = on_damage

    def read(self, window: Window, skews: dict[str, tuple[int, int]]) -> Iterator[Record]:
        """The records of a window in their order; `skews` tells how far each node's clock is off.

        Reads only as far as the caller goes. With arrivals their sendings are read, too, since an
        arrival is placed behind its sending; what was not asked for is left out again.
        """
        kinds = window.kinds
        if kinds & ARRIVALS:
            window = structs.replace(window, kinds=kinds | {MessageSent.__name__})
        far = {node: skew for node, skew in skews.items() if max(map(abs, skew)) > NEARLY_NS}
        near = [skew for node, skew in skews.items() if node not in far]
        common = (
            min((low for low, _ in near), default=0),
            max((high for _, high in near), default=0),
        )
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

    def _source(self, window: Window, skew: tuple[int, int]) -> Iterator[Record]:
        """The records of one node, or of all whose clocks are nearly right.

        Between samples a clock may be off by a little more than they show.
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
        """Orders by the timeline's clock what came by wall clocks that differ by `spread_ns`."""
        heap: list[tuple[Key, Record]] = []
        at = self._clocks.at_ns
        for node, incarnation, event in found:
            at_ns = at(node, incarnation, event)
            if window.since_ns <= at_ns < window.until_ns:
                record = Record(at_ns, node, incarnation, event)
                heappush(heap, (record.key, record))
            settled_ns = event.wall_ns - spread_ns
            while heap and heap[0][0][0] < settled_ns:
                yield heappop(heap)[1]
        while heap:
            yield heappop(heap)[1]


def is_fact(record: Record) -> bool:
    """Whether the coordinator recorded it."""
    return record.node == COORDINATOR
