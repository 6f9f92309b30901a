"""Writing an SQLite store.

After each commit the mark beside the file is updated (see `lock_files`).
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strata.core.events import Codec
from strata.errors import Unavailable
from strata.store.fact_references import Fetch, unreachable
from strata.store.sql.sql_store import Change, SqlStore
from strata.store.sql.table_rows import Head
from strata.store.sqlite import database
from strata.store.sqlite.lock_files import Lock, Mark, MarkFile, beside, read_mark
from strata.store.sqlite.sqlite_reader import SqliteReader

WAL_LOOK_COMMITS = 256


class SqliteStore(SqliteReader, SqlStore):
    """An SQLite store open for writing; the only one, as long as it is open."""

    def __init__(self, path: str | Path, codec: Codec, fetch: Fetch = unreachable) -> None:
        """Open a store, or create one."""
        self._connect(Path(path))
        self._begin(codec, fetch)
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
        self._start(head)
        self._mark.write(Mark(head.commits, head.position, head.batches))

    def close(self) -> None:
        with self._writing:
            super().close()
            with database.translated(self.path):
                self._open.close()

    @contextmanager
    def _transaction(self) -> Iterator[Change]:
        with self._writing, database.translated(self.path):
            db = self._open_db()
            db.execute("BEGIN IMMEDIATE")
            try:
                with self._naming():
                    change = Change(database.load_head(db), database.asking(db))
                yield change
                if not change.made:
                    db.execute("ROLLBACK")
                    return
                change.finish()
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            head = self._current = change.head
            self._mark.write(Mark(head.commits, head.position, head.batches))
            if head.commits % WAL_LOOK_COMMITS == 0:
                self._bound_wal()

    def _note_version(self, change: Change) -> None:
        change.execute(f"PRAGMA user_version={database.VERSION}", ())

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
