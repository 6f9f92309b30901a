"""Guards the recording of events: numbered densely, bounded, never raising, kept until stored."""

import os
import threading

import pytest

from strata.core.events import Fact
from strata.core.worker_facts import CODEC, KINDS, EventsDropped, StepFinished
from strata.errors import Corrupt
from strata.sdk.events import Recorder
from strata.sdk.lines import LAST_LINES, LineBuffer
from strata.sdk.spool import Spool, read_spool
from strata.store.batches import unpack


class Note(Fact, frozen=True):
    """A user's own kind."""

    text: object


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder()
    recorder.begin(tmp_path, "w/1", 7)
    yield recorder
    recorder.close()


def sent(recorder):
    """Everything that waits to be sent, as events."""
    recorder.collect()
    batches = iter(recorder.to_send, None)
    return [event for batch in batches for event in unpack(CODEC, batch)]


def test_every_kind_is_a_fact_that_survives_the_codec():
    assert all(issubclass(kind, Fact) for kind in KINDS)
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


def test_events_are_dense_and_in_order(recorder):
    for number in range(5_000):
        recorder.emit(Note(number), op="o", cause=("@1",))
    events = sent(recorder)
    assert [event.seq for event in events] == list(range(5_000))
    assert [event.body.fields["text"] for event in events] == list(range(5_000))
    assert (events[0].op, events[0].cause) == ("o", ("@1",))
    assert all(event.wall_ns and event.mono_ns for event in events)


def test_threads_record_at_once(recorder):
    def work():
        for number in range(1_000):
            recorder.emit(Note(number))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in sent(recorder)] == list(range(8_000))


def test_what_does_not_fit_is_counted(recorder):
    recorder.limit = 10
    for number in range(25):
        recorder.emit(Note(number))
    events = sent(recorder)
    assert events[0].body == EventsDropped(15, "the buffer was full")
    assert len(events) == 11
    recorder.emit(Note("again"))
    assert [event.seq for event in sent(recorder)] == [11]


@pytest.mark.parametrize("junk", ["a text", None, object(), 3.5])
def test_what_is_no_fact_is_left_out_and_said(recorder, junk):
    recorder.emit(junk)
    recorder.emit(Note("good"))
    events = sent(recorder) + sent(recorder)
    assert [event.seq for event in events] == list(range(len(events)))
    assert sum(e.body.count for e in events if isinstance(e.body, EventsDropped)) == 1
    assert any(event.kind == "Note" for event in events)


def test_a_fact_that_cannot_be_packed_costs_no_other(recorder):
    for number in range(100):
        recorder.emit(Note(object() if number % 10 == 0 else number))
    events = sent(recorder)
    assert [event.seq for event in events] == list(range(len(events)))
    assert sum(event.kind == "Note" for event in events) == 90
    (dropped,) = [event.body for event in events if isinstance(event.body, EventsDropped)]
    assert dropped == EventsDropped(10, "a Note could not be packed")


def test_a_huge_fact_is_left_out(recorder):
    recorder.emit(Note(os.urandom(3 * 2**20)))
    recorder.emit(Note("small"))
    kinds = [event.kind for event in sent(recorder)]
    assert sorted(kinds) == ["EventsDropped", "Note"]


def test_a_full_spool_holds_events_back_until_it_is_emptied(tmp_path):
    recorder = Recorder(limit=100)
    recorder.begin(tmp_path, "w", 1, max_bytes=2_000)
    for _ in range(40):
        for number in range(100):
            recorder.emit(StepFinished(number, 0.1, 0.2, 0.3, 0.4))
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


def test_a_disk_that_refuses_costs_events_and_not_the_worker(recorder, monkeypatch):
    def refuse(self, batch):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "add", refuse)
        for number in range(10):
            recorder.emit(Note(number))
        assert sent(recorder) == []
    recorder.emit(Note("after"))
    events = sent(recorder)
    assert events[0].body == EventsDropped(10, "the spool failed: No space left on device")
    assert [event.seq for event in events] == [0, 1]


def test_a_new_connection_gets_what_is_not_stored(recorder):
    for number in range(3):
        recorder.emit(Note(number))
        recorder.collect()
    assert [event.seq for event in sent(recorder)] == [0, 1, 2]
    assert sent(recorder) == []
    recorder.reattached(stored_seq=0)
    assert [event.seq for event in sent(recorder)] == [1, 2]
    recorder.stored(2)
    assert recorder.delivered
    recorder.reattached(stored_seq=2)
    assert sent(recorder) == []


def test_a_new_incarnation_counts_anew_and_says_what_stayed_behind(recorder, tmp_path):
    for number in range(3):
        recorder.emit(Note(number))
    assert len(sent(recorder)) == 3
    recorder.begin(tmp_path, "w/1", 8)
    recorder.emit(Note("new"))
    events = sent(recorder)
    assert [event.seq for event in events] == [0, 1]
    assert events[0].body.count == 3
    assert "incarnation 7" in events[0].body.reason
    left = next(file for file in tmp_path.glob("*.events") if ".7." in file.name)
    assert [batch.count for batch in read_spool(left)] == [3]


def test_a_refused_batch_leaves_a_gap_and_a_word(recorder):
    for number in range(3):
        recorder.emit(Note(number))
        recorder.collect()
    sent(recorder)
    recorder.refused(1, "it smells")
    (dropped,) = sent(recorder)
    assert (dropped.seq, dropped.body.count) == (3, 1)
    recorder.stored(3)
    assert recorder.delivered


def test_a_spool_is_read_up_to_where_it_is_torn(tmp_path, recorder):
    for number in range(3):
        recorder.emit(Note(number))
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
    recorder.emit(Note("in the child"))
    recorder.collect()
    assert recorder.to_send() is None


def test_lines_are_bounded_and_the_rest_is_counted():
    """The newest that did not fit are kept apart: they often say why a process ended."""
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


def test_lines_are_sent_again_until_they_are_taken():
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


def test_what_was_sent_and_not_taken_counts_to_the_bound():
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


def test_lines_below_the_least_level_stay_here():
    lines = LineBuffer(least_level="warn")
    for level in ("debug", "info", "warn", "error"):
        lines(level, level, "logging")
    assert [line.level for line in lines.take().lines] == ["warn", "error"]


def test_a_line_that_utf8_cannot_carry_is_sent_all_the_same():
    lines = LineBuffer()
    lines("info", "caf\u00e9 \udcff", "stdout")
    assert lines.take().SerializeToString()
