"""Background compaction of older facts; a damaged log is not changed."""

import asyncio

import pytest

from strata.coordinator.archive import log_upkeep
from strata.coordinator.archive.log_upkeep import compacting
from strata.errors import Unavailable
from strata.store.sql import segment_plan
from strata.store.sqlite import SqliteStore
from tests.store.kinds import CODEC, events, fill


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_plan, "SEGMENT_FACTS", 32)
    monkeypatch.setattr(log_upkeep, "LOOK_S", 0.01)
    monkeypatch.setattr(log_upkeep, "RETRY_S", 0.01)
    with SqliteStore(tmp_path / "log.db", CODEC) as opened:
        fill(opened, rows=20, batches=False)
        yield opened


def rows_of(store) -> int:
    return store._all("SELECT count(*) FROM facts")[0][0]


def run_until(store, *conditions) -> None:
    """Compact in the background until each condition held, one after the other."""

    async def main() -> None:
        async with asyncio.timeout(30), compacting(store):
            for condition in conditions:
                while not condition():
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_facts_are_compacted_continuously(store):
    run_until(
        store,
        lambda: rows_of(store) == 8,
        lambda: fill(store, rows=20, batches=False) is None,
        lambda: rows_of(store) == 14,
    )
    assert list(store.read()) == events(0, 400)


def test_compaction_is_retried_after_a_full_disk(store, monkeypatch, caplog):
    compact, refusals = store.compact, [Unavailable("the disk is full")]

    def refusing(stop: int) -> int:
        if refusals:
            raise refusals.pop()
        return compact(stop)

    monkeypatch.setattr(store, "compact", refusing)
    run_until(store, lambda: rows_of(store) == 8)
    assert "retrying in" in caplog.text


def test_damaged_log_is_not_compacted(store, caplog):
    store._db.execute("UPDATE facts SET kinds = ' Other ' WHERE position = 40")
    run_until(store, lambda: "until the next start" in caplog.text)
    assert rows_of(store) >= 17
    assert list(store.read(0, 40)) == events(0, 40)
