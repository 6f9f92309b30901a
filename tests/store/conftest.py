"""Every store behind one fixture: a new implementation adds a line here and passes the contract."""

import tempfile
from pathlib import Path

import pytest

from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore, segment_plan
from tests.store.kinds import CODEC

STORES = {
    "memory": lambda folder: MemoryStore(CODEC),
    "sqlite": lambda folder: SqliteStore(folder / "log.db", CODEC),
}


@pytest.fixture(params=sorted(STORES))
def store(request, tmp_path):
    with STORES[request.param](tmp_path) as opened:
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
