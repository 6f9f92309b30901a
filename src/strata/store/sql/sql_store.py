"""Writing a store in an SQL database.

Every change is one transaction that also updates the head: the head's position is compared with
`expected` inside the transaction, so that even writers that got past the lock cannot both win.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from msgspec import structs

from strata.core.events import COORDINATOR, Event
from strata.errors import Conflict
from strata.store import seq_ranges, snapshots
from strata.store.event_batches import pack, parts, validate
from strata.store.event_store import Batch, Range, Snapshot
from strata.store.fact_references import Moved, checksum, reference
from strata.store.fact_segments import MAGIC
from strata.store.sql import table_rows
from strata.store.sql.segment_plan import segment_after
from strata.store.sql.sql_reader import SqlReader
from strata.store.sql.table_rows import Ask, Head, Values

RELEASED_ROWS = 64
"""Batches released in one transaction, for which an append may have to wait: some milliseconds."""

NEW_FACTS = "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Change:
    """A transaction that is open: its statements, and the head that its end writes."""

    def __init__(self, head: Head, ask: Ask) -> None:
        self.head = head
        self.rows = ask
        self.made = False

    def execute(self, sql: str, values: Values) -> None:
        """Run a statement that changes a table."""
        self.made = True
        self.rows(sql, values)

    def finish(self) -> None:
        """Write the head; the commit follows."""
        self.head.commits += 1
        self.execute(
            "UPDATE head SET id = ?, checksum = ?, fields = ?",
            table_rows.head_row(self.head),
        )


class SqlStore(SqlReader):
    """A store open for writing; the only one, as long as it is open."""

    _current: Head
    _compacted: int

    def _start(self, head: Head) -> None:
        self._current = head
        self._compacted = head.compacted

    def leads(self) -> bool:
        """Whether nobody else can have become the writer."""
        return True

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Change]:
        """A durable transaction on the tables and the head; writes nothing without changes."""

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        assert not events or events[0].seq == expected, "facts are numbered by their position"
        facts = [pack(self._codec, COORDINATOR, incarnation, events)] if events else []
        for batch in batches:
            validate(batch)
        with self._transaction() as change:
            if change.head.position != expected:
                raise Conflict(
                    f"the log is at position {change.head.position}, not {expected}: another "
                    "writer won",
                    hint="read what it wrote, decide again, then append",
                )
            _insert(change, facts, batches)
        return self._current.position

    def load(self, facts: Iterable[Batch], batches: Iterable[Batch]) -> None:
        """Store rows of another store as they are."""
        with self._transaction() as change:
            _insert(change, facts, batches)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.validate(snapshot, self._current.position)
        row = table_rows.snapshot_row(snapshot)
        with self._transaction() as change:
            change.execute("DELETE FROM snapshots WHERE position = ?", (snapshot.position,))
            change.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)", row)
            kept = change.rows("SELECT position FROM snapshots ORDER BY position", ())
            for position in snapshots.surplus([position for (position,) in kept]):
                change.execute("DELETE FROM snapshots WHERE position = ?", (position,))

    def compact(self, stop: int) -> int:
        start = max(self._current.compacted, self._compacted)
        joined = segment_after(self, start, min(stop, self._current.position))
        if joined is None:
            return 0
        self._compacted = joined.stop
        if joined.segment is not None:
            self._replace(joined.segment, joined.high_ns)
        return joined.stop - start

    def _replace(self, segment: Batch, high_ns: int) -> None:
        """Put a segment in the place of the rows that hold the same facts."""
        first, stop = segment.first_seq, segment.stop_seq
        row = table_rows.fact_row(segment, high_ns)
        with self._transaction() as change:
            self._note_version(change)
            change.execute("DELETE FROM facts WHERE position >= ? AND position < ?", (first, stop))
            change.execute(NEW_FACTS, row)
            head = change.head
            head.compacted = stop
            head.segment_ns = max(head.segment_ns, segment.wall_to_ns - segment.wall_from_ns)

    def _note_version(self, change: Change) -> None:
        """Note that rows of the present format are written, where the store may be an older one."""

    def fact_bytes(self) -> int:
        """The compressed size of the facts in this store."""
        return int(self._all("SELECT coalesce(sum(length(payload)), 0) FROM facts")[0][0])

    def segments(self, limit: int) -> list[Batch]:
        """The oldest segments in this store, at most `limit`."""
        sql = (
            f"SELECT {table_rows.FACTS} FROM facts WHERE substr(payload, 1, ?) = ? "
            "ORDER BY position LIMIT ?"
        )
        found = self._all(sql, (len(MAGIC), MAGIC, limit))
        return [self._checked_fact(row) for row in found]

    def move_out(self, segment: Batch, moved: Moved) -> None:
        """Replace a segment by a reference; the caller has verified the copy elsewhere."""
        assert moved.xxh3 == checksum(segment.payload), "another payload was moved"
        row = self._row_holding(table_rows.FACTS, segment.first_seq)
        assert table_rows.read_fact(row) == segment, "the row changed meanwhile"
        high_ns = row[table_rows.FACTS.split(", ").index("high_ns")]
        there = structs.replace(segment, payload=reference(moved))
        with self._transaction() as change:
            self._note_version(change)
            change.execute("DELETE FROM facts WHERE position = ?", (there.first_seq,))
            change.execute(NEW_FACTS, table_rows.fact_row(there, high_ns))

    def release(self, node: str, incarnation: int, stop: int, start: int = 0) -> int:
        sql = (
            "SELECT id, first_seq, count FROM batches WHERE node = ? AND incarnation = ? "
            "AND first_seq >= ? AND first_seq + count <= ? ORDER BY first_seq LIMIT ?"
        )
        events = 0
        while gone := self._all(sql, (node, incarnation, start, stop, RELEASED_ROWS)):
            with self._transaction() as change:
                for number, _, _ in gone:
                    change.execute("DELETE FROM batches WHERE id = ?", (number,))
                ranges = [(first, first + n) for _, first, n in gone]
                self._remember(change, node, incarnation, ranges)
                change.head.archived += len(gone)
            events += sum(count for *_, count in gone)
        return events

    def _remember(self, change: Change, node: str, incarnation: int, released: list[Range]) -> None:
        """Store the released ranges of seq, so that a resend is still recognised."""
        where = "FROM archived WHERE node = ? AND incarnation = ?"
        stream = (node, incarnation)
        known: list[Range] = []
        for row in change.rows(f"SELECT {table_rows.ARCHIVED} {where}", stream):
            *_, first, count = table_rows.read_plain("archived", row)
            seq_ranges.add(known, first, first + count)
        change.execute(f"DELETE {where}", stream)
        for each in released:
            seq_ranges.add(known, *each)
        [[number]] = change.rows("SELECT coalesce(max(id), 0) + 1 FROM archived", ())
        for free, (first, stop) in enumerate(known, number):
            row = table_rows.plain_row("archived", free, *stream, first, stop - first)
            change.execute("INSERT INTO archived VALUES (?, ?, ?, ?, ?, ?)", row)


def _insert(change: Change, facts: Iterable[Batch], batches: Iterable[Batch]) -> None:
    head = change.head
    for each in facts:
        head.high_ns = max(head.high_ns, each.wall_to_ns)
        head.longest_ns = max(head.longest_ns, each.wall_to_ns - each.wall_from_ns)
        head.position = each.stop_seq
        change.execute(NEW_FACTS, table_rows.fact_row(each, head.high_ns))
    for batch in batches:
        new = table_rows.new_seqs(change.rows, batch)
        whole = new == [(batch.first_seq, batch.stop_seq)]
        for part in [batch] if whole else parts(batch, new) if new else []:
            head.longest_ns = max(head.longest_ns, part.wall_to_ns - part.wall_from_ns)
            row = table_rows.batch_row(head.batches, part)
            change.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            head.batches += 1
