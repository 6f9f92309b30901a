"""A store in memory: for the simulator, for tests, and as the model for the other stores.

Facts are stored as they are, never encoded. Nothing here is durable, and only one thread may use
it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, Codec, Event
from strata.errors import Conflict, InvalidArgument
from strata.store import seq_ranges, snapshots
from strata.store.event_batches import Source, in_time_order, pack, parts, unpack, validate
from strata.store.event_store import (
    EVERYTHING,
    FOREVER_NS,
    NEVER_NS,
    QUERY_LIMIT,
    Batch,
    Closing,
    Found,
    OnDamage,
    Range,
    Snapshot,
    Tally,
    Window,
)


class _Row(Struct, frozen=True):
    """The facts of one append. `high_ns` is the log clock after them."""

    first: int
    incarnation: int
    events: tuple[Event, ...]
    wall_from_ns: int
    wall_to_ns: int
    high_ns: int

    @property
    def stop(self) -> int:
        return self.first + len(self.events)


class MemoryStore(Closing):
    """A log in memory."""

    first = 0

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._rows: list[_Row] = []
        self._batches: list[Batch] = []
        self._known: dict[tuple[str, int], list[Range]] = {}
        self._snapshots: dict[int, Snapshot] = {}

    def close(self) -> None:
        pass

    @property
    def position(self) -> int:
        return self._rows[-1].stop if self._rows else 0

    @property
    def _clock_ns(self) -> int:
        return self._rows[-1].high_ns if self._rows else NEVER_NS

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        if expected != self.position:
            raise Conflict(
                f"the log is at position {self.position}, not {expected}: another writer won",
                hint="read what it wrote, decide again, then append",
            )
        assert all(event.seq == seq for seq, event in enumerate(events, expected)), (
            "facts are numbered by their position"
        )
        new = self._new_parts(batches)
        if events:
            walls = [event.wall_ns for event in events]
            self._rows.append(
                _Row(
                    first=expected,
                    incarnation=incarnation,
                    events=tuple(events),
                    wall_from_ns=min(walls),
                    wall_to_ns=max(walls),
                    high_ns=max(*walls, self._clock_ns),
                )
            )
        self._batches += new
        for batch in new:
            known = self._known.setdefault((batch.node, batch.incarnation), [])
            seq_ranges.add(known, batch.first_seq, batch.stop_seq)
        return self.position

    def _new_parts(self, batches: Sequence[Batch]) -> list[Batch]:
        """The parts of the batches that are not stored yet, also compared with each other."""
        for batch in batches:
            validate(batch)
        found: list[Batch] = []
        seen: dict[tuple[str, int], list[Range]] = {}
        for batch in batches:
            stream = (batch.node, batch.incarnation)
            known = seen.setdefault(stream, list(self._known.get(stream, ())))
            first, stop = batch.first_seq, batch.stop_seq
            new = seq_ranges.missing(seq_ranges.overlapping(known, first, stop), first, stop)
            found += [batch] if new == [(first, stop)] else parts(batch, new) if new else []
            seq_ranges.add(known, first, stop)
        return found

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        if start < 0:
            raise InvalidArgument(f"a position is 0 or more, not {start}")
        return self._events(start, self.position if stop is None else min(stop, self.position))

    def _events(self, start: int, stop: int) -> Iterator[Event]:
        for row in self._rows[self._index(start) :] if start < stop else ():
            if row.first >= stop:
                return
            yield from row.events[max(start - row.first, 0) : stop - row.first]

    def _index(self, position: int) -> int:
        """The index of the row that holds a position."""
        return bisect_right(self._rows, position, key=attrgetter("first")) - 1

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        sources: list[Source] = [
            (row.wall_from_ns, COORDINATOR, row.incarnation, partial(tuple, row.events))
            for row in self._rows
            if wanted.node in (None, COORDINATOR)
        ]
        sources += [
            (batch.wall_from_ns, batch.node, batch.incarnation, partial(unpack, self._codec, batch))
            for batch in filter(wanted.touches, self._batches)
        ]
        sources.sort(key=lambda source: source[0])
        return in_time_order(sources, wanted, limit, on_damage)

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        every = [*map(self._packed, self._rows), *self._batches]
        return iter(sorted(filter(wanted.touches, every), key=attrgetter("wall_from_ns")))

    def _packed(self, row: _Row) -> Batch:
        return pack(self._codec, COORDINATOR, row.incarnation, row.events)

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        return (msgspec.structs.replace(batch, payload=b"") for batch in self.batches(wanted))

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        stop = FOREVER_NS if stop is None else stop
        for batch in sorted(self._of(node, incarnation), key=attrgetter("first_seq")):
            if batch.first_seq < stop and batch.stop_seq > start:
                events = unpack(self._codec, batch)
                yield from (event for event in events if start <= event.seq < stop)

    def _of(self, node: str, incarnation: int) -> list[Batch]:
        return [b for b in self._batches if (b.node, b.incarnation) == (node, incarnation)]

    def tallies(self) -> list[Tally]:
        found = []
        for node, incarnation in self.streams():
            kept = self._of(node, incarnation)
            if kept:
                tally = Tally(
                    node=node,
                    incarnation=incarnation,
                    events=sum(b.count for b in kept),
                    wall_from_ns=min(b.wall_from_ns for b in kept),
                    wall_to_ns=max(b.wall_to_ns for b in kept),
                    kinds=frozenset(kind for b in kept for kind in b.kinds),
                )
                found.append(tally)
        return found

    def streams(self) -> list[tuple[str, int]]:
        return sorted(self._known)

    def last_seq(self, node: str, incarnation: int) -> int | None:
        known = self._known.get((node, incarnation))
        return known[-1][1] - 1 if known else None

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        known = self._known.get((node, incarnation))
        return seq_ranges.missing(known, 0, known[-1][1]) if known else []

    def position_at(self, wall_ns: int) -> int:
        index = bisect_right(self._rows, wall_ns, key=attrgetter("high_ns"))
        if index == len(self._rows):
            return self.position
        return next(event.seq for event in self._rows[index].events if event.wall_ns > wall_ns)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.validate(snapshot, self.position)
        self._snapshots[snapshot.position] = snapshot
        for position in snapshots.surplus(sorted(self._snapshots)):
            del self._snapshots[position]

    def check(self, on_damage: OnDamage) -> None:
        """Memory has no checksums: nothing in it is found damaged."""

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        fitting = (
            snapshot
            for snapshot in self._snapshots.values()
            if snapshot.schema == schema and (at is None or snapshot.position <= at)
        )
        return max(fitting, key=attrgetter("position"), default=None)

    def sizes(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for batch in self._batches:
            stream = (batch.node, batch.incarnation)
            found[stream] = found.get(stream, 0) + len(batch.payload)
        return found

    def compact(self, stop: int) -> int:
        return 0

    def release(self, node: str, incarnation: int, stop: int, start: int = 0) -> int:
        gone = [
            batch
            for batch in self._of(node, incarnation)
            if start <= batch.first_seq and batch.stop_seq <= stop
        ]
        self._batches = [batch for batch in self._batches if batch not in gone]
        return sum(batch.count for batch in gone)
