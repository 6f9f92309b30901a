"""Every store behind one fixture: a new implementation adds a line here and passes the contract."""

import tempfile
from pathlib import Path

import pytest

from strata.store.memory_store import MemoryStore
from strata.store.postgres import PostgresStore
from strata.store.sql import segment_plan
from strata.store.sqlite import SqliteStore
from tests.postgres_server import serving
from tests.store.kinds import CODEC

STORES = ("memory", "postgres", "sqlite")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server."""
    with serving() as server:
        yield server


@pytest.fixture(params=STORES)
def new_store(request, tmp_path):
    """A function that opens a store of each kind; a second call opens the same one again."""
    if request.param == "memory":
        return lambda: MemoryStore(CODEC)
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "log.db", CODEC)
    url = request.getfixturevalue("postgres").empty()
    return lambda: PostgresStore(url, CODEC)


@pytest.fixture
def store(new_store):
    with new_store() as opened:
        yield opened


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of few facts, so that a short log has some."""
    monkeypatch.setattr(segment_plan, "SEGMENT_FACTS", 32)


@pytest.fixture
def ram():
    """A folder in memory where there is one: thousands of images of a store need no real disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)
