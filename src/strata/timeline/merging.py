"""Facts and workers' events as one stream, in the order of the timeline's clock.

The store hands events out by the wall clock of the node that wrote them. How far those clocks are
off is known from samples, so a window of the timeline is a slightly wider window of each node's
wall clock. As long as all are nearly right one query serves all nodes; a node whose clock is far
off gets its own, so that one wrong clock does not make everybody's reading slow.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge

from strata.core.events import COORDINATOR
from strata.store.base import FOREVER_NS, NEVER_NS, EventReader, Found, OnDamage
from strata.timeline.causal import in_causal_order
from strata.timeline.clocks import Clocks
from strata.timeline.records import SECOND_NS, Key, Record

NEARLY_NS = 2 * SECOND_NS
ERROR_NS = SECOND_NS // 50
UNLIMITED = 2**62


class Window:
    """What is wanted: a span of the timeline, perhaps of one node, perhaps of some kinds."""

    def __init__(
        self,
        since_ns: int | None = None,
        until_ns: int | None = None,
        node: str | None = None,
        kinds: Iterable[str] = (),
    ) -> None:
        self.since_ns = NEVER_NS if since_ns is None else since_ns
        self.until_ns = FOREVER_NS if until_ns is None else until_ns
        self.node = node
        self.kinds = frozenset(kinds)

    def holds(self, at_ns: int) -> bool:
        """Whether a moment is within it."""
        return self.since_ns <= at_ns < self.until_ns

    def raw(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        """The span of a wall clock that is ahead by at least `low_ns` and at most `high_ns`."""
        since = max(self.since_ns + low_ns, NEVER_NS) if self.since_ns > NEVER_NS else NEVER_NS
        until = min(self.until_ns + high_ns, FOREVER_NS) if self.until_ns < FOREVER_NS else None
        return since, FOREVER_NS if until is None else until


class Merged:
    """Reads windows of a log."""

    def __init__(self, reader: EventReader, clocks: Clocks, on_damage: OnDamage) -> None:
        self._reader = reader
        self._clocks = clocks
        self._on_damage = on_damage

    def read(self, window: Window, skews: dict[str, tuple[int, int]]) -> Iterator[Record]:
        """The records of a window in their order; `skews` tells how far each node's clock is off.

        Reads only as far as the caller goes.
        """
        far = {node: skew for node, skew in skews.items() if max(map(abs, skew)) > NEARLY_NS}
        near = [skew for node, skew in skews.items() if node not in far]
        common = (
            min((low for low, _ in near), default=0),
            max((high for _, high in near), default=0),
        )
        if window.node is not None:
            sources = [self._source(window, window.node, skews.get(window.node, common))]
        elif far:
            sources = [self._source(window, node, skew) for node, skew in skews.items()]
        else:
            sources = [self._source(window, None, common)]
        merged = merge(*sources, key=lambda record: record.key)
        return merged if window.kinds else in_causal_order(merged)

    def _source(self, window: Window, node: str | None, skew: tuple[int, int]) -> Iterator[Record]:
        """The records of one node, or of all whose clocks are nearly right.

        Between samples a clock may be off by a little more than they show.
        """
        low, high = skew[0] - ERROR_NS, skew[1] + ERROR_NS
        since_ns, until_ns = window.raw(low, high)
        kinds: list[str | None] = [*sorted(window.kinds)] or [None]
        queries = [
            self._reader.query(
                node=node,
                kind=kind,
                since_ns=since_ns,
                until_ns=until_ns,
                limit=UNLIMITED,
                on_damage=self._on_damage,
            )
            for kind in kinds
        ]
        found = merge(*queries, key=lambda each: each[2].wall_ns)
        return self._settled(found, window, high - low)

    def _settled(self, found: Iterable[Found], window: Window, spread_ns: int) -> Iterator[Record]:
        """Orders by the timeline's clock what came by wall clocks that differ by `spread_ns`."""
        heap: list[tuple[Key, Record]] = []
        at = self._clocks.at_ns
        for node, incarnation, event in found:
            at_ns = at(node, incarnation, event)
            if window.holds(at_ns):
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
