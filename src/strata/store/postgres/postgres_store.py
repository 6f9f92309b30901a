"""Reading and writing a PostgreSQL store."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from strata.core.events import Codec
from strata.errors import NotFound, Unavailable
from strata.store.fact_references import Fetch, unreachable
from strata.store.postgres import leadership
from strata.store.postgres import postgres_tables as tables
from strata.store.postgres.leadership import Leader
from strata.store.postgres.postgres_tables import Connection, Connections
from strata.store.sql.sql_reader import SqlReader
from strata.store.sql.sql_store import Change, SqlStore
from strata.store.sql.table_rows import Ask, Head

LEASE_S = 10.0


class PostgresReader(Connections, SqlReader):
    """A PostgreSQL store open for reading."""

    def __init__(
        self, url: str, codec: Codec, remembered_events: int = 0, fetch: Fetch = unreachable
    ) -> None:
        self._connect(url)
        self._begin(codec, fetch, remembered_events)
        with self._connection() as db, self._naming():
            found = tables.version_of(db)
        if found is None:
            self.close()
            raise NotFound(f"there is no event store at {self.name}", hint="check the address")

    @property
    def place(self) -> str:
        """The address of the store."""
        return self._url

    def leader(self) -> Leader:
        """Who writes the store."""
        with self._connection() as db:
            return leadership.read_leader(db)

    def is_vacant(self) -> bool:
        """Whether another coordinator may take over."""
        with self._connection() as db:
            return leadership.is_vacant(db)


class PostgresStore(PostgresReader, SqlStore):
    """A PostgreSQL store open for writing, as the leader of those that share it."""

    def __init__(
        self,
        url: str,
        codec: Codec,
        fetch: Fetch = unreachable,
        holder: str = "",
        lease_s: float = LEASE_S,
    ) -> None:
        """Take the lead of a store, or create one; `holder` is this coordinator's name."""
        self._connect(url)
        self._begin(codec, fetch)
        self._writing = threading.Lock()
        self._idle_s = max(lease_s, 1.0)
        holder = holder or f"{socket.gethostname()}, process {os.getpid()}"
        with ExitStack() as opened, tables.translated(self.name):
            self._db = tables.connect(url, write=True, idle_s=self._idle_s)
            opened.callback(lambda: self._db.close())
            tables.create(self._db, Head(log=uuid.uuid4().hex))
            self.term = leadership.take_over(self._db, holder, lease_s)
            self._lease = leadership.Lease(url, self.name, self.term, lease_s)
            opened.callback(self._lease.close)
            with self._naming():
                self._start(tables.load_head(tables.asking(self._db)))
            self._known = True
            self._open = opened.pop_all()

    def close(self) -> None:
        with self._writing:
            super().close()
            with tables.translated(self.name):
                self._open.close()

    @contextmanager
    def _transaction(self) -> Iterator[Change]:
        with self._writing:
            try:
                with self._fenced() as ask:
                    with self._naming():
                        change = Change(tables.load_head(ask, " FOR UPDATE"), ask)
                    yield change
                    if change.made:
                        change.finish()
            except BaseException:
                self._known = False  # a commit whose connection broke may have taken place
                raise
            self._current, self._known = change.head, True

    @contextmanager
    def _fenced(self) -> Iterator[Ask]:
        """A durable transaction that is refused if another coordinator has taken over."""
        with tables.translated(self.name):
            db = self._live_writer()
            with db.transaction():
                leadership.require_term(db, self.term)
                yield tables.asking(db)

    def leads(self) -> bool:
        return self._lease.held

    def keep_secret(self, name: str, content: bytes) -> None:
        """Store a secret that all coordinators of this store need; the first one of a name wins."""
        with self._writing, self._fenced() as ask:
            ask("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", (name, content))

    def secret(self, name: str) -> bytes | None:
        """The secret of a name, if there is one."""
        found = self._all("SELECT content FROM secrets WHERE name = ?", (name,))
        return bytes(found[0][0]) if found else None

    def secrets(self) -> list[str]:
        """The names of all secrets."""
        return [str(name) for (name,) in self._all("SELECT name FROM secrets")]

    def discard_secret(self, name: str) -> None:
        """Delete a secret."""
        with self._writing, self._fenced() as ask:
            ask("DELETE FROM secrets WHERE name = ?", (name,))

    def _live_writer(self) -> Connection:
        """The writing connection; a new one, with the lock of this term, if it broke."""
        if self._closed:
            raise Unavailable(f"the store {self.name} is closed")
        try:
            self._db.execute("")
        except psycopg.OperationalError:
            self._db.close()
            db = tables.connect(self._url, write=True, idle_s=self._idle_s)
            try:
                leadership.hold_again(db, self.term)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _head(self) -> Head:
        if self._closed:
            raise Unavailable(f"the store {self.name} is closed")
        return self._current if self._known else super()._head()
