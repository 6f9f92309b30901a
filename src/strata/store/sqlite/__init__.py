"""The SQLite event store: one file, one writer, readers beside it."""

from strata.store.sqlite.reader import SqliteReader
from strata.store.sqlite.salvage import Filling, Salvaged, salvage
from strata.store.sqlite.store import SqliteStore

__all__ = ["Filling", "Salvaged", "SqliteReader", "SqliteStore", "salvage"]
