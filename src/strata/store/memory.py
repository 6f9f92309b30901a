"""A store in memory: for the simulator, for tests, and as the model the other stores are held to.

Facts stay as they were given, never encoded. Nothing here is durable, and one thread uses it.
"""

import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, Codec, Event
from strata.errors import Conflict, InvalidArgument, NotFound
from strata.store import ranges, snapshots
from strata.store.base import (
    FOREVER_NS,
    NEVER_NS,
    QUERY_LIMIT,
    Archived,
    Batch,
    Closing,
    Found,
    OnDamage,
    Range,
    Snapshot,
    Tally,
)
from strata.store.batches import pack, parts, unpack, validate
from strata.store.order import Source, in_time_order
from strata.store.sqlite import SqliteStore
from strata.store.sqlite.archive import Move, fill
from strata.store.sqlite.rows import Head


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

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._log = uuid.uuid4().hex
        self._rows: list[_Row] = []
        self._batches: list[Batch] = []
        self._known: dict[tuple[str, int], list[Range]] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._archives: list[Archived] = []
        self._floor = 0
        self._floor_ns = NEVER_NS

    def close(self) -> None:
        pass

    @property
    def position(self) -> int:
        return self._rows[-1].stop if self._rows else self._floor

    @property
    def _clock_ns(self) -> int:
        return self._rows[-1].high_ns if self._rows else self._floor_ns

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
            span = (min(walls), max(walls))
            high_ns = max(span[1], self._clock_ns)
            self._rows.append(_Row(expected, incarnation, tuple(events), *span, high_ns))
        self._batches += new
        for batch in new:
            known = self._known.setdefault((batch.node, batch.incarnation), [])
            ranges.add(known, batch.first_seq, batch.stop_seq)
        return self.position

    def _new_parts(self, batches: Sequence[Batch]) -> list[Batch]:
        """What of the batches is not known yet, also from one to the next."""
        for batch in batches:
            validate(batch)
        found: list[Batch] = []
        seen: dict[tuple[str, int], list[Range]] = {}
        for batch in batches:
            stream = (batch.node, batch.incarnation)
            known = seen.setdefault(stream, list(self._known.get(stream, ())))
            first, stop = batch.first_seq, batch.stop_seq
            new = ranges.missing(ranges.overlapping(known, first, stop), first, stop)
            found += [batch] if new == [(first, stop)] else parts(batch, new) if new else []
            ranges.add(known, first, stop)
        return found

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        if start < 0:
            raise InvalidArgument(f"a position is 0 or more, not {start}")
        self._require_kept(start)
        return self._events(start, self.position if stop is None else min(stop, self.position))

    def _events(self, start: int, stop: int) -> Iterator[Event]:
        # A copy of the list: an archive in between moves rows, it does not change them.
        for row in self._rows[self._index(start) :] if start < stop else ():
            if row.first >= stop:
                return
            yield from row.events[max(start - row.first, 0) : stop - row.first]

    def _index(self, position: int) -> int:
        """The index of the row that holds a position."""
        return bisect_right(self._rows, position, key=attrgetter("first")) - 1

    def query(
        self,
        *,
        node: str | None = None,
        kind: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        sources: list[Source] = [
            (row.wall_from_ns, COORDINATOR, row.incarnation, partial(tuple, row.events))
            for row in self._rows
            if node in (None, COORDINATOR)
        ]
        sources += [
            (batch.wall_from_ns, batch.node, batch.incarnation, partial(unpack, self._codec, batch))
            for batch in self._batches
            if node in (None, batch.node) and (kind is None or kind in batch.kinds)
        ]
        sources.sort(key=lambda source: source[0])
        return in_time_order(sources, kind, since_ns, until_ns, limit, on_damage)

    def batches(
        self,
        *,
        node: str | None = None,
        kind: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Batch]:
        since = NEVER_NS if since_ns is None else since_ns
        until = FOREVER_NS if until_ns is None else until_ns
        every = [*map(self._packed, self._rows), *self._batches]
        found = [
            batch
            for batch in every
            if node in (None, batch.node)
            and (kind is None or kind in batch.kinds)
            and batch.wall_from_ns < until
            and batch.wall_to_ns >= since
        ]
        return iter(sorted(found, key=attrgetter("wall_from_ns")))

    def _packed(self, row: _Row) -> Batch:
        return pack(self._codec, COORDINATOR, row.incarnation, row.events)

    def headers(
        self,
        *,
        node: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> Iterator[Batch]:
        found = self.batches(node=node, since_ns=since_ns, until_ns=until_ns)
        return (msgspec.structs.replace(batch, payload=b"") for batch in found)

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
                span = min(b.wall_from_ns for b in kept), max(b.wall_to_ns for b in kept)
                kinds = frozenset(kind for b in kept for kind in b.kinds)
                count = sum(b.count for b in kept)
                found.append(Tally(node, incarnation, count, *span, kinds))
        return found

    def streams(self) -> list[tuple[str, int]]:
        return sorted(self._known)

    def last_seq(self, node: str, incarnation: int) -> int | None:
        known = self._known.get((node, incarnation))
        return known[-1][1] - 1 if known else None

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        known = self._known.get((node, incarnation))
        return ranges.missing(known, 0, known[-1][1]) if known else []

    def position_at(self, wall_ns: int) -> int:
        if wall_ns < self._floor_ns:
            self._require_kept(self._floor - 1)
        index = bisect_right(self._rows, wall_ns, key=attrgetter("high_ns"))
        if index == len(self._rows):
            return self.position
        return next(event.seq for event in self._rows[index].events if event.wall_ns > wall_ns)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.validate(snapshot, self._floor, self.position)
        self._snapshots[snapshot.position] = snapshot
        kept = [(position, each.schema) for position, each in sorted(self._snapshots.items())]
        for position in snapshots.surplus(kept):
            del self._snapshots[position]

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        fitting = (
            snapshot
            for snapshot in self._snapshots.values()
            if snapshot.schema == schema and (at is None or snapshot.position <= at)
        )
        return max(fitting, key=attrgetter("position"), default=None)

    def archive(self, before: int, path: str | Path) -> Archived:
        newest = max(self._snapshots, default=None)
        snapshots.require_archivable(before, self.position, newest)
        cut = len(self._rows) if before == self.position else self._index(before)
        target = str(Path(path).absolute())
        if before <= self._floor or cut <= 0:
            return Archived(self._floor, self._floor, 0, target)
        gone, clock_ns = self._rows[:cut], self._rows[cut - 1].high_ns
        old = [batch for batch in self._batches if batch.wall_to_ns <= clock_ns]
        moved = Archived(self._floor, gone[-1].stop, len(old), target)
        move = Move(
            self._log,
            moved.first,
            moved.stop,
            facts=lambda start: [self._packed(row) for row in gone if row.first >= start],
            batches=lambda: old,
            snapshots=lambda: [
                snapshot
                for position, snapshot in sorted(self._snapshots.items())
                if position <= moved.stop
            ],
        )
        new = Head(self._log, position=self._floor, floor=self._floor, floor_ns=self._floor_ns)
        with SqliteStore(target, self._codec, new=new) as store:
            fill(store, move)
            store.seal()
        self._forget(cut, moved, clock_ns)
        return moved

    def _forget(self, cut: int, moved: Archived, clock_ns: int) -> None:
        self._rows = self._rows[cut:]
        self._batches = [batch for batch in self._batches if batch.wall_to_ns > clock_ns]
        self._snapshots = {p: s for p, s in self._snapshots.items() if p >= moved.stop}
        self._archives.append(moved)
        self._floor, self._floor_ns = moved.stop, clock_ns

    def _require_kept(self, position: int) -> None:
        if position >= self._floor:
            return
        path = next(each.path for each in self._archives if each.stop > position)
        raise NotFound(
            f"facts before position {self._floor} were moved to the archive {path}",
            hint="read them there: it is a store of its own",
        )
