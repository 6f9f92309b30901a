"""Guards that a running coordinator joins older facts by itself, and leaves a damaged log alone."""

import asyncio

import pytest

from strata.coordinator import compaction
from strata.coordinator.compaction import compacting
from strata.errors import Unavailable
from strata.store.sqlite import SqliteStore, joining
from tests.store.kinds import CODEC, events, fill


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "SEGMENT_FACTS", 32)
    monkeypatch.setattr(compaction, "LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "RETRY_S", 0.01)
    with SqliteStore(tmp_path / "log.db", CODEC) as opened:
        fill(opened, rows=20, batches=False)
        yield opened


def rows_of(store) -> int:
    return store._all("SELECT count(*) FROM facts")[0][0]


def run_until(store, *conditions) -> None:
    """Compacts in the background until each condition held, one after the other."""

    async def main() -> None:
        async with asyncio.timeout(30), compacting(store):
            for condition in conditions:
                while not condition():
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_facts_are_joined_also_those_that_come_later(store):
    run_until(
        store,
        lambda: rows_of(store) == 8,
        lambda: fill(store, rows=20, batches=False) is None,
        lambda: rows_of(store) == 14,
    )
    assert list(store.read()) == events(0, 400)


def test_full_disk_is_tried_again(store, monkeypatch, caplog):
    compact, refusals = store.compact, [Unavailable("the disk is full")]

    def refusing(stop: int) -> int:
        if refusals:
            raise refusals.pop()
        return compact(stop)

    monkeypatch.setattr(store, "compact", refusing)
    run_until(store, lambda: rows_of(store) == 8)
    assert "tried again" in caplog.text


def test_damaged_log_is_left_as_it_is(store, caplog):
    store._db.execute("UPDATE facts SET kinds = ' Other ' WHERE position = 40")
    run_until(store, lambda: "until the next start" in caplog.text)
    assert rows_of(store) >= 17
    assert list(store.read(0, 40)) == events(0, 40)
