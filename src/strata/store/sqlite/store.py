"""Writing an SQLite store.

Every change is one transaction that also counts itself in the head: the head's position is what
`expected` is compared with, inside the transaction, so that even writers that got past the lock
cannot both win. After the commit the mark beside the file is moved up.
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strata.core.events import COORDINATOR, Codec, Event
from strata.errors import Conflict, Corrupt, Unavailable
from strata.store import ranges, snapshots
from strata.store.base import Archived, Batch, Snapshot
from strata.store.batches import pack, parts, validate
from strata.store.sqlite import database, rows
from strata.store.sqlite.archive import Move, Moved, fill
from strata.store.sqlite.reader import SqliteReader
from strata.store.sqlite.rows import Head
from strata.store.sqlite.sidecar import Lock, Mark, MarkFile, beside, read_mark

WAL_LOOK_COMMITS = 256


class SqliteStore(SqliteReader):
    """An SQLite store open for writing; the only one, as long as it is open."""

    def __init__(self, path: str | Path, codec: Codec, *, new: Head | None = None) -> None:
        """Opens a store, or makes one; `new` is its head then, when it does not start at 0."""
        self._begin(Path(path), codec)
        self._writing = threading.Lock()
        with ExitStack() as opened:
            lock = Lock(self.path)
            opened.callback(lock.release)
            head = database.inspect(self.path, read_mark(self.path))
            with database.translated(self.path):
                self._db = database.connect(self.path, write=True)
                opened.callback(self._db.close)
                if head is None:
                    head = new or Head(log=uuid.uuid4().hex)
                    database.create(self._db, head)
            self._mark = MarkFile(self.path)
            opened.callback(self._mark.close)
            self._open = opened.pop_all()
        self._current = head
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
        """Stores rows of another store as they are."""
        with self._transaction() as head:
            self._insert(head, facts, batches)

    def _insert(self, head: Head, facts: Iterable[Batch], batches: Iterable[Batch]) -> None:
        for each in facts:
            head.high_ns = max(head.high_ns, each.wall_to_ns)
            head.longest_ns = max(head.longest_ns, each.wall_to_ns - each.wall_from_ns)
            head.position = each.stop_seq
            self._db.execute(
                "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows.fact_row(each, head.high_ns),
            )
        for batch in batches:
            new = rows.new_seqs(self._db, batch)
            whole = new == [(batch.first_seq, batch.stop_seq)]
            for part in [batch] if whole else parts(batch, new) if new else []:
                head.longest_ns = max(head.longest_ns, part.wall_to_ns - part.wall_from_ns)
                self._db.execute(
                    "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    rows.batch_row(head.batches, part),
                )
                head.batches += 1

    @contextmanager
    def _transaction(self) -> Iterator[Head]:
        """A durable change of the tables and the head, all or nothing; nothing new, no write."""
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
                db.execute("UPDATE head SET id = ?, checksum = ?, fields = ?", rows.head_row(head))
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
        """Cuts back a write-ahead log that readers of other processes kept from being reused."""
        # The append is durable already; a checkpoint that does not succeed is tried again.
        with suppress(OSError, sqlite3.OperationalError):
            if beside(self.path, "-wal").stat().st_size > 4 * database.WAL_KEPT_BYTES:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def save_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.validate(snapshot, self._current.floor, self._current.position)
        row = rows.snapshot_row(snapshot)
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)
            kept = self._db.execute("SELECT position, schema FROM snapshots ORDER BY position")
            for position in snapshots.surplus(kept.fetchall()):
                self._db.execute("DELETE FROM snapshots WHERE position = ?", (position,))

    def archive(self, before: int, path: str | Path) -> Archived:
        head = self._head()
        snapshots.require_archivable(before, head.position, self._newest_snapshot())
        stop, stop_ns = self._cut(before, head)
        target = Path(path).absolute()
        if stop <= head.floor:
            return Archived(head.floor, head.floor, 0, str(target))
        move = Move(
            head.log,
            head.floor,
            stop,
            facts=lambda start: self.fact_rows(start, stop),
            batches=lambda: self._old_batches(stop_ns, head.batches),
            snapshots=lambda: self._old_snapshots(stop),
        )
        new = Head(head.log, position=head.floor, floor=head.floor, floor_ns=head.floor_ns)
        with SqliteStore(target, self._codec, new=new) as store:
            moved = fill(store, move)
            store.seal()
        return self._forget(head, stop, stop_ns, str(target), moved)

    def _newest_snapshot(self) -> int | None:
        found: int | None = self._all("SELECT max(position) FROM snapshots")[0][0]
        return found

    def _cut(self, before: int, head: Head) -> tuple[int, int]:
        """Where the rows end that hold only facts before a position, and the log clock there."""
        if before <= head.floor:
            return head.floor, head.floor_ns
        columns = "position, count, high_ns"
        stop = head.position if before == head.position else self._row_holding(columns, before)[0]
        clock = self._row_holding(columns, stop - 1)[2] if stop > head.floor else head.floor_ns
        return stop, clock

    def _old_batches(self, until_ns: int, stop: int) -> Iterator[Batch]:
        sql = (
            f"SELECT {rows.BATCHES} FROM batches WHERE id > ? AND id < ? AND wall_to_ns <= ? "
            "ORDER BY id"
        )
        after = -1
        while turn := self._turn(sql, (after, stop, until_ns)):
            yield from map(self._checked, turn)
            after = turn[-1][0]

    def _old_snapshots(self, stop: int) -> Iterator[Snapshot]:
        sql = f"SELECT {rows.SNAPSHOTS} FROM snapshots WHERE position = ?"
        for (position,) in self._all("SELECT position FROM snapshots WHERE position <= ?", (stop,)):
            for row in self._all(sql, (position,)):
                with suppress(Corrupt):  # derived: a damaged one is not worth keeping
                    yield rows.read_snapshot(row)

    def _forget(self, then: Head, stop: int, stop_ns: int, path: str, moved: Moved) -> Archived:
        """Takes out what is in the archive now, and remembers where it went."""
        with self._transaction() as head:
            if head.floor != then.floor:
                raise Conflict("the log was archived by another caller meanwhile")
            self._db.execute("DELETE FROM facts WHERE position < ?", (stop,))
            old = "DELETE FROM batches WHERE wall_to_ns <= ? AND id < ?"
            batches = self._db.execute(old, (stop_ns, then.batches)).rowcount
            self._db.execute("DELETE FROM snapshots WHERE position < ?", (stop,))
            self._remember(moved)
            archives = rows.plain_row("archives", stop, then.floor, path)
            self._db.execute("INSERT INTO archives VALUES (?, ?, ?, ?)", archives)
            head.floor, head.floor_ns = stop, stop_ns
            head.archived += batches
        return Archived(then.floor, stop, batches, path)

    def _remember(self, moved: Moved) -> None:
        """Keeps the ranges of seq that are archived, so that a resend is still recognised."""
        for (node, incarnation), seqs in moved.items():
            where = "FROM archived WHERE node = ? AND incarnation = ?"
            stream = (node, incarnation)
            earlier = self._db.execute(f"SELECT {rows.ARCHIVED} {where}", stream).fetchall()
            self._db.execute(f"DELETE {where}", stream)
            for row in earlier:
                *_, first, count = rows.read_plain("archived", row)
                ranges.add(seqs, first, first + count)
            for first, stop in seqs:
                number = self._db.execute("SELECT coalesce(max(id), 0) + 1 FROM archived")
                fields = (*number.fetchone(), node, incarnation, first, stop - first)
                row = rows.plain_row("archived", *fields)
                self._db.execute("INSERT INTO archived VALUES (?, ?, ?, ?, ?, ?)", row)

    def batch_at(self, node: str, incarnation: int, first_seq: int) -> Batch | None:
        """The stored batch that starts at that seq."""
        sql = (
            f"SELECT {rows.BATCHES} FROM batches "
            "WHERE node = ? AND incarnation = ? AND first_seq = ?"
        )
        found = self._all(sql, (node, incarnation, first_seq))
        return self._checked(found[0]) if found else None

    def require_log(self, log: str, first: int) -> None:
        """Refuses to continue a store that belongs to another log or begins after `first`."""
        head = self._head()
        if head.log != log or not head.floor <= first <= head.position:
            raise Conflict(
                f"the archive {self.path} belongs to another log, or to another part of this one",
                hint="archive to a new file",
            )

    def seal(self) -> None:
        """Leaves one self-contained file that needs no write access to be read."""
        while self._idle:
            self._idle.pop().close()
        with database.translated(self.path):
            self._db.execute("PRAGMA journal_mode=DELETE")
