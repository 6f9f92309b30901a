"""Writing an SQLite store.

Every change is one transaction that also updates the head: the head's position is compared with
`expected` inside the transaction, so that even writers that got past the lock cannot both win.
After the commit the mark beside the file is updated.
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import structs

from strata.core.events import COORDINATOR, Codec, Event
from strata.errors import Conflict, Unavailable
from strata.store import seq_ranges, snapshots
from strata.store.event_batches import pack, parts, validate
from strata.store.event_store import Batch, Range, Snapshot
from strata.store.fact_references import Fetch, Moved, checksum, reference, unreachable
from strata.store.fact_segments import MAGIC
from strata.store.sqlite import database, table_rows
from strata.store.sqlite.lock_files import Lock, Mark, MarkFile, beside, read_mark
from strata.store.sqlite.segment_plan import segment_after
from strata.store.sqlite.sqlite_reader import SqliteReader
from strata.store.sqlite.table_rows import Head

WAL_LOOK_COMMITS = 256
RELEASED_ROWS = 64
"""Batches released in one transaction, for which an append may have to wait: some milliseconds."""


class SqliteStore(SqliteReader):
    """An SQLite store open for writing; the only one, as long as it is open."""

    def __init__(self, path: str | Path, codec: Codec, fetch: Fetch = unreachable) -> None:
        """Open a store, or create one."""
        self._begin(Path(path), codec, fetch)
        self._writing = threading.Lock()
        with ExitStack() as opened:
            lock = Lock(self.path)
            opened.callback(lock.release)
            head = database.inspect(self.path, read_mark(self.path))
            with database.translated(self.path):
                self._db = database.connect(self.path, write=True)
                opened.callback(self._db.close)
                if head is None:
                    head = Head(log=uuid.uuid4().hex)
                    database.create(self._db, head)
            self._mark = MarkFile(self.path)
            opened.callback(self._mark.close)
            self._open = opened.pop_all()
        self._current = head
        self._compacted = head.compacted
        self._mark.write(Mark(head.commits, head.position, head.batches))

    def close(self) -> None:
        with self._writing:
            super().close()
            with database.translated(self.path):
                self._open.close()

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
        with self._transaction() as head:
            if head.position != expected:
                raise Conflict(
                    f"the log is at position {head.position}, not {expected}: another writer won",
                    hint="read what it wrote, decide again, then append",
                )
            self._insert(head, facts, batches)
        return self._current.position

    def load(self, facts: Iterable[Batch], batches: Iterable[Batch]) -> None:
        """Store rows of another store as they are."""
        with self._transaction() as head:
            self._insert(head, facts, batches)

    def _insert(self, head: Head, facts: Iterable[Batch], batches: Iterable[Batch]) -> None:
        for each in facts:
            head.high_ns = max(head.high_ns, each.wall_to_ns)
            head.longest_ns = max(head.longest_ns, each.wall_to_ns - each.wall_from_ns)
            head.position = each.stop_seq
            self._db.execute(
                "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                table_rows.fact_row(each, head.high_ns),
            )
        for batch in batches:
            new = table_rows.new_seqs(self._db, batch)
            whole = new == [(batch.first_seq, batch.stop_seq)]
            for part in [batch] if whole else parts(batch, new) if new else []:
                head.longest_ns = max(head.longest_ns, part.wall_to_ns - part.wall_from_ns)
                self._db.execute(
                    "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    table_rows.batch_row(head.batches, part),
                )
                head.batches += 1

    @contextmanager
    def _transaction(self) -> Iterator[Head]:
        """A durable transaction on the tables and the head; writes nothing without changes."""
        with self._writing, database.translated(self.path):
            db = self._open_db()
            db.execute("BEGIN IMMEDIATE")
            try:
                with database.naming(self.path):
                    head = database.load_head(db)
                before = db.total_changes
                yield head
                if db.total_changes == before:
                    db.execute("ROLLBACK")
                    return
                head.commits += 1
                db.execute(
                    "UPDATE head SET id = ?, checksum = ?, fields = ?", table_rows.head_row(head)
                )
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._current = head
            self._mark.write(Mark(head.commits, head.position, head.batches))
            if head.commits % WAL_LOOK_COMMITS == 0:
                self._bound_wal()

    def _open_db(self) -> sqlite3.Connection:
        if self._closed:
            raise Unavailable(f"the store {self.path} is closed")
        return self._db

    def _head(self) -> Head:
        self._open_db()
        return self._current

    def _bound_wal(self) -> None:
        """Cut back a write-ahead log that readers of other processes kept from being reused."""
        # The append is durable already; a checkpoint that does not succeed is tried again.
        with suppress(OSError, sqlite3.OperationalError):
            if beside(self.path, "-wal").stat().st_size > 4 * database.WAL_KEPT_BYTES:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def save_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.validate(snapshot, self._current.position)
        row = table_rows.snapshot_row(snapshot)
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)
            kept = self._db.execute("SELECT position FROM snapshots ORDER BY position")
            for position in snapshots.surplus([position for (position,) in kept]):
                self._db.execute("DELETE FROM snapshots WHERE position = ?", (position,))

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
        with self._transaction() as head:
            self._db.execute(f"PRAGMA user_version={database.VERSION}")
            self._db.execute(
                "DELETE FROM facts WHERE position >= ? AND position < ?", (first, stop)
            )
            self._db.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            head.compacted = stop
            head.segment_ns = max(head.segment_ns, segment.wall_to_ns - segment.wall_from_ns)

    def fact_bytes(self) -> int:
        """The compressed size of the facts in this file."""
        return int(self._all("SELECT coalesce(sum(length(payload)), 0) FROM facts")[0][0])

    def segments(self, limit: int) -> list[Batch]:
        """The oldest segments in this file, at most `limit`."""
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
        with self._transaction():
            self._db.execute(f"PRAGMA user_version={database.VERSION}")
            self._db.execute(
                "REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                table_rows.fact_row(there, high_ns),
            )

    def release(self, node: str, incarnation: int, stop: int, start: int = 0) -> int:
        sql = (
            "SELECT id, first_seq, count FROM batches WHERE node = ? AND incarnation = ? "
            "AND first_seq >= ? AND first_seq + count <= ? ORDER BY first_seq LIMIT ?"
        )
        events = 0
        while gone := self._all(sql, (node, incarnation, start, stop, RELEASED_ROWS)):
            with self._transaction() as head:
                self._db.executemany("DELETE FROM batches WHERE id = ?", [row[:1] for row in gone])
                self._remember(node, incarnation, [(first, first + n) for _, first, n in gone])
                head.archived += len(gone)
            events += sum(count for *_, count in gone)
        return events

    def _remember(self, node: str, incarnation: int, released: list[Range]) -> None:
        """Store the released ranges of seq, so that a resend is still recognised."""
        where = "FROM archived WHERE node = ? AND incarnation = ?"
        stream = (node, incarnation)
        known: list[Range] = []
        for row in self._db.execute(f"SELECT {table_rows.ARCHIVED} {where}", stream).fetchall():
            *_, first, count = table_rows.read_plain("archived", row)
            seq_ranges.add(known, first, first + count)
        self._db.execute(f"DELETE {where}", stream)
        for each in released:
            seq_ranges.add(known, *each)
        for first, stop in known:
            number = self._db.execute("SELECT coalesce(max(id), 0) + 1 FROM archived")
            row = table_rows.plain_row("archived", *number.fetchone(), *stream, first, stop - first)
            self._db.execute("INSERT INTO archived VALUES (?, ?, ?, ?, ?, ?)", row)
