"""The SQLite event store: one file, one writer, readers beside it."""

from strata.store.sqlite.sqlite_reader import SqliteReader
from strata.store.sqlite.sqlite_salvage import Filling, Salvaged, salvage
from strata.store.sqlite.sqlite_store import SqliteStore

__all__ = ["Filling", "Salvaged", "SqliteReader", "SqliteStore", "salvage"]
