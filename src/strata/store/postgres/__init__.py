"""The PostgreSQL event store: one database, one writer, readers and standbys beside it."""

from strata.store.postgres.leadership import Leader
from strata.store.postgres.postgres_store import PostgresReader, PostgresStore

__all__ = ["Leader", "PostgresReader", "PostgresStore"]
