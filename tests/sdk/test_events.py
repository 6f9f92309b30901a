"""The recorder: events have no gaps in numbers, are bounded, and are kept until stored."""

import os
import resource
import threading
from contextlib import contextmanager, suppress

import msgspec
import pytest

from strata.coordinator.sessions.backlog import MAX_MESSAGES
from strata.core.events import Fact
from strata.core.workers.worker_facts import CODEC, KINDS, EventsDropped, StepFinished
from strata.errors import Corrupt
from strata.sdk.record.blackbox import BlackBox, read_newest
from strata.sdk.record.line_buffer import LAST_LINES, LineBuffer
from strata.sdk.record.recorder import Recorder
from strata.sdk.record.spool import Spool, read_spool
from strata.store.event_batches import unpack
from strata.store.event_store import Batch


class Note(Fact, frozen=True):
    """A user's own kind."""

    text: object


def sent(recorder):
    """All unsent events."""
    recorder.collect()
    batches = iter(recorder.to_send, None)
    return [event for batch in batches for event in unpack(CODEC, batch)]


def test_every_kind_is_a_fact_that_survives_the_codec():
    assert all(issubclass(kind, Fact) for kind in KINDS)
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


def test_events_are_numbered_without_gaps_in_order(recorder):
    for number in range(5_000):
        recorder.emit(Note(text=number), op="o", cause=("@1",))
    events = sent(recorder)
    assert [event.seq for event in events] == list(range(5_000))
    assert [event.body.fields["text"] for event in events] == list(range(5_000))
    assert (events[0].op, events[0].cause) == ("o", ("@1",))
    assert all(event.wall_ns and event.mono_ns for event in events)


def test_threads_can_record_concurrently(recorder):
    def work():
        for number in range(1_000):
            recorder.emit(Note(text=number))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in sent(recorder)] == list(range(8_000))


def test_events_that_do_not_fit_are_counted(recorder):
    recorder.limit = 10
    for number in range(25):
        recorder.emit(Note(text=number))
    events = sent(recorder)
    assert events[0].body == EventsDropped(count=15, reason="the buffer was full")
    assert len(events) == 11
    recorder.emit(Note(text="again"))
    assert [event.seq for event in sent(recorder)] == [11]


@pytest.mark.parametrize("junk", ["a text", None, object(), 3.5])
def test_object_that_is_not_a_fact_is_dropped_and_recorded(recorder, junk):
    recorder.emit(junk)
    recorder.emit(Note(text="good"))
    events = sent(recorder) + sent(recorder)
    assert [event.seq for event in events] == list(range(len(events)))
    assert sum(e.body.count for e in events if isinstance(e.body, EventsDropped)) == 1
    assert any(event.kind == "Note" for event in events)


def test_unencodable_fact_does_not_affect_others(recorder):
    for number in range(100):
        recorder.emit(Note(text=object() if number % 10 == 0 else number))
    events = sent(recorder)
    assert [event.seq for event in events] == list(range(len(events)))
    assert sum(event.kind == "Note" for event in events) == 90
    (dropped,) = [event.body for event in events if isinstance(event.body, EventsDropped)]
    assert dropped == EventsDropped(count=10, reason="a Note could not be packed")


def test_huge_fact_is_dropped(recorder):
    recorder.emit(Note(text=os.urandom(3 * 2**20)))
    recorder.emit(Note(text="small"))
    kinds = [event.kind for event in sent(recorder)]
    assert sorted(kinds) == ["EventsDropped", "Note"]


def test_events_wait_while_the_spool_is_full(tmp_path):
    recorder = Recorder(limit=100)
    recorder.begin(tmp_path, "w", 1, max_bytes=2_000)
    for _ in range(40):
        for number in range(100):
            recorder.emit(
                StepFinished(
                    step=number, data_s=0.1, compute_s=0.2, communication_s=0.3, wait_s=0.4
                )
            )
        recorder.collect()
    (file,) = tmp_path.glob("*.events")
    assert file.stat().st_size < 6_000
    events = sent(recorder)
    recorder.stored(events[-1].seq)
    assert file.stat().st_size == 0
    later = sent(recorder)
    assert [e.seq for e in events + later] == list(range(len(events) + len(later)))
    dropped = sum(e.body.count for e in later if isinstance(e.body, EventsDropped))
    steps = sum(isinstance(e.body, StepFinished) for e in events + later)
    assert steps + dropped == 4_000
    recorder.close()


@contextmanager
def full_disk():
    """No file of this process may grow: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_events_on_a_full_disk_wait_in_memory_and_are_sent(recorder, tmp_path):
    with full_disk():
        for number in range(100):
            recorder.emit(Note(text="x" * 500 + str(number)))
            recorder.collect()
        events = sent(recorder)
    assert [event.seq for event in events] == list(range(100))
    assert {event.kind for event in events} == {"Note"}
    recorder.reattached(stored_seq=49)
    assert [event.seq for event in sent(recorder)] == list(range(50, 100))
    recorder.stored(99)
    assert recorder.delivered
    recorder.emit(Note(text="after"))
    assert [event.seq for event in sent(recorder)] == [100]
    (file,) = tmp_path.glob("*.events")
    assert [batch.first_seq for batch in read_spool(file)] == [100], "it is on disk again"


def test_memory_for_events_on_a_full_disk_is_bounded(tmp_path):
    spool = Spool(tmp_path, "w", 1)
    batch = Batch(
        node="w",
        incarnation=1,
        first_seq=0,
        count=1,
        wall_from_ns=1,
        wall_to_ns=1,
        kinds=["Note"],
        payload=bytes(2**20),
    )
    held = 0
    with full_disk(), suppress(OSError):
        for held in range(100):
            spool.add(msgspec.structs.replace(batch, first_seq=held))
    assert 0 < held < 10
    spool.stored(99)
    assert spool.empty
    spool.close()


def test_black_box_on_a_full_disk_is_in_memory(tmp_path):
    """A write to a mapped page that the disk has no block for would end the process."""
    with full_disk():
        box = BlackBox(tmp_path / "w.newest", "w", 1)
    for number in range(5_000):
        box.note(number, (number, 1, 1, Note(text="x"), (), ""))
    assert read_newest(tmp_path / "w.newest", -1) is None
    box.close(keep=False)


def test_blocks_of_the_black_box_are_allocated_when_it_is_made(tmp_path):
    box = BlackBox(tmp_path / "w.newest", "w", 1)
    found = (tmp_path / "w.newest").stat()
    assert found.st_blocks * 512 >= found.st_size > 0
    box.close(keep=False)


def test_failing_disk_drops_events_but_not_the_worker(recorder, monkeypatch):
    def refuse(self, batch):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "add", refuse)
        for number in range(10):
            recorder.emit(Note(text=number))
        assert sent(recorder) == []
    recorder.emit(Note(text="after"))
    events = sent(recorder)
    assert events[0].body == EventsDropped(
        count=10, reason="the spool failed: No space left on device"
    )
    assert [event.seq for event in events] == [0, 1]


def test_new_connection_gets_all_events_that_are_not_stored(recorder):
    for number in range(3):
        recorder.emit(Note(text=number))
        recorder.collect()
    assert [event.seq for event in sent(recorder)] == [0, 1, 2]
    assert sent(recorder) == []
    recorder.reattached(stored_seq=0)
    assert [event.seq for event in sent(recorder)] == [1, 2]
    recorder.stored(2)
    assert recorder.delivered
    recorder.reattached(stored_seq=2)
    assert sent(recorder) == []


def test_new_incarnation_restarts_numbers_and_records_unsent_events(recorder, tmp_path):
    for number in range(3):
        recorder.emit(Note(text=number))
    assert len(sent(recorder)) == 3
    recorder.begin(tmp_path, "w/1", 8)
    recorder.emit(Note(text="new"))
    events = sent(recorder)
    assert [event.seq for event in events] == [0, 1]
    assert events[0].body.count == 3
    assert "incarnation 7" in events[0].body.reason
    left = next(file for file in tmp_path.glob("*.events") if ".7." in file.name)
    assert [batch.count for batch in read_spool(left)] == [3]


def test_refused_batch_leaves_a_recorded_gap(recorder):
    for number in range(3):
        recorder.emit(Note(text=number))
        recorder.collect()
    sent(recorder)
    recorder.refused(1, "it smells")
    (dropped,) = sent(recorder)
    assert (dropped.seq, dropped.body.count) == (3, 1)
    recorder.stored(3)
    assert recorder.delivered


def test_spool_is_read_up_to_a_torn_record(tmp_path, recorder):
    for number in range(3):
        recorder.emit(Note(text=number))
        recorder.collect()
    (file,) = tmp_path.glob("*.events")
    whole = file.read_bytes()
    torn = tmp_path / "torn"
    for size in range(len(whole)):
        torn.write_bytes(whole[:size])
        assert len(list(read_spool(torn))) <= 2
    torn.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Corrupt):
        list(read_spool(torn))


def test_nothing_is_recorded_in_a_forked_child(recorder):
    recorder.became_child()
    recorder.emit(Note(text="in the child"))
    recorder.collect()
    assert recorder.to_send() is None


def test_lines_are_bounded_and_dropped_ones_counted():
    """The newest dropped lines are kept: they often say why a process ended."""
    lines = LineBuffer(max_lines=5)
    for number in range(5 + 7 + LAST_LINES):
        lines("info", f"line {number}", "stdout")
    message = lines.take()
    assert [line.message for line in message.lines] == [f"line {number}" for number in range(5)]
    assert message.dropped == 0
    assert lines.take() is None
    lines.taken(message.first + 4)
    dropped, last = lines.take(), lines.take()
    assert (dropped.first, dropped.dropped, len(dropped.lines)) == (6, 7, 0)
    assert (last.first, len(last.lines)) == (7, LAST_LINES)
    assert last.lines[-1].message == f"line {11 + LAST_LINES}"
    lines.taken(6 + LAST_LINES)
    assert lines.delivered


def test_lines_are_sent_again_until_acknowledged():
    lines = LineBuffer()
    for number in range(4):
        lines("info", f"line {number}", "stdout")
    first = lines.take()
    assert (first.first, len(first.lines), first.sender) == (1, 4, lines.sender)
    assert lines.take() is None
    lines.taken(1)
    lines("info", "line 4", "stdout")
    assert [line.message for line in lines.take().lines] == ["line 4"]
    lines.resend()
    again = lines.take()
    assert (again.first, [line.message[-1] for line in again.lines]) == (2, list("1234"))
    lines.taken(5)
    lines.taken(3)
    lines.resend()
    assert lines.delivered
    assert lines.take() is None


def test_unacknowledged_lines_count_toward_the_limit():
    lines = LineBuffer(max_lines=3)
    for number in range(3):
        lines("info", f"line {number}", "stdout")
    lines.take()
    for number in range(LAST_LINES + 1):
        lines("info", f"too many {number}", "stdout")
    assert lines.take() is None
    lines.taken(3)
    message = lines.take()
    assert (message.first, message.dropped, len(message.lines)) == (4, 1, 0)


def test_lines_below_the_minimum_level_are_not_sent():
    lines = LineBuffer(least_level="warn")
    for level in ("debug", "info", "warn", "error"):
        lines(level, level, "logging")
    assert [line.level for line in lines.take().lines] == ["warn", "error"]


def test_line_with_undecodable_characters_is_sent():
    lines = LineBuffer()
    lines("info", "caf\u00e9 \udcff", "stdout")
    assert lines.take().SerializeToString()


def test_batches_under_way_stay_below_what_the_coordinator_lets_wait(recorder):
    """It closes a session that sends more; requests need room beside the events."""
    for number in range(2 * MAX_MESSAGES):
        recorder.emit(Note(number))
        recorder.collect()
    batches = list(iter(recorder.to_send, None))
    assert len(batches) <= MAX_MESSAGES // 2
    recorder.stored(batches[9].first_seq)
    assert len(list(iter(recorder.to_send, None))) == 10
