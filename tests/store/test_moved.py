"""Facts that were moved out of a log are read as before, and other bytes are never accepted for
them."""

import pytest

from strata.errors import Corrupt, Unavailable
from strata.store.fact_references import Moved, checksum, reference
from strata.store.sqlite import SqliteReader, SqliteStore, salvage
from tests.store.kinds import CODEC, compact, contents, events, fill


class Shelf:
    """Where segments are put, by name."""

    def __init__(self):
        self.held: dict[str, bytes] = {}
        self.fetches = 0

    def put(self, payload: bytes) -> Moved:
        name = checksum(payload)
        self.held[name] = payload
        return Moved("the shelf", name, len(payload), name)

    def fetch(self, moved: Moved) -> bytes:
        self.fetches += 1
        return self.held[moved.name]


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def log(tmp_path, shelf, small_segments):
    with SqliteStore(tmp_path / "log.db", CODEC, shelf.fetch) as store:
        fill(store, rows=20)
        assert compact(store)
        yield store


def move(log, shelf, count: int = 3) -> None:
    for segment in log.segments(count):
        log.move_out(segment, shelf.put(segment.payload))


def test_moved_facts_are_read_as_before(log, shelf):
    before = contents(log)
    size = log.fact_bytes()
    move(log, shelf)
    assert log.fact_bytes() < size
    assert contents(log) == before
    assert shelf.fetches
    assert [log.position_at(event.wall_ns) for event in before[0]]
    assert log.verify() == []
    with SqliteReader(log.path, CODEC, fetch=shelf.fetch) as other:
        assert contents(other) == before
        assert list(other.read(150)) == before[0][150:]


def test_facts_in_the_log_are_read_without_a_fetch(log, shelf):
    move(log, shelf, 2)
    stop = max(segment.stop_seq for segment in log.segments(1)) - 30
    assert list(log.read(stop)) == events(stop, log.position)
    assert shelf.fetches == 0


def test_log_continues_after_a_move(log, shelf):
    move(log, shelf)
    fill(log, rows=10)
    assert compact(log)
    move(log, shelf, 100)
    assert log.segments(100) == []
    assert list(log.read()) == events(0, log.position)


def test_segment_that_was_changed_is_corrupt(log, shelf):
    move(log, shelf, 1)
    (name,) = shelf.held
    shelf.held[name] = shelf.held[name][:-1] + b"?"
    with pytest.raises(Corrupt, match="does not hold the facts"):
        list(log.read())
    assert len(log.verify()) >= 1


def test_another_payload_does_not_replace_a_segment(log, shelf):
    first, second = log.segments(2)
    with pytest.raises(AssertionError, match="another payload"):
        log.move_out(first, shelf.put(second.payload))
    assert contents(log)[0] == events(0, log.position)


def test_reader_without_storage_names_the_place_of_the_facts(log, shelf):
    move(log, shelf, 1)
    with SqliteReader(log.path, CODEC) as other:
        assert list(other.read(150)) == events(150, 200)
        with pytest.raises(Unavailable, match="moved to the shelf"):
            list(other.read())


def test_reference_that_cannot_be_read_is_corrupt(log, shelf):
    (segment,) = log.segments(1)
    moved = shelf.put(segment.payload)
    assert reference(moved).startswith(b"\xc1mov1")
    log.move_out(segment, moved)
    shelf.held[moved.name] = b""
    with pytest.raises(Corrupt):
        list(log.read(0, 1))


def test_salvage_keeps_references_to_moved_facts(log, shelf, tmp_path):
    move(log, shelf, 2)
    log.close()
    salvaged = salvage(log.path, tmp_path / "copy.db")
    assert salvaged.missing_facts == []
    with SqliteReader(tmp_path / "copy.db", CODEC, fetch=shelf.fetch) as copy:
        assert list(copy.read()) == events(0, 200)
