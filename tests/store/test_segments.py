"""Compaction: joined facts equal the appended facts for every way of reading, also while rows are
joined."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.events import COORDINATOR, Codec, UnknownFact
from strata.errors import Corrupt, InvalidArgument, UnknownKind
from strata.store.event_batches import deflate, pack, unpack
from strata.store.event_store import EVERYTHING, Window
from strata.store.fact_segments import MAGIC, compress, expand
from strata.store.sqlite import SqliteReader, SqliteStore, database
from tests.store.kinds import CODEC, batch, compact, contents, event, events, fill

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
BODIES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["A", "B"]), "worker": st.sampled_from(["w0", "w1"]), "x": VALUES},
    optional={"y": st.integers(-5, 5), "z": st.sampled_from([0, 1, True])},
)
CLOCK = st.integers(-(2**61), 2**61)
CAUSES = st.lists(st.sampled_from(["@0", "@7", "@007", "@", "w.1.2", "@99999", ""]), max_size=2)


@given(st.integers(0, 2**40), st.lists(st.tuples(CLOCK, CLOCK, BODIES, CAUSES), min_size=1))
def test_segment_gives_back_the_same_bytes(first, made):
    rows = [(first + n, *each, "op" * (n % 2)) for n, each in enumerate(made)]
    encoded = msgspec.msgpack.encode(rows)
    assert expand(compress(encoded)) == encoded


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([(1, 2)]),
        msgspec.msgpack.encode([(0, 0, 0, {}, [], "")] * 2),
    ],
)
def test_list_without_dense_events_is_refused(encoded):
    with pytest.raises(InvalidArgument):
        compress(encoded)


@given(st.integers(0, 2_000), st.integers(1, 255))
def test_damaged_segment_is_corrupt_or_other_bytes(at, change):
    segment = compress(CODEC.encode(events(0, 200)))
    at %= len(segment)
    damaged = segment[:at] + bytes([segment[at] ^ change]) + segment[at + 1 :]
    with contextlib.suppress(Corrupt):
        assert isinstance(expand(damaged), bytes)


def test_workers_payload_is_never_read_as_a_segment():
    sent = batch(0, 10)
    assert sent.node != COORDINATOR
    bomb = msgspec.structs.replace(sent, payload=compress(CODEC.encode(events(0, 10))))
    with pytest.raises(Corrupt):
        unpack(CODEC, bomb)


def test_segment_that_states_a_huge_size_is_corrupt():
    with pytest.raises(Corrupt, match="states a size"):
        expand(MAGIC + deflate(bytes(2_000)), max_bytes=1_000)


@pytest.fixture
def log(tmp_path, small_segments):
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        fill(store, rows=20)
        yield store


def rows_of(store) -> int:
    return store._db.execute("SELECT count(*) FROM facts").fetchone()[0]


def test_compaction_changes_no_answer_and_takes_fewer_rows(log):
    before, moments = contents(log), [log.position_at(1_000 * at) for at in range(-1, 210)]
    headers = sum(each.count for each in log.headers())
    assert compact(log) == 180
    assert rows_of(log) == 8, "six segments of thirty facts, and two rows that fill none yet"
    assert contents(log) == before
    assert [log.position_at(1_000 * at) for at in range(-1, 210)] == moments
    assert sum(each.count for each in log.headers()) == headers
    assert log.verify() == []
    assert compact(log) == 0


def test_compaction_stays_below_the_position_it_is_given(log):
    assert log.compact(31) == 0
    assert log.compact(41) == 30
    assert rows_of(log) == 18


def test_facts_of_two_incarnations_are_not_joined(log):
    log.append(events(200, 240), incarnation=2, expected=200)
    log.append(events(240, 280), incarnation=3, expected=240)
    before = contents(log)
    compact(log)
    assert contents(log) == before
    assert {number for node, number, _ in before[1] if node == COORDINATOR} == {1, 2, 3}


def test_kinds_of_a_newer_release_survive(tmp_path, small_segments):
    older = Codec([CODEC.kinds["Started"]])
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        fill(store, rows=20)
    with SqliteStore(tmp_path / "log.db", older) as store:
        assert compact(store)
        assert any(isinstance(each.body, UnknownFact) for each in store.read())
    with SqliteReader(tmp_path / "log.db", CODEC) as store:
        assert list(store.read()) == events(0, 200)


@pytest.mark.parametrize("taken", [1, 7, 33, 100])
@pytest.mark.parametrize("beside", ["writer", "reader"])
def test_reader_under_way_misses_and_repeats_nothing(log, monkeypatch, taken, beside):
    monkeypatch.setattr(database, "TURN_ROWS", 3)
    facts, found = contents(log)
    other = log if beside == "writer" else SqliteReader(log.path, CODEC, remembered_events=10**6)
    with other:
        assert contents(other) == (facts, found)
        reading, asking = other.read(), other.query(limit=10**9)
        headers, batches = other.headers(), other.batches(EVERYTHING)
        begun = [
            [next(each) for _ in range(number)]
            for each, number in ((reading, taken), (asking, taken), (headers, 2), (batches, 5))
        ]
        assert compact(log)
        assert begun[0] + list(reading) == facts
        assert begun[1] + list(asking) == found
        counted = [each for each in begun[2] + list(headers) if each.node == COORDINATOR]
        assert sum(each.count for each in counted) == len(facts)
        unpacked = [e for each in begun[3] + list(batches) for e in unpack(CODEC, each)]
        assert len(unpacked) == len(found)
        assert contents(other) == (facts, found)


def test_window_finds_facts_at_the_end_of_a_long_segment(tmp_path, small_segments):
    hour_ns = 3_600 * 10**9
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        for seq in range(100):
            store.append([event(seq, seq * hour_ns // 20)], incarnation=1, expected=seq)
        wanted = [Window(at * hour_ns // 20, (at + 1) * hour_ns // 20) for at in range(100)]
        before = [list(store.query(each)) for each in wanted]
        assert all(before)
        assert compact(store)
        assert [list(store.query(each)) for each in wanted] == before


def test_clock_that_jumps_does_not_make_long_segments(tmp_path, small_segments):
    day_ns = 86_400 * 10**9
    moments = (0, 9, 15, 99, day_ns, 2 * day_ns)
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        for seq in range(100):
            wall_ns = seq + (day_ns if seq // 10 % 2 else 0)
            store.append([event(seq, wall_ns)], incarnation=1, expected=seq)
        before = (contents(store), [store.position_at(at) for at in moments])
        compact(store)
        after = (contents(store), [store.position_at(at) for at in moments])
        assert after == before
        spans = store._db.execute("SELECT max(wall_to_ns - wall_from_ns) FROM facts").fetchone()
        assert spans[0] < day_ns


def test_store_of_the_format_before_segments_is_read_and_marked_when_compacted(log):
    log._db.execute("PRAGMA user_version=1")
    log.close()
    with SqliteReader(log.path, CODEC) as store:
        assert len(contents(store)[0]) == 200
    with SqliteStore(log.path, CODEC) as store:
        assert compact(store)
        assert store._db.execute("PRAGMA user_version").fetchone() == (3,)
        store._db.execute("PRAGMA user_version=4")
    with pytest.raises(UnknownKind, match="format 4"):
        SqliteReader(log.path, CODEC)


def test_row_that_is_a_segment_already_is_passed(log):
    assert log.compact(log.position) == 30
    log._current.compacted = log._compacted = 0
    assert compact(log) == 180
    assert list(log.read()) == events(0, 200)


def test_pack_and_segment_hold_the_same_events():
    made = events(5, 60)
    packed = pack(CODEC, COORDINATOR, 1, made)
    joined = msgspec.structs.replace(packed, payload=compress(CODEC.encode(made)))
    assert unpack(CODEC, joined) == unpack(CODEC, packed) == made
