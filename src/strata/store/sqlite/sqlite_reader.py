"""Reading an SQLite store, beside its writer or alone."""

from pathlib import Path

from strata.core.events import Codec
from strata.errors import Corrupt, NotFound
from strata.store.fact_references import Fetch, unreachable
from strata.store.sql.sql_reader import SqlReader
from strata.store.sqlite import database
from strata.store.sqlite.database import Connections
from strata.store.sqlite.lock_files import read_mark


class SqliteReader(Connections, SqlReader):
    """An SQLite store open for reading."""

    mending = database.SALVAGE

    def __init__(
        self,
        path: str | Path,
        codec: Codec,
        remembered_events: int = 0,
        fetch: Fetch = unreachable,
    ) -> None:
        self._connect(Path(path))
        self._begin(codec, fetch, remembered_events)
        if database.inspect(self.path, read_mark(self.path)) is None:
            raise NotFound(f"there is no event store at {self.path}", hint="check the path")

    @property
    def place(self) -> Path:
        """The file of the store."""
        return self.path

    def _broken_tables(self) -> list[Corrupt]:
        with self._connection() as db:
            try:
                database.require_sound(db)
            except Corrupt as error:
                return [error]
        return []
