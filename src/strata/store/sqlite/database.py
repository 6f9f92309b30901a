"""The database file: its tables, its connections, the meaning of its errors, and integrity checks.

Durability. Write-ahead log, `synchronous=FULL`: a commit is one sync of the log. Checkpoints move
pages into the main file about every 4 MB, and the log is then overwritten from its start, so it
stays that size; readers are short and do not block this. A log that grew regardless is cut back to
`WAL_KEPT_BYTES`.

Costs. Facts have one index and the head is one page, so a small append writes three or four pages.

Readers. A read takes a connection from a pool, fetches a bounded number of rows and returns the
connection. So a long read does not keep the write-ahead log from being reused, and never waits for
the writer.
"""

import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from strata.errors import Corrupt, StrataError, Unavailable, UnknownKind
from strata.store.event_store import Closing
from strata.store.sql import table_rows
from strata.store.sql.table_rows import Ask, Head, Row, Values
from strata.store.sqlite.lock_files import Mark, beside

APPLICATION_ID = int.from_bytes(b"Stra", "big")
VERSION = 3
READABLE = (1, 2, 3)  # 1: no segments of facts; 2: none that were moved
PAGE_BYTES = 4096
WAL_KEPT_BYTES = 16 * 2**20
CHECK_BYTES = 128 * 2**20  # measured: 0.1 s to check a file of this size

SALVAGE = (
    "keep the file; `strata salvage DATA_DIR` copies what is readable into a new folder and says "
    "what is lost, `strata up --salvage` does the same in place and starts the coordinator"
)

SCHEMA = {
    "archived": """CREATE TABLE archived (
        id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL,
        first_seq INTEGER NOT NULL, count INTEGER NOT NULL, checksum INTEGER NOT NULL)""",
    "archived_seq": "CREATE INDEX archived_seq ON archived (node, incarnation, first_seq)",
    "batches": """CREATE TABLE batches (
        id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL,
        first_seq INTEGER NOT NULL, count INTEGER NOT NULL, wall_from_ns INTEGER NOT NULL,
        wall_to_ns INTEGER NOT NULL, kinds TEXT NOT NULL, checksum INTEGER NOT NULL,
        payload BLOB NOT NULL)""",
    "batches_node": "CREATE INDEX batches_node ON batches (node, wall_from_ns)",
    "batches_seq": "CREATE INDEX batches_seq ON batches (node, incarnation, first_seq, count)",
    "batches_time": "CREATE INDEX batches_time ON batches (wall_from_ns)",
    "facts": """CREATE TABLE facts (
        position INTEGER PRIMARY KEY, count INTEGER NOT NULL, incarnation INTEGER NOT NULL,
        wall_from_ns INTEGER NOT NULL, wall_to_ns INTEGER NOT NULL, high_ns INTEGER NOT NULL,
        kinds TEXT NOT NULL, checksum INTEGER NOT NULL, payload BLOB NOT NULL)""",
    "facts_time": "CREATE INDEX facts_time ON facts (wall_from_ns)",
    "head": """CREATE TABLE head (
        id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, fields BLOB NOT NULL)""",
    "snapshots": """CREATE TABLE snapshots (
        position INTEGER PRIMARY KEY, wall_ns INTEGER NOT NULL, schema TEXT NOT NULL,
        checksum INTEGER NOT NULL, state BLOB NOT NULL)""",
}

# Errors of the environment, by SQLite's primary error code; anything not listed is damage.
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space; the store carries on after that"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "let this user write to the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path and the permissions"),
    sqlite3.SQLITE_PERM: ("access is not allowed", "check the file's permissions"),
    sqlite3.SQLITE_BUSY: ("another process keeps it busy", "stop that process, or try again"),
    sqlite3.SQLITE_LOCKED: ("another reader keeps it locked", "try again"),
    sqlite3.SQLITE_IOERR: ("the disk failed", "check the disk and its space; then try again"),
}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as Strata's, with the file's name and what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a text that is damaged
        raise translate(error, path) from error


def translate(error: Exception, path: Path) -> StrataError:
    """The Strata error of an SQLite error."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in _UNAVAILABLE:
        what, hint = _UNAVAILABLE[code]
        return Unavailable(f"the store {path} is not usable, {what} ({error})", hint=hint)
    return Corrupt(f"the store {path} is damaged: {error}", hint=SALVAGE)


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """A connection in autocommit mode that any one thread at a time may use."""
    mode = "mode=rwc" if write else "mode=ro"
    if not write and not _writable(path.parent) and not beside(path, "-wal").exists():
        mode += "&immutable=1"  # there is no writer, and SQLite could not create its shared memory
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
    if write:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=OFF")
        db.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
        db.execute("PRAGMA cache_size=-16384")
    return db


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def create(db: sqlite3.Connection, head: Head) -> None:
    """Make the tables of an empty store, all or nothing."""
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.values():
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={VERSION}")
    db.execute("INSERT INTO head VALUES (?, ?, ?)", table_rows.head_row(head))
    db.execute("COMMIT")


def asking(db: sqlite3.Connection) -> Ask:
    """The function that runs a query on a connection."""
    return lambda sql, values: db.execute(sql, values).fetchall()


def load_head(db: sqlite3.Connection) -> Head:
    """The head as this connection sees it."""
    row = db.execute(f"SELECT {table_rows.HEAD} FROM head WHERE id = 1").fetchone()
    if row is None:
        raise Corrupt("the head of the store is missing")
    return table_rows.read_head(row)


def inspect(path: Path, mark: Mark | None) -> Head | None:
    """The head of an intact store; None when there is no store yet.

    Uses a read-only connection, so that a damaged file is left as it is. `mark` must be read
    before: a writer may be running.
    """
    if not path.exists() or path.stat().st_size == 0:
        _require_nothing_lost(path, mark)
        return None
    with translated(path), closing(connect(path, write=False)) as db:
        db.execute("BEGIN")
        statements = dict(db.execute("SELECT name, sql FROM sqlite_schema").fetchall())
        identity = (_pragma(db, "application_id"), _pragma(db, "user_version"))
        if not statements and identity == (0, 0):
            _require_nothing_lost(path, mark)
            return None
        _require_ours(path, *identity)
        with naming(path):
            if not SCHEMA.items() <= statements.items():  # more, where an older release made it
                raise Corrupt("its tables are not those of an event store")
            if path.stat().st_size <= CHECK_BYTES:
                require_sound(db)
            head = load_head(db)
            _require_complete(db, head, mark)
            return head


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors about damage."""
    try:
        yield
    except Corrupt as error:
        message = f"the store {path} is damaged: {error.message}"
        raise Corrupt(message, hint=error.hint or SALVAGE) from error


def _require_ours(path: Path, application_id: int, version: int) -> None:
    if application_id != APPLICATION_ID:
        raise Corrupt(
            f"{path} is not a Strata event store",
            hint="choose another file; if this one was a store, its header is damaged: "
            "`strata salvage DATA_DIR` copies what is readable",
        )
    if version not in READABLE:
        raise UnknownKind(
            f"the store {path} has format {version}, this release reads up to {VERSION}",
            hint="start the version of Strata that wrote it; the store is unchanged",
        )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def require_sound(db: sqlite3.Connection) -> None:
    """Raise `Corrupt` when trees or indexes of the file are broken."""
    found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise Corrupt(str(found))


def _require_complete(db: sqlite3.Connection, head: Head, mark: Mark | None) -> None:
    last = db.execute("SELECT position + count FROM facts ORDER BY position DESC LIMIT 1")
    position = (last.fetchone() or (0,))[0]
    batches = (db.execute("SELECT max(id) + 1 FROM batches").fetchone()[0] or 0, head.batches)
    if position != head.position or batches[0] > batches[1]:
        raise Corrupt(f"it ends at position {position} instead of {head.position}")
    if mark is not None and mark.commits > head.commits:
        raise Corrupt(
            f"it ends at position {head.position} with {head.batches} worker batches, but "
            f"{mark.position} and {mark.batches} were acknowledged; the end of its write-ahead "
            "log is unreadable or missing",
            hint=f"{SALVAGE}; if you put back an older copy on purpose, delete the .mark file",
        )


def _require_nothing_lost(path: Path, mark: Mark | None) -> None:
    if mark is not None and mark.commits > 0:
        raise Corrupt(
            f"the store {path} is empty, but {mark.position} facts were acknowledged",
            hint="put the file back; to start a new log on purpose, delete the .mark file; "
            "`strata up --salvage` goes on without the lost facts",
        )


TURN_ROWS = 512
TURN_BYTES = 4 * 2**20


class Connections(Closing):
    """Connections to one file, for reading."""

    def _connect(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise Unavailable(f"the store {self.path} is closed")
        with translated(self.path):
            db = self._idle.pop() if self._idle else connect(self.path, write=False)
            try:
                yield db
            finally:
                if self._closed:
                    db.close()
                else:
                    self._idle.append(db)

    def _turn(self, sql: str, values: Values) -> list[Row]:
        taken: list[Row] = []
        size = 0
        with self._connection() as db, closing(db.execute(sql, values)) as cursor:
            for row in cursor:
                taken.append(row)
                size += len(row[-1]) if isinstance(row[-1], bytes) else 0
                if size > TURN_BYTES or len(taken) >= TURN_ROWS:
                    break
        return taken

    def _all(self, sql: str, values: Values = ()) -> list[Row]:
        with self._connection() as db:
            return db.execute(sql, values).fetchall()

    def _head(self) -> Head:
        with self._connection() as db, naming(self.path):
            return load_head(db)
