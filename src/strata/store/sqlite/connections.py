"""The connections of a reader.

Reads go in short turns: each takes a connection from a pool, fetches rows up to a bound and gives
it back. So a long read does not keep the write-ahead log from being reused, and the writer is never
waited for.
"""

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from strata.errors import Unavailable
from strata.store.base import Closing
from strata.store.sqlite import database
from strata.store.sqlite.rows import Head, Row

TURN_ROWS = 512
TURN_BYTES = 4 * 2**20


class Connections(Closing):
    """Connections to one file, for reading."""

    def _begin_reading(self, path: Path) -> None:
        self.path = path
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
        with database.translated(self.path):
            db = self._idle.pop() if self._idle else database.connect(self.path, write=False)
            try:
                yield db
            finally:
                if self._closed:
                    db.close()
                else:
                    self._idle.append(db)

    def _turn(self, sql: str, values: tuple[object, ...] | dict[str, object]) -> list[Row]:
        """As many rows as one turn may hold; the last column is the payload."""
        taken: list[Row] = []
        size = 0
        with self._connection() as db, closing(db.execute(sql, values)) as cursor:
            for row in cursor:
                taken.append(row)
                size += len(row[-1]) if isinstance(row[-1], bytes) else 0
                if size > TURN_BYTES or len(taken) >= TURN_ROWS:
                    break
        return taken

    def _all(self, sql: str, values: tuple[object, ...] = ()) -> list[Row]:
        with self._connection() as db:
            return db.execute(sql, values).fetchall()

    def _head(self) -> Head:
        with self._connection() as db, database.naming(self.path):
            return database.load_head(db)
