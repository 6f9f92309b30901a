"""Logging handler: records are stored completely, without waiting for the disk."""

import logging
import os
import threading
import time

import pytest

from strata.coordinator.logs.log_handler import StoreHandler


@pytest.fixture
def logger(store):
    handler = StoreHandler(store)
    logger = logging.getLogger("strata.coordinator.test_handler")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def test_record_becomes_an_entry(store, logger):
    logger.warning("shard %d again", 3, extra={"task_id": "t1", "worker_id": "w1"})
    (entry,) = store.recent().entries
    assert (entry.level, entry.message, entry.source) == ("warn", "shard 3 again", "coordinator")
    assert (entry.task_id, entry.worker_id, entry.stream) == ("t1", "w1", "logging")
    assert abs(entry.timestamp - time.time() * 1000) < 60_000


@pytest.mark.parametrize(
    ("level", "shown"), [(50, "error"), (40, "error"), (30, "warn"), (20, "info"), (10, "debug")]
)
def test_every_logging_level_has_one_of_four_names(store, logger, level, shown):
    logger.log(level, "x")
    assert store.recent().entries[0].level == shown


def test_traceback_is_part_of_the_message(store, logger):
    try:
        raise RuntimeError("no disk")
    except RuntimeError:
        logger.exception("could not save")
    message = store.recent().entries[0].message
    assert message.startswith("could not save\nTraceback")
    assert message.endswith("RuntimeError: no disk")


def test_record_with_wrong_arguments_does_not_raise(store, capsys):
    handler = StoreHandler(store)
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",), "levelno": 20}))
    handler.handle(logging.makeLogRecord({"msg": "next", "levelno": 20}))
    assert [entry.message for entry in store.recent().entries] == ["next"]
    assert "no number" in capsys.readouterr().err


def test_emitting_does_not_wait_for_the_disk(store, logger, monkeypatch):
    syncs, here = [], threading.get_ident()
    for name in ("fsync", "fdatasync"):
        sync = getattr(os, name)

        def noted(file, sync=sync):
            syncs.append(threading.get_ident())
            return sync(file)

        monkeypatch.setattr(os, name, noted)
    for i in range(10_000):
        logger.info("message %d", i)
    assert syncs.count(here) == 0
    assert store.recent().total == 10_000
