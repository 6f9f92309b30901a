"""Reading a store in an SQL database, beside its writer or alone.

Reads are short (see the databases), so an iterator that is not exhausted holds nothing. Events that
are stored after an iterator was created are not part of it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from heapq import merge
from pathlib import Path

from msgspec import structs

from strata.core.events import COORDINATOR, Codec, Event
from strata.errors import Corrupt, InvalidArgument, Unavailable
from strata.store import seq_ranges
from strata.store.event_batches import Decoded, in_time_order, unpack
from strata.store.event_store import (
    EVERYTHING,
    FOREVER_NS,
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
from strata.store.fact_references import Fetch, fetched, is_moved
from strata.store.sql import table_rows
from strata.store.sql.table_rows import Head, Row, Values


class SqlReader(Closing):
    """A store open for reading, with an optional cache of decoded events.

    A database gives `name`, `mending` (both for messages about damage) and the abstract methods.
    """

    first = 0
    name: str
    mending: str

    def _begin(self, codec: Codec, fetch: Fetch, remembered_events: int = 0) -> None:
        self._codec = codec
        self._fetch = fetch
        self._decoded = Decoded(remembered_events)

    @abstractmethod
    def _all(self, sql: str, values: Values = ()) -> list[Row]:
        """All rows that a query finds."""

    @abstractmethod
    def _turn(self, sql: str, values: Values) -> list[Row]:
        """The first rows of a query, as many as one turn may hold; the last column is the
        payload."""

    @abstractmethod
    def _head(self) -> Head:
        """The totals as they are now."""

    @property
    @abstractmethod
    def place(self) -> Path | str:
        """The file of the store, or its address."""

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Add the name of the store to errors about damage."""
        try:
            yield
        except Corrupt as error:
            raise self._damaged(error.message, error.hint) from error

    def _damaged(self, what: str, hint: str = "") -> Corrupt:
        return Corrupt(f"the store {self.name} is damaged: {what}", hint=hint or self.mending)

    @property
    def position(self) -> int:
        return self._head().position

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        head = self._head()
        if start < 0:
            raise InvalidArgument(f"a position is 0 or more, not {start}")
        stop = head.position if stop is None else min(stop, head.position)
        return self._events(start, stop)

    def _events(self, start: int, stop: int) -> Iterator[Event]:
        for facts in self.fact_rows(start, stop):
            events = self._unpack(facts)
            if facts.first_seq < start or facts.stop_seq > stop:
                events = [event for event in events if start <= event.seq < stop]
            yield from events
            start = facts.stop_seq

    def fact_rows(self, start: int, stop: int) -> Iterator[Batch]:
        """The rows that hold the facts [start, stop); one may begin with facts of the row before,
        where rows were joined to a segment meanwhile."""
        sql = (
            f"SELECT {table_rows.FACTS} FROM facts WHERE position < :stop AND position >= "
            "coalesce((SELECT max(position) FROM facts WHERE position <= :start), :start) "
            "ORDER BY position"
        )
        while start < stop:
            turn = self._turn(sql, {"start": start, "stop": stop})
            for row in turn:
                facts = self._checked_fact(row)
                if not facts.first_seq <= start < facts.stop_seq:
                    raise self._hole(start)
                yield facts
                start = facts.stop_seq
            if not turn:
                raise self._hole(start)

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        sources = (
            (batch.wall_from_ns, batch.node, batch.incarnation, partial(self._unpack, batch))
            for batch in self.batches(wanted, on_damage)
        )
        return in_time_order(sources, wanted, limit, on_damage)

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        return self._spans(wanted, table_rows.CHECKED, on_damage)

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        return self._spans(wanted, table_rows.HEADERS, None)

    def _spans(
        self, wanted: Window, tables: Mapping[str, table_rows.Reading], on_damage: OnDamage | None
    ) -> Iterator[Batch]:
        head = self._head()
        facts = self._facts_by_time(wanted, tables["facts"], on_damage, head)
        others = self._batches_by_time(wanted, tables["batches"], on_damage, head)
        if wanted.node is not None:
            return facts if wanted.node == COORDINATOR else others
        return merge(facts, others, key=lambda batch: batch.wall_from_ns)

    def _facts_by_time(
        self, wanted: Window, reading: table_rows.Reading, on_damage: OnDamage | None, head: Head
    ) -> Iterator[Batch]:
        """Rows of facts by the start of their span.

        When rows are joined to a segment meanwhile, the segment begins where its first row did,
        which may have been passed: reading starts again and leaves out what was handed out.
        """
        longest_ns = max(head.longest_ns, head.segment_ns)
        paging = table_rows.Paging("facts", reading, wanted, head.position, longest_ns)
        given: list[Range] = []
        compacted = head.compacted
        while True:
            turn = self._turn(paging.sql, paging.values)
            now = self._head()
            if now.compacted != compacted:
                compacted = now.compacted
                longest_ns = max(now.longest_ns, now.segment_ns)
                paging = table_rows.Paging("facts", reading, wanted, head.position, longest_ns)
                continue
            if not turn:
                return
            for facts in self._read(turn, reading, on_damage):
                first, stop = facts.first_seq, facts.stop_seq
                new = seq_ranges.missing(seq_ranges.overlapping(given, first, stop), first, stop)
                seq_ranges.add(given, first, stop)
                yield from [facts] if new == [(first, stop)] else table_rows.cut(facts, new)
            paging.move_to(turn[-1])

    def _batches_by_time(
        self, wanted: Window, reading: table_rows.Reading, on_damage: OnDamage | None, head: Head
    ) -> Iterator[Batch]:
        """Rows of workers' batches by the start of their span."""
        paging = table_rows.Paging("batches", reading, wanted, head.batches, head.longest_ns)
        while turn := self._turn(paging.sql, paging.values):
            self._require_unreleased(head)
            yield from self._read(turn, reading, on_damage)
            paging.move_to(turn[-1])
        self._require_unreleased(head)

    def _read(
        self, turn: list[Row], reading: table_rows.Reading, on_damage: OnDamage | None
    ) -> Iterator[Batch]:
        for row in turn:
            try:
                with self._naming():
                    batch = self._whole(reading[1](row))
            except Corrupt as error:
                if on_damage is None:
                    raise
                on_damage(error)
            else:
                yield batch

    def _require_unreleased(self, then: Head) -> None:
        """Refuse to continue a read if events were released meanwhile."""
        if self._head().archived != then.archived:
            raise Unavailable(
                "events were moved to an archive while they were read", hint="read again"
            )

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        # The head is read now, not at the first event: see `timeline/archive/segmented_log`.
        return self._stream(self._head(), node, incarnation, start, stop, on_damage)

    def _stream(
        self,
        head: Head,
        node: str,
        incarnation: int,
        start: int,
        stop: int | None,
        on_damage: OnDamage | None,
    ) -> Iterator[Event]:
        which = "FROM batches WHERE node = :node AND incarnation = :incarnation AND first_seq"
        holding = f"SELECT coalesce(max(first_seq), :start) {which} <= :start"
        sql = f"SELECT {table_rows.BATCHES} {which} >= :start AND first_seq < :stop"
        sql += " ORDER BY first_seq"
        stop = FOREVER_NS if stop is None else stop
        wanted: dict[str, object] = {"node": node, "incarnation": incarnation, "start": start}
        wanted |= {"start": self._turn(holding, wanted)[0][0], "stop": stop}
        while turn := self._turn(sql, wanted):
            self._require_unreleased(head)
            for row in turn:
                try:
                    events = self._unpack(self._checked(row))
                except Corrupt as error:
                    if on_damage is None:
                        raise
                    on_damage(error)
                else:
                    yield from (event for event in events if start <= event.seq < stop)
            wanted["start"] = turn[-1][3] + turn[-1][4]
        self._require_unreleased(head)

    def check(self, on_damage: OnDamage) -> None:
        for _ in self._batches_by_time(
            EVERYTHING, table_rows.CHECKED["batches"], on_damage, self._head()
        ):
            pass

    def tallies(self) -> list[Tally]:
        found: dict[tuple[str, int], Tally] = {}
        for node, incarnation, kinds, count, first, last in self._all(table_rows.TALLIES):
            new = Tally(
                node=node,
                incarnation=incarnation,
                events=int(count),
                wall_from_ns=first,
                wall_to_ns=last,
                kinds=frozenset(kinds.split()),
            )
            known = found.get((node, incarnation))
            found[node, incarnation] = new if known is None else _sum(known, new)
        return [found[stream] for stream in sorted(found)]

    def streams(self) -> list[tuple[str, int]]:
        sql = "SELECT node, incarnation FROM {} GROUP BY node, incarnation"
        tables = (self._all(sql.format("batches")), self._all(sql.format("archived")))
        return sorted({(str(node), int(number)) for table in tables for node, number in table})

    def released(self) -> dict[tuple[str, int], list[Range]]:
        """The ranges of seq of each worker's incarnation that were released."""
        with self._naming():
            return table_rows.released_seqs(self._all)

    def released_batches(self) -> int:
        """How many batches were ever released; it grows with each release."""
        return self._head().archived

    def sizes(self) -> dict[tuple[str, int], int]:
        """The bytes that the events of each worker's incarnation take, compressed."""
        sql = "SELECT node, incarnation, sum(length(payload)) FROM batches GROUP BY 1, 2"
        return {(node, number): int(size) for node, number, size in self._all(sql)}

    def last_seq(self, node: str, incarnation: int) -> int | None:
        sql = (
            "SELECT max(first_seq + count - 1) FROM (SELECT first_seq, count FROM {} WHERE "
            "node = ? AND incarnation = ? ORDER BY first_seq DESC LIMIT 1) AS newest"
        )
        newest = [
            self._all(sql.format(table), (node, incarnation))[0][0]
            for table in ("batches", "archived")
        ]
        return max((seq for seq in newest if seq is not None), default=None)

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        with self._naming():
            known = table_rows.known_seqs(self._all, node, incarnation)
        return seq_ranges.missing(known, 0, known[-1][1]) if known else []

    def position_at(self, wall_ns: int) -> int:
        head = self._head()
        low, high = 0, head.position
        while low < high:  # the log clock only grows, so it can be searched like a sorted list
            first, count, clock_ns = self._row_holding(
                "position, count, high_ns", (low + high) // 2
            )
            if clock_ns > wall_ns:
                high = first
            else:
                low = first + count
        # Damage may have misled the search; check the rows on both sides.
        if low > 0:
            self._fact_row_holding(low - 1)
        if low == head.position:
            return low
        events = self._unpack(self._fact_row_holding(low))
        return next(event.seq for event in events if event.wall_ns > wall_ns)

    def clock_after(self, position: int) -> int:
        """The log clock after the row of facts that begins at a position."""
        return int(self._row_holding("position, count, high_ns", position)[2])

    def _fact_row_holding(self, position: int) -> Batch:
        return self._checked_fact(self._row_holding(table_rows.FACTS, position))

    def _row_holding(self, columns: str, position: int) -> Row:
        """Columns of the row that holds a fact; the first two are `position` and `count`."""
        sql = f"SELECT {columns} FROM facts WHERE position <= ? ORDER BY position DESC LIMIT 1"
        found = self._all(sql, (position,))
        if not found or not found[0][0] <= position < found[0][0] + found[0][1]:
            raise self._hole(position)
        return found[0]

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        sql = (
            f"SELECT {table_rows.SNAPSHOTS} FROM snapshots WHERE position <= ? AND schema = ? "
            "ORDER BY position DESC LIMIT 1"
        )
        at = FOREVER_NS if at is None else at
        while found := self._all(sql, (at, schema)):
            try:
                return table_rows.read_snapshot(found[0])
            except Corrupt:  # an older one leads to the same state
                at = found[0][0] - 1
        return None

    def verify(self) -> list[str]:
        """All damage, found by reading the whole store; empty if there is none."""
        found = self._broken_tables()
        try:
            for facts in self.fact_rows(0, self._head().position):
                self._decode(facts)
        except Corrupt as error:
            found.append(error)
        for batch in self.batches(on_damage=found.append):
            try:
                self._decode(batch)
            except Corrupt as error:
                found.append(error)
        return [error.message for error in found]

    def _broken_tables(self) -> list[Corrupt]:
        """What the database itself finds wrong with its tables."""
        return []

    def _unpack(self, batch: Batch) -> list[Event]:
        return self._decoded.get(batch, partial(self._decode, batch))

    def _decode(self, batch: Batch) -> list[Event]:
        with self._naming():
            return unpack(self._codec, batch)

    def _checked_fact(self, row: Row) -> Batch:
        with self._naming():
            return self._whole(table_rows.read_fact(row))

    def _whole(self, batch: Batch) -> Batch:
        """A batch with its events, also where they were moved out of the log."""
        if batch.node != COORDINATOR or not is_moved(batch.payload):
            return batch
        return structs.replace(batch, payload=fetched(batch.payload, self._fetch))

    def _checked(self, row: Row) -> Batch:
        with self._naming():
            return table_rows.read_batch(row)

    def _hole(self, first: int) -> Corrupt:
        """The error for a missing fact."""
        following = self._all("SELECT min(position) FROM facts WHERE position > ?", (first,))
        stop = following[0][0] or self.position
        return self._damaged(f"facts @{first} to @{stop - 1} are missing")


def _sum(one: Tally, other: Tally) -> Tally:
    return structs.replace(
        one,
        events=one.events + other.events,
        wall_from_ns=min(one.wall_from_ns, other.wall_from_ns),
        wall_to_ns=max(one.wall_to_ns, other.wall_to_ns),
        kinds=one.kinds | other.kinds,
    )
