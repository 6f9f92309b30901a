"""Guards the order of records: each once, never backwards, receive after send, whatever the
clocks; and that an incomplete log is reported as such."""

import shutil

import msgspec
import pytest

from strata.core.events import Envelope, Event, UnknownFact
from strata.core.record.event_codec import CODEC
from strata.core.workers.exchange_facts import MessageReceived, MessageSent
from strata.core.workers.worker_facts import ClockSampled, EventsDropped, ResourceSnapshot
from strata.errors import InvalidArgument, NotFound
from strata.store.event_batches import pack
from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.clock_alignment import Clocks
from strata.timeline.read.log_trust import examine
from strata.timeline.read.node_activity import nodes_at, recent_before
from strata.timeline.read.past_states import state_at
from strata.timeline.read.run_timeline import Timeline
from tests.timeline.fleet import Fleet
from tests.timeline.planted import Planted, worker

HOUR_NS = 3_600 * 10**9


def in_order(timeline):
    keys = [record.key for record in timeline.records()]
    assert keys == sorted(keys)
    return keys


class TestOrder:
    def test_every_fact_and_event_is_read_once_in_order(self, calm):
        store = calm.sim.coordinator.disk
        events = sum(tally.events for tally in store.tallies())
        assert len(in_order(calm.timeline)) == store.position + events

    def test_facts_stay_in_the_order_of_their_positions(self, calm):
        facts = [r.event.seq for r in calm.timeline.records(node="coordinator")]
        assert facts == list(range(calm.timeline.position))

    def test_window_has_exactly_its_records(self, calm):
        whole = list(calm.timeline.records())
        low, high = whole[1000].at_ns, whole[3000].at_ns
        window = [r.key for r in calm.timeline.records(low, high)]
        assert window == [r.key for r in whole if low <= r.at_ns < high]
        assert [r.key for r in calm.timeline.backwards(high, low)] == window[::-1]

    def test_clock_that_is_an_hour_off_is_corrected(self):
        run = Planted(lambda sim: None, wrong={"host0": HOUR_NS})
        in_order(run.timeline)
        sent = {r.text("message"): r.at_ns for r in run.kinds("MessageSent")}
        arrived = run.kinds("MessageReceived")
        assert arrived
        assert all(r.at_ns >= sent[r.text("message")] for r in arrived)
        trained = [r.at_ns for r in run.kinds("TrainingStarted")]
        assert max(trained) - min(trained) < HOUR_NS
        assert any("off by" in finding.text for finding in examine(run.timeline).findings)

    def test_receive_is_never_before_its_send(self):
        """An asymmetric route shifts a clock by half of the difference; messages may be faster."""
        start_ns, trip_ns = 1_750_000_000 * 10**9, 40 * 10**6
        store = MemoryStore(CODEC)
        for node, wrong_ns in (("sender", trip_ns // 2), ("receiver", -trip_ns // 2)):
            facts = [ClockSampled(offset_ns=wrong_ns, round_trip_ns=trip_ns, server_mono_ns=0)]
            for number in range(20):
                message = f"m{number}"
                sends = node == "sender"
                facts.append(
                    MessageSent(message=message, type="t", size_bytes=1, to=["receiver"])
                    if sends
                    else MessageReceived(message=message, type="t", size_bytes=1, sender="sender")
                )
            events = [
                Envelope(seq, start_ns + seq * 10**7, seq * 10**7, fact)
                for seq, fact in enumerate(facts)
            ]
            store.append([], incarnation=1, expected=0, batches=[pack(CODEC, node, 1, events)])
        timeline = Timeline(store)
        in_order(timeline)
        whole = list(timeline.records())
        shown = [(r.kind, r.text("message")) for r in whole if r.text("message")]
        assert len(shown) == 40
        for number in range(20):
            sent = shown.index(("MessageSent", f"m{number}"))
            assert sent < shown.index(("MessageReceived", f"m{number}"))
        kinds = {"MessageSent", "MessageReceived"}
        assert list(timeline.records(kinds=kinds)) == [r for r in whole if r.kind in kinds]
        arrivals = {"MessageReceived"}
        assert list(timeline.records(kinds=arrivals)) == [r for r in whole if r.kind in arrivals]

    def test_coordinator_clock_jump_leaves_no_gap(self):
        def jump(sim):
            sim.world.skew_ns += HOUR_NS

        run = Planted(jump)
        in_order(run.timeline)
        extent = run.timeline.extent()
        assert extent.to_ns - extent.from_ns < HOUR_NS
        found = examine(run.timeline)
        assert any(finding.kind == "clock jump" for finding in found.findings)
        assert found.verdict == "yes"

    def test_event_is_read_by_its_reference(self, calm):
        for record in list(calm.timeline.records())[::500]:
            assert calm.timeline.record(record.ref) == record
        with pytest.raises(NotFound):
            calm.timeline.record("nobody/1/1")
        with pytest.raises(InvalidArgument):
            calm.timeline.record("nonsense")


class TestMoments:
    def test_the_state_at_any_position_is_the_fold_of_the_facts_before_it(self, crashed, timeline):
        for position in (0, 1, 50, 120, timeline.position):
            state = state_at(timeline, position).state
            assert state.position == position
            assert state == state_at(crashed.timeline, position).state

    def test_position_at_a_time_is_after_the_facts_up_to_it(self, timeline):
        for position in (1, 33, 90):
            at_ns = timeline.time_of(position)
            found = timeline.position_at(at_ns)
            assert found > position
            assert timeline.time_of(found - 1) <= at_ns
            assert found == timeline.position or timeline.time_of(found) > at_ns

    def test_moment_of_a_step_is_its_commit(self, crashed):
        answer = crashed.queries.at(step=20, task="train-1")
        assert answer.tasks[-1].committed_steps > 20

    def test_activity_of_workers_comes_from_their_own_events(self, crashed):
        begun = crashed.kinds("CheckpointWriteStarted")[0]
        state = state_at(crashed.timeline, crashed.timeline.position_at(begun.at_ns)).state
        recent = recent_before(crashed.timeline, begun.at_ns, state)
        nodes = {n.id: n for n in nodes_at(state, begun.at_ns, recent)}
        writing = nodes[begun.node]
        assert "writing a checkpoint" in [
            each.text.rsplit(" ", 1)[0] for each in writing.open_operations
        ]

    def test_moment_given_twice_is_refused(self, crashed):
        with pytest.raises(InvalidArgument):
            crashed.queries.at(time_ms=1.0, position=1)


class TestLogsThatAreNotWhole:
    def test_gap_in_sequence_numbers_is_found_with_its_time(self):
        run = Planted(lambda sim: worker(sim).witness.lose())
        found = examine(run.timeline)
        assert found.verdict == "no"
        gap = next(finding for finding in found.findings if finding.kind == "gap")
        hole = next(hole for hole in found.holes if hole.reason == gap.text)
        assert hole.from_ns < hole.to_ns
        assert run.queries.span().trust.verdict == "no"

    def test_dropped_events_are_counted_where_they_were_dropped(self):
        def drop(sim):
            worker(sim).witness.record(EventsDropped(count=3, reason="the buffer was full"))

        run = Planted(drop)
        assert any(finding.kind == "drop" for finding in examine(run.timeline).findings)

    def test_worker_without_events_is_reported(self):
        run = Planted(events=False)
        found = examine(run.timeline)
        assert found.verdict == "no"
        assert {finding.kind for finding in found.findings} == {"silent node"}

    def test_unknown_worker_kind_is_shown_by_its_fields(self, folder, tmp_path):
        copy = tmp_path / "newer"
        shutil.copytree(folder, copy)
        fact = Envelope(
            0, 1_750_000_100 * 10**9, 0, UnknownFact(tag="QuantumLeap", fields={"size": 3})
        )
        with SqliteStore(copy / "log.db", CODEC) as store:
            batch = pack(Newer(), "future", 9, [fact])
            store.append([], incarnation=1, expected=store.position, batches=[batch])
        with open_timeline(copy) as timeline:
            (record,) = timeline.records(node="future")
            assert record.kind == "QuantumLeap"
            assert record.fields() == {"size": 3}
            assert any("QuantumLeap" in f.text for f in examine(timeline).findings)

    def test_unknown_fact_ends_the_known_state(self, folder, tmp_path):
        copy = tmp_path / "newer"
        shutil.copytree(folder, copy)
        with SqliteStore(copy / "log.db", Newer()) as store:
            at = store.position
            body = UnknownFact(tag="WorkerTeleported", fields={"worker": "w"})
            fact = Envelope(at, 1_750_009_000 * 10**9, 10**15, body)
            store.append([fact], incarnation=2, expected=at)
        with open_timeline(copy) as timeline:
            past = state_at(timeline, at + 1)
            assert past.position == at
            assert "WorkerTeleported" in past.doubt
            assert TimelineQueries(timeline).at(position=at + 1).as_of.doubt
            assert examine(timeline).verdict == "no"

    def test_truncated_log_is_read_up_to_its_end(self, folder, tmp_path):
        copy = tmp_path / "torn"
        shutil.copytree(folder, copy)
        whole = (copy / "log.db").read_bytes()
        (copy / "log.db").write_bytes(whole[: len(whole) // 2 // 4096 * 4096])
        with open_timeline(copy) as timeline:
            assert examine(timeline).verdict == "no"
            assert "damage" in {finding.kind for finding in examine(timeline).findings}

    def test_folder_with_two_runs_requires_a_choice(self, folder, calm, tmp_path):
        shutil.copytree(folder, tmp_path / "both" / "first")
        calm.saved(tmp_path / "both" / "second")
        with pytest.raises(InvalidArgument, match="has 2 runs"):
            open_timeline(tmp_path / "both")
        with open_timeline(tmp_path / "both", "second") as timeline:
            assert timeline.name == "second"
        with pytest.raises(NotFound):
            open_timeline(tmp_path / "both", "third")

    def test_empty_folder_is_not_a_run(self, tmp_path):
        with pytest.raises(NotFound):
            open_timeline(tmp_path)


class TestBesideAWriter:
    def test_growing_log_is_read_as_far_as_it_goes(self, folder, tmp_path):
        copy = tmp_path / "live"
        shutil.copytree(folder, copy)
        with SqliteStore(copy / "log.db", CODEC) as store, open_timeline(copy) as timeline:
            before = timeline.position
            last = next(iter(store.read(before - 1)))
            more = Envelope(before, last.wall_ns + 1, last.mono_ns + 1, last.body)
            store.append([more], incarnation=1, expected=before)
            assert timeline.position == before + 1
            assert timeline.record(f"@{before}").event == more

    def test_events_since_the_last_count_are_not_reported_as_archived(self, folder, tmp_path):
        copy = tmp_path / "live"
        shutil.copytree(folder, copy)
        with SqliteStore(copy / "log.db", CODEC) as store, open_timeline(copy) as timeline:
            counted = timeline.tallies()
            for node, incarnation in ((counted[0].node, counted[0].incarnation), ("late", 99)):
                seq = (store.last_seq(node, incarnation) or -1) + 1
                event = Envelope(
                    seq,
                    counted[0].wall_to_ns + 1,
                    10**15,
                    MessageSent(message="m", type="t", size_bytes=1, to=[]),
                )
                batch = pack(CODEC, node, incarnation, [event])
                store.append([], incarnation=1, expected=store.position, batches=[batch])
            joined = next(r.event for r in timeline.facts() if r.kind == "WorkerRegistered")
            body = msgspec.structs.replace(joined.body, worker="late", incarnation=99)
            at = store.position
            last = next(iter(store.read(at - 1)))
            fact = Envelope(at, last.wall_ns + 1, last.mono_ns + 1, body)
            store.append([fact], incarnation=1, expected=at)
            assert timeline.tallies() == counted
            kinds = {finding.kind for finding in examine(timeline).findings}
            assert not kinds & {"archived", "silent node"}


class Newer:
    """Writes facts of a newer release: kinds that this one does not know."""

    def __init__(self):
        self.kinds = CODEC.kinds
        self.decode = CODEC.decode

    def encode(self, events):
        return msgspec.msgpack.encode(
            [
                (e.seq, e.wall_ns, e.mono_ns, {"kind": e.body.tag, **e.body.fields}, e.cause, e.op)
                for e in events
            ]
        )


def test_empty_log_is_an_error(tmp_path):
    with SqliteStore(tmp_path / "log.db", CODEC):
        pass
    with open_timeline(tmp_path) as timeline, pytest.raises(NotFound):
        timeline.extent()
    assert isinstance(timeline, Timeline)


def test_process_that_began_after_the_log_was_opened_is_placed_by_its_wall_clock():
    fleet = Fleet(2)
    clocks = Clocks(fleet.store)
    event = Event(seq=0, wall_ns=7_000, mono_ns=5, body=ResourceSnapshot())
    assert clocks.at_ns("late", 9, event) == 7_000
