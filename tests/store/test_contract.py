"""The contract of event stores, for every implementation."""

import msgspec
import pytest

from strata.core.events import COORDINATOR, Codec
from strata.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    LimitExceeded,
)
from strata.store import event_batches as packing
from strata.store.event_batches import pack, unpack
from strata.store.event_store import (
    FOREVER_NS,
    NEVER_NS,
    Batch,
    Snapshot,
    Tally,
    Window,
)
from strata.store.snapshots import KEPT
from tests.store.kinds import CODEC, Started, batch, contents, event, events, fill

SPANS = [(NEVER_NS, FOREVER_NS), (5_000, 22_000), (21_000, FOREVER_NS)]


def seqs(found):
    return [(node, event.seq) for node, _, event in found]


class TestAppend:
    def test_new_store_is_empty(self, store):
        assert store.position == 0
        assert contents(store) == ([], [])
        assert store.streams() == []

    def test_facts_come_back_as_they_were(self, store):
        assert store.append(events(0, 3), incarnation=1, expected=0) == 3
        assert store.append(events(3, 4), incarnation=2, expected=3) == 4
        assert list(store.read()) == events(0, 4)
        assert [incarnation for _, incarnation, _ in store.query()] == [1, 1, 1, 2]

    @pytest.mark.parametrize("expected", [0, 2, 4])
    def test_another_position_than_expected_is_a_conflict(self, store, expected):
        store.append(events(0, 3), incarnation=1, expected=0)
        with pytest.raises(Conflict):
            store.append(
                events(expected, expected + 1),
                incarnation=1,
                expected=expected,
                batches=[batch(0, 5)],
            )
        assert list(store.read()) == events(0, 3)
        assert store.last_seq("w0", 1) is None

    def test_nothing_is_a_legal_append(self, store):
        assert store.append([], incarnation=1, expected=0) == 0

    def test_batches_without_facts(self, store):
        store.append([], incarnation=1, expected=0, batches=[batch(0, 5)])
        assert store.position == 0
        assert seqs(store.query()) == [("w0", seq) for seq in range(5)]

    def test_facts_must_be_numbered_by_position(self, store):
        with pytest.raises(AssertionError):
            store.append(events(1, 2), incarnation=1, expected=0)
        assert store.position == 0

    @pytest.mark.parametrize(
        "fault",
        [
            {"node": ""},
            {"node": "n" * 1_000},
            {"node": "a\nb"},
            {"node": "\ud800"},
            {"node": COORDINATOR},
            {"incarnation": -1},
            {"incarnation": 2**63},
            {"first_seq": -1},
            {"first_seq": 2**63 - 10},
            {"count": 0},
            {"count": 10**9},
            {"wall_from_ns": 10**10},
            {"wall_to_ns": 2**64},
            {"kinds": ("two words",)},
            {"kinds": ("",)},
            {"kinds": ("K",) * 100_000},
        ],
        ids=lambda fault: next(iter(fault)),
    )
    def test_senseless_header_is_refused_and_nothing_is_stored(self, store, fault):
        bad = msgspec.structs.replace(batch(0, 5), **fault)
        with pytest.raises(InvalidArgument):
            store.append(events(0, 1), incarnation=1, expected=0, batches=[batch(5, 6), bad])
        assert contents(store) == ([], [])


class TestWorkerBatches:
    def test_payloads_are_kept_as_sent(self, store):
        sent = [batch(0, 5), batch(0, 3, node="w1"), batch(0, 2, incarnation=2)]
        store.append([], incarnation=1, expected=0, batches=sent)
        kept = list(store.batches())
        assert sorted(kept, key=repr) == sorted(sent, key=repr)

    def test_undecodable_payloads_are_stored_and_reported_when_read(self, store):
        garbage = msgspec.structs.replace(batch(5, 9), payload=b"garbage")
        store.append([], incarnation=1, expected=0, batches=[batch(0, 5), garbage, batch(9, 12)])
        assert store.gaps("w0", 1) == []
        with pytest.raises(Corrupt, match=r"w0\.1\.5 to 8"):
            list(store.query())
        damage = []
        assert len(list(store.query(on_damage=damage.append))) == 8
        assert len(damage) == 1

    def test_resend_is_ignored(self, store):
        for _ in range(3):
            store.append([], incarnation=1, expected=0, batches=[batch(0, 5), batch(0, 5)])
        assert len(list(store.batches())) == 1

    def test_resend_split_or_joined_differently_is_ignored(self, store):
        first = [batch(0, 5), batch(5, 10)]
        store.append([], incarnation=1, expected=0, batches=first)
        again = [batch(0, 10), batch(2, 7), batch(9, 10)]
        store.append([], incarnation=1, expected=0, batches=again)
        assert list(store.batches()) == first

    @pytest.mark.parametrize("sent", [[(0, 5), (3, 9)], [(3, 9), (0, 5)], [(4, 6), (0, 9)]])
    def test_of_a_partly_known_batch_the_new_part_is_stored(self, store, sent):
        for first, stop in sent:
            store.append([], incarnation=1, expected=0, batches=[batch(first, stop)])
        assert seqs(store.query()) == [("w0", seq) for seq in range(9)]
        assert sum(each.count for each in store.batches()) == 9
        assert [found for _, _, found in store.query()] == events(0, 9)

    def test_cutting_a_batch_keeps_kinds_that_are_unknown_here(self, store):
        class Newer(Started, frozen=True, tag="Newer"):
            extra: int = 5

        newer = Codec([Newer])
        made = [msgspec.structs.replace(event(seq), body=Newer("a", "b", 6)) for seq in range(4)]
        store.append([], incarnation=1, expected=0, batches=[batch(0, 2)])
        store.append([], incarnation=1, expected=0, batches=[pack(newer, "w0", 1, made)])
        kept = list(store.batches(Window(kinds=frozenset({"Newer"}))))
        assert [unpack(newer, each) for each in kept] == [made[2:]]

    def test_partly_known_batch_that_cannot_be_cut_is_refused_whole(self, store):
        store.append([], incarnation=1, expected=0, batches=[batch(0, 5)])
        for payload in (b"garbage", batch(3, 5).payload):
            bad = msgspec.structs.replace(batch(3, 9), payload=payload)
            with pytest.raises(Corrupt, match=r"w0\.1\.3 to 8"):
                store.append(events(0, 1), incarnation=1, expected=0, batches=[batch(7, 8), bad])
        assert store.position == 0
        assert store.last_seq("w0", 1) == 4

    def test_incarnations_and_nodes_do_not_mix(self, store):
        sent = [batch(0, 3), batch(0, 5, incarnation=2), batch(2, 4, node="w1")]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert store.streams() == [("w0", 1), ("w0", 2), ("w1", 1)]
        assert [store.last_seq(*stream) for stream in store.streams()] == [2, 4, 3]
        assert [store.gaps(*stream) for stream in store.streams()] == [[], [], [(0, 2)]]

    def test_gaps_are_seen_and_filled(self, store):
        sent = [batch(2, 4), batch(10, 12), batch(7, 8)]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert store.gaps("w0", 1) == [(0, 2), (4, 7), (8, 10)]
        store.append([], incarnation=1, expected=0, batches=[batch(0, 11)])
        assert store.gaps("w0", 1) == []
        assert store.last_seq("w0", 1) == 11
        assert store.gaps("nobody", 1) == []


class TestRead:
    def test_any_part_in_order(self, store):
        fill(store, rows=5, facts=4)
        for start in range(22):
            for stop in range(22):
                assert list(store.read(start, stop)) == events(start, min(stop, 20))

    def test_it_is_lazy(self, store):
        fill(store, rows=3)
        reading = store.read()
        assert next(reading) == event(0)
        fill(store, rows=1)
        assert list(reading) == events(1, 30), "what came later is not part of it"

    def test_negative_position_is_refused(self, store):
        with pytest.raises(InvalidArgument):
            store.read(-1)


class TestQuery:
    def test_everything_in_the_order_of_time(self, store):
        sent = [batch(0, 30, offset_ns=1), batch(10, 20, node="w1", offset_ns=2)]
        store.append(events(0, 30), incarnation=1, expected=0, batches=sent)
        found = list(store.query())
        walls = [event.wall_ns for _, _, event in found]
        assert walls == sorted(walls)
        assert len(found) == 70
        assert [node for node, _, each in found if each.seq == 12] == [COORDINATOR, "w0", "w1"]

    @pytest.mark.parametrize("node", [None, COORDINATOR, "w0", "w1", "nobody"])
    @pytest.mark.parametrize(
        "kinds", [(), ("Started",), ("Finished", "Started"), ("Nothing",), ("Start", "Stepped")]
    )
    @pytest.mark.parametrize(("since", "until"), SPANS)
    def test_filters_agree_with_filtering_everything(self, store, node, kinds, since, until):
        sent = [batch(0, 25, offset_ns=1), batch(10, 20, node="w1"), batch(25, 40)]
        store.append(events(0, 20), incarnation=1, expected=0, batches=sent)
        store.append(events(20, 30), incarnation=1, expected=20)
        expected = [
            (each, incarnation, event)
            for each, incarnation, event in store.query()
            if (node is None or each == node)
            and (not kinds or event.kind in kinds)
            and since <= event.wall_ns < until
        ]
        found = store.query(Window(since, until, node, frozenset(kinds)))
        assert list(found) == expected

    def test_limit_gives_the_first(self, store):
        fill(store, rows=5)
        assert list(store.query(limit=7)) == list(store.query())[:7]
        assert list(store.query(limit=0)) == []

    def test_clocks_that_jump_inside_a_batch(self, store):
        jumping = [event(0, 500), event(1, 100), event(2, 900), event(3, 50)]
        store.append(jumping, incarnation=1, expected=0)
        assert [each.wall_ns for _, _, each in store.query()] == [50, 100, 500, 900]
        assert [each.wall_ns for _, _, each in store.query(Window(100, 600))] == [
            100,
            500,
        ]

    def test_batches_without_the_kind_are_not_looked_into(self, store):
        started = pack(CODEC, "w0", 1, [event(0)])
        other = msgspec.structs.replace(batch(1, 9), kinds=("Stepped",), payload=b"undecodable")
        store.append([], incarnation=1, expected=0, batches=[started, other])
        assert seqs(store.query(Window(kinds=frozenset({"Started"})))) == [("w0", 0)]
        assert list(store.batches(Window(kinds=frozenset({"Started"})))) == [started]

    def test_batches_are_those_that_touch_the_window(self, store):
        fill(store, rows=5)
        found = list(store.batches(Window(15_000, 30_000, COORDINATOR)))
        assert [each.first_seq for each in found] == [10, 20]
        assert [unpack(CODEC, each) for each in found] == [events(10, 20), events(20, 30)]


class TestStreams:
    def test_headers_are_batches_without_their_payload(self, store):
        fill(store, 4)
        for wanted in (Window(), Window(node="w0"), Window(node=COORDINATOR), Window(12_000)):
            headers = list(store.headers(wanted))
            assert headers == [
                msgspec.structs.replace(batch, payload=b"") for batch in store.batches(wanted)
            ]
            assert headers

    def test_stream_is_read_by_seq_and_gaps_are_passed_over(self, store):
        sent = [batch(20, 30), batch(0, 10), batch(0, 5, node="w1")]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert [e.seq for e in store.stream("w0", 1)] == [*range(10), *range(20, 30)]
        assert [e.seq for e in store.stream("w0", 1, 8, 22)] == [8, 9, 20, 21]
        assert [e.seq for e in store.stream("w0", 1, 12, 15)] == []
        assert list(store.stream("w0", 2)) == []

    def test_tallies_count_what_is_kept_of_each_stream(self, store):
        sent = [batch(0, 10), batch(20, 30), batch(0, 5, node="w1", incarnation=2)]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert store.tallies() == [
            Tally("w0", 1, 20, 0, 29_000, frozenset({"Started", "Stepped", "Finished"})),
            Tally("w1", 2, 5, 0, 4_000, frozenset({"Started", "Stepped"})),
        ]


class TestPositionAt:
    def test_first_fact_later_than_the_moment(self, store):
        fill(store, rows=4, facts=5)
        assert [store.position_at(1_000 * n) for n in range(-1, 22)] == [
            *range(21),
            20,
            20,
        ]
        assert store.position_at(7_500) == 8

    def test_empty_log(self, store):
        assert store.position_at(5) == 0

    def test_log_clock_stops_while_the_wall_clock_is_behind(self, store):
        walls = [10, 20, 30, 5, 6, 31, 7, 40]
        for seq, wall in enumerate(walls):
            store.append([event(seq, wall)], incarnation=1, expected=seq)
        found = {moment: store.position_at(moment) for moment in (0, 10, 15, 29, 30, 31, 40)}
        assert found == {0: 0, 10: 1, 15: 1, 29: 2, 30: 5, 31: 7, 40: 8}

    def test_same_inside_one_row(self, store):
        walls = [10, 20, 30, 5, 6, 31, 7, 40]
        facts = [event(seq, wall) for seq, wall in enumerate(walls)]
        store.append(facts, incarnation=1, expected=0)
        assert [store.position_at(moment) for moment in (0, 15, 30, 31, 40)] == [0, 1, 5, 7, 8]


def snapshot(position, schema="s1", state=b"state"):
    return Snapshot(position, 1_000 * position, schema, state * (position + 1))


class TestSnapshots:
    def test_newest_at_or_before_a_position(self, store):
        fill(store, rows=5)
        for position in (10, 20, 40):
            store.save_snapshot(snapshot(position))
        found = {at: store.load_snapshot(at, "s1") for at in (None, 9, 10, 19, 39, 50)}
        assert found == {
            None: snapshot(40),
            9: None,
            10: snapshot(10),
            19: snapshot(10),
            39: snapshot(20),
            50: snapshot(40),
        }

    def test_another_schema_is_passed_over(self, store):
        fill(store, rows=3)
        store.save_snapshot(snapshot(10, "s1"))
        store.save_snapshot(snapshot(20, "s2"))
        assert store.load_snapshot(None, "s2") == snapshot(20, "s2")
        assert store.load_snapshot(None, "s1") == snapshot(10, "s1")
        assert store.load_snapshot(None, "s3") is None

    def test_same_position_again_replaces(self, store):
        fill(store, rows=1)
        store.save_snapshot(snapshot(5, state=b"old"))
        store.save_snapshot(snapshot(5, state=b"new"))
        assert store.load_snapshot(5, "s1") == snapshot(5, state=b"new")

    def test_snapshot_of_the_future_is_refused(self, store):
        with pytest.raises(InvalidArgument):
            store.save_snapshot(snapshot(1))

    def test_their_number_is_bounded_and_every_moment_stays_near_one(self, store):
        fill(store, rows=300, batches=False)
        for position in range(0, 3_001, 10):
            store.save_snapshot(snapshot(position, state=b""))
        distances = [at - store.load_snapshot(at, "s1").position for at in range(3_000)]
        assert max(distances) <= 2 * 3_000 / KEPT
        assert len({store.load_snapshot(at, "s1").position for at in range(3_001)}) <= KEPT


class TestRelease:
    def test_range_leaves_what_came_before_it_and_between(self, store):
        sent = [batch(0, 10), batch(20, 30), batch(10, 20)]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert store.release("w0", 1, 10) == 10
        assert store.release("w0", 1, 30, 20) == 10
        assert [event.seq for event in store.stream("w0", 1)] == list(range(10, 20))
        assert store.gaps("w0", 1) == []
        assert store.last_seq("w0", 1) == 29
        assert store.sizes() == {("w0", 1): len(batch(10, 20).payload)}

    def test_events_that_are_kept_elsewhere_are_let_go(self, store):
        sent = [batch(0, 10), batch(10, 20), batch(25, 30), batch(0, 5, node="w1")]
        store.append(events(0, 4), incarnation=1, expected=0, batches=sent)
        assert store.release("w0", 1, 22) == 20
        assert [each.seq for each in store.stream("w0", 1)] == [*range(25, 30)]
        assert seqs(store.query(Window(node="w1"))) == [("w1", seq) for seq in range(5)]
        assert list(store.read()) == events(0, 4)
        assert [(tally.node, tally.events) for tally in store.tallies()] == [("w0", 5), ("w1", 5)]

    def test_batch_that_reaches_further_stays(self, store):
        store.append([], incarnation=1, expected=0, batches=[batch(0, 10)])
        assert store.release("w0", 1, 9) == 0
        assert len(list(store.stream("w0", 1))) == 10

    def test_their_numbers_stay_known(self, store):
        sent = [batch(0, 10), batch(20, 30), batch(40, 45)]
        store.append([], incarnation=1, expected=0, batches=sent)
        assert store.release("w0", 1, 30) == 20
        assert store.gaps("w0", 1) == [(10, 20), (30, 40)]
        assert store.last_seq("w0", 1) == 44
        assert store.release("w0", 1, 45) == 5
        assert store.last_seq("w0", 1) == 44
        assert store.streams() == [("w0", 1)]
        assert store.tallies() == []

    def test_resend_is_recognised_and_what_is_new_in_it_is_kept(self, store):
        store.append([], incarnation=1, expected=0, batches=[batch(0, 10), batch(20, 30)])
        store.release("w0", 1, 30)
        resent = [batch(0, 10), batch(5, 15), batch(0, 30)]
        store.append([], incarnation=1, expected=0, batches=resent)
        assert [each.seq for each in store.stream("w0", 1)] == [*range(10, 20)]
        assert store.gaps("w0", 1) == []

    def test_releasing_again_or_an_unknown_stream_releases_nothing(self, store):
        store.append([], incarnation=1, expected=0, batches=[batch(0, 10)])
        assert [store.release("w0", 1, 10) for _ in range(2)] == [10, 0]
        assert store.release("nobody", 1, 10) == 0
        assert store.release("w0", 2, 10) == 0


class TestBatches:
    def test_batch_comes_back(self):
        packed = batch(3, 9)
        assert (packed.first_seq, packed.count, packed.stop_seq) == (3, 6, 9)
        assert (packed.wall_from_ns, packed.wall_to_ns) == (3_000, 8_000)
        assert packed.kinds == ("Stepped",)
        assert unpack(CODEC, packed) == events(3, 9)

    @pytest.mark.parametrize(
        "fault",
        [
            {"payload": b""},
            {"payload": b"not zstd at all"},
            {"payload": packing.deflate(b"not msgpack \xc1")},
            {"payload": packing.deflate(b"\x05")},
            {"payload": packing.deflate(b"\x91\x05")},
            {"payload": batch(0, 4).payload[:-3]},
            {"payload": batch(0, 4).payload + b"more"},
            {"payload": batch(1, 5).payload},
            {"count": 3},
            {"first_seq": 1},
        ],
    )
    def test_bad_bytes_are_reported(self, fault):
        bad = msgspec.structs.replace(batch(0, 4), **fault)
        with pytest.raises(Corrupt, match=r"w0\.1\."):
            unpack(CODEC, bad)

    def test_claimed_size_is_not_allocated(self):
        bomb = packing.deflate(bytes(packing.MAX_BYTES + 1))
        assert len(bomb) < 10_000
        with pytest.raises(Corrupt, match="size"):
            unpack(CODEC, Batch("w0", 1, 0, 1, 0, 0, (), bomb))

    def test_too_many_events_for_one_batch(self):
        with pytest.raises(LimitExceeded):
            batch(0, packing.MAX_EVENTS + 1)
