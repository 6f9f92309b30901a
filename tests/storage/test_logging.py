"""Guards the log of the storage: every read and write at debug, nothing above."""

import logging

import pytest

from strata.errors import NotFound


def test_reads_and_writes_are_logged_at_debug_with_their_size(storage, caplog):
    caplog.set_level(logging.DEBUG, "strata.storage")
    storage.put("a", b"x" * 1000)
    storage.put_stream("b", [b"y" * 2000])
    assert len(storage.get("a")) == 1000
    with pytest.raises(NotFound):
        storage.get("nothing")
    storage.delete("a")
    lines = [record.getMessage() for record in caplog.records]
    for told in ("/a: 1000 bytes in", "/b: 2000 bytes in"):
        assert any(told in line for line in lines), lines
    assert sum("/a: 1000 bytes in" in line for line in lines) == 2, "a write and a read"
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_nothing_is_logged_at_info(storage, caplog):
    caplog.set_level(logging.INFO, "strata.storage")
    storage.put("a", b"x")
    storage.get("a")
    assert caplog.records == []
