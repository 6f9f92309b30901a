"""Connections to a PostgreSQL server, the tables, and the meaning of its errors.

Durability. Writers set `synchronous_commit = on`, whatever the server's default: a commit that
returned is on the server's disk, and on its synchronous standby where one is configured.

Failures. A server that does not answer is given up after `GIVE_UP_S`; a broken connection is
replaced by the next statement. What a writer cannot know, namely whether a commit whose connection
broke took place, the caller finds out by reading.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo

from strata.errors import Corrupt, SettingError, StrataError, Unavailable, UnknownKind
from strata.store.event_store import Closing
from strata.store.sql import table_rows
from strata.store.sql.table_rows import Ask, Head, Row, Values

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SCHEMA = "strata"
VERSION = 1
GIVE_UP_S = 10
TURN_ROWS = 512
TURN_BYTES = 4 * 2**20

MENDING = "restore the database from a backup, or from a replica that is intact"

TABLES = """
CREATE SCHEMA IF NOT EXISTS strata;
CREATE TABLE format (version BIGINT NOT NULL);
CREATE TABLE leader (
    id BIGINT PRIMARY KEY, term BIGINT NOT NULL, holder TEXT NOT NULL,
    until TIMESTAMPTZ NOT NULL);
CREATE TABLE archived (
    id BIGINT PRIMARY KEY, node TEXT COLLATE "C" NOT NULL, incarnation BIGINT NOT NULL,
    first_seq BIGINT NOT NULL, count BIGINT NOT NULL, checksum BIGINT NOT NULL);
CREATE INDEX archived_seq ON archived (node, incarnation, first_seq);
CREATE TABLE batches (
    id BIGINT PRIMARY KEY, node TEXT COLLATE "C" NOT NULL, incarnation BIGINT NOT NULL,
    first_seq BIGINT NOT NULL, count BIGINT NOT NULL, wall_from_ns BIGINT NOT NULL,
    wall_to_ns BIGINT NOT NULL, kinds TEXT NOT NULL, checksum BIGINT NOT NULL,
    payload BYTEA NOT NULL);
CREATE INDEX batches_node ON batches (node, wall_from_ns);
CREATE INDEX batches_seq ON batches (node, incarnation, first_seq, count);
CREATE INDEX batches_time ON batches (wall_from_ns, id);
CREATE TABLE facts (
    position BIGINT PRIMARY KEY, count BIGINT NOT NULL, incarnation BIGINT NOT NULL,
    wall_from_ns BIGINT NOT NULL, wall_to_ns BIGINT NOT NULL, high_ns BIGINT NOT NULL,
    kinds TEXT NOT NULL, checksum BIGINT NOT NULL, payload BYTEA NOT NULL);
CREATE INDEX facts_time ON facts (wall_from_ns, position);
CREATE TABLE head (id BIGINT PRIMARY KEY, checksum BIGINT NOT NULL, fields BYTEA NOT NULL);
CREATE TABLE secrets (name TEXT PRIMARY KEY, content BYTEA NOT NULL);
CREATE TABLE snapshots (
    position BIGINT PRIMARY KEY, wall_ns BIGINT NOT NULL, schema TEXT NOT NULL,
    checksum BIGINT NOT NULL, state BYTEA NOT NULL);
ALTER TABLE batches ALTER payload SET STORAGE EXTERNAL;
ALTER TABLE facts ALTER payload SET STORAGE EXTERNAL;
ALTER TABLE snapshots ALTER state SET STORAGE EXTERNAL;
"""
"""Payloads are compressed already: the server stores them as they are."""

_DAMAGE = ("XX001", "XX002", "42P01", "42703")  # damaged data or index; no such table or column
_HINTS = {
    "28": "check the user and password of the store's address",
    "3D": "create the database: `createdb NAME`",
    "42501": "give the user the right to create a schema: GRANT CREATE ON DATABASE",
    "53100": "free space on the server's disk; writes succeed again after that",
    "53300": "raise max_connections of the server, or close other connections",
    "25006": "use the address of the primary server, not of a replica",
}


def shown(url: str) -> str:
    """An address without its password."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise SettingError(
            f"the store's address is not one of PostgreSQL: {str(error).strip()}",
            hint="write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE",
        ) from None
    host = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    return f"postgresql://{host}/{parts.get('dbname', '')}"


def connect(url: str, *, write: bool, idle_s: float = 0.0) -> Connection:
    """A connection in autocommit mode that any one thread at a time may use.

    With `idle_s` the server breaks it when a transaction does nothing for that long.
    """
    defaults = {
        "connect_timeout": GIVE_UP_S,
        "tcp_user_timeout": GIVE_UP_S * 1000,
        "keepalives_idle": GIVE_UP_S,
        "application_name": "strata",
    }
    given: dict[str, Any] = conninfo.conninfo_to_dict(url)
    address = conninfo.make_conninfo("", **{**defaults, **given})
    db = psycopg.connect(address, autocommit=True)
    db.execute(f"SET search_path = {SCHEMA}")
    db.execute(f"SET lock_timeout = '{GIVE_UP_S}s'")
    if write:
        db.execute("SET synchronous_commit = on")
        db.execute(f"SET idle_in_transaction_session_timeout = {int(idle_s * 1000)}")
    else:
        db.execute("SET default_transaction_read_only = on")
    return db


def create(db: Connection, head: Head) -> None:
    """Make the tables of an empty store, all or nothing; harmless if they exist."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(hashtext('strata: create'))")
        if version_of(db) is not None:
            return
        db.execute(TABLES)
        ask = asking(db)
        ask("INSERT INTO format VALUES (?)", (VERSION,))
        ask("INSERT INTO leader VALUES (1, 0, '', 'epoch')", ())
        ask("INSERT INTO head VALUES (?, ?, ?)", table_rows.head_row(head))


def version_of(db: Connection) -> int | None:
    """The version of the tables' format; None where there is no store."""
    found = db.execute("SELECT to_regclass('strata.format')").fetchone()
    if found is None or found[0] is None:
        return None
    row = db.execute("SELECT version FROM format").fetchone()
    if row is None:
        raise Corrupt("its table `format` is empty")
    version = int(row[0])
    if version != VERSION:
        raise UnknownKind(
            f"the store has format {version}, this release reads {VERSION}",
            hint="start the version of Strata that wrote it; the store is unchanged",
        )
    return version


def asking(db: Connection) -> Ask:
    """The function that runs a query on a connection."""

    def ask(sql: str, values: Values) -> list[Row]:
        cursor = db.execute(_translated(sql), values, binary=True)
        return list(cursor.fetchall()) if cursor.description else []

    return ask


@lru_cache(maxsize=256)
def _translated(sql: str) -> bytes:
    """A statement with psycopg's placeholders."""
    return re.sub(r":(\w+)", r"%(\1)s", sql.replace("?", "%s")).encode()


def load_head(ask: Ask, lock: str = "") -> Head:
    """The head as it is now; `lock` is a locking clause."""
    rows = ask(f"SELECT {table_rows.HEAD} FROM head WHERE id = 1{lock}", ())
    if not rows:
        raise Corrupt("its head is missing")
    return table_rows.read_head(rows[0])


@contextmanager
def translated(name: str) -> Iterator[None]:
    """psycopg's errors as Strata's, with the store's name and what to do."""
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, psycopg.ProgrammingError) and not error.sqlstate:
            raise  # a wrong call, not a failure of the server
        raise translate(error, name) from error


def translate(error: psycopg.Error, name: str) -> StrataError:
    """The Strata error of an error of PostgreSQL."""
    code = error.sqlstate or ""
    what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if code in _DAMAGE:
        return Corrupt(f"the store {name} is damaged: {what}", hint=MENDING)
    hint = next((hint for start, hint in _HINTS.items() if code.startswith(start)), "")
    return Unavailable(
        f"the store {name} is not usable: {what}",
        hint=hint or "check that the PostgreSQL server runs and can be reached",
    )


class Connections(Closing):
    """Connections to one database, for reading."""

    mending = MENDING

    def _connect(self, url: str) -> None:
        self._url = url
        self.name = shown(url)
        self._idle: deque[Connection] = deque()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        if self._closed:
            raise Unavailable(f"the store {self.name} is closed")
        with translated(self.name):
            db = self._live()
            try:
                yield db
            finally:
                if self._closed:
                    db.close()
                elif not db.closed:
                    self._idle.append(db)

    def _live(self) -> Connection:
        """A connection that answers: the server may have ended idle ones, as a restart does."""
        while self._idle:
            db = self._idle.pop()
            with suppress(psycopg.OperationalError):
                db.execute("")
                return db
            db.close()
        return connect(self._url, write=False)

    def _turn(self, sql: str, values: Values) -> list[Row]:
        taken: list[Row] = []
        size = 0
        limited = _translated(f"{sql} LIMIT {TURN_ROWS}")
        with self._connection() as db, db.cursor(binary=True) as cursor:
            for row in cursor.stream(limited, values):
                taken.append(row)
                size += len(row[-1]) if isinstance(row[-1], bytes) else 0
                if size > TURN_BYTES:
                    break
        return taken

    def _all(self, sql: str, values: Values = ()) -> list[Row]:
        with self._connection() as db:
            return asking(db)(sql, values)

    def _head(self) -> Head:
        with self._connection() as db:
            return load_head(asking(db))
