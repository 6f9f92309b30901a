"""A log store in a temporary folder."""

import pytest

from strata.coordinator.logs.log_store import LogStore


@pytest.fixture
def opened(tmp_path):
    """Open the same log repeatedly; the last one is closed at the end."""
    stores = []

    def open_store(max_bytes=8 * 1024 * 1024):
        for store in stores:
            store.close()
        stores.append(LogStore(tmp_path / "logs", max_bytes))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()
