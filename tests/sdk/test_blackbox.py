"""The black box: events that were recorded but not packed survive a SIGKILL."""

import signal
import subprocess
import sys

from strata.core.events import Fact
from strata.core.workers.worker_facts import CODEC, EventsDropped
from strata.sdk.record.blackbox import SLOTS
from strata.sdk.record.recorder import Recorder
from strata.sdk.record.spool import read_spool
from strata.store.event_batches import unpack

DYING = """
import os, signal, sys
from pathlib import Path
from strata.core.events import Fact
from strata.sdk.record.recorder import Recorder

class Note(Fact, frozen=True):
    text: str

recorder = Recorder()
recorder.begin(Path(sys.argv[1]), "w", 3)
for number in range(5):
    recorder.emit(Note(f"packed {number}"))
recorder.collect()
for number in range(5):
    recorder.emit(Note(f"not packed {number}"), ("cause",), "op")
os.kill(os.getpid(), signal.SIGKILL)
"""


class Note(Fact, frozen=True):
    """A user's own kind."""

    text: str


def left(folder):
    """The events in the spool and black box of a folder."""
    (file,) = folder.glob("*.events")
    return [event for batch in read_spool(file) for event in unpack(CODEC, batch)]


def test_last_events_of_a_killed_process_are_readable(tmp_path):
    process = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], timeout=60)
    assert process.returncode == -signal.SIGKILL
    events = left(tmp_path)
    assert [event.seq for event in events] == list(range(10))
    texts = [event.body.fields["text"] for event in events]
    assert texts == [f"packed {n}" for n in range(5)] + [f"not packed {n}" for n in range(5)]
    assert (events[-1].cause, events[-1].op) == (("cause",), "op")


def test_batch_contains_its_node_without_a_spool(tmp_path, recorder):
    recorder.emit(Note(text="only here"))
    (file,) = tmp_path.glob("*.events")
    (batch,) = read_spool(file)
    assert (batch.node, batch.incarnation, batch.kinds) == ("w/1", 7, ("Note",))


def test_packed_events_are_not_read_twice(tmp_path, recorder):
    for number in range(3):
        recorder.emit(Note(text=str(number)))
        recorder.collect()
    assert [event.body.fields["text"] for event in left(tmp_path)] == ["0", "1", "2"]


def test_kill_between_spool_write_and_note_duplicates_nothing(tmp_path, recorder):
    recorder.emit(Note(text="a"))
    recorder.emit(Note(text="b"))
    recorder._box.collected = lambda number, next_seq: None
    recorder.collect()
    recorder._box.__dict__.pop("collected")
    recorder.emit(Note(text="c"))
    events = left(tmp_path)
    assert [event.body.fields["text"] for event in events] == ["a", "b", "c"]
    assert [event.seq for event in events] == [0, 1, 2]


def test_events_that_do_not_fit_are_counted(tmp_path, recorder):
    recorder.emit(Note(text="before"))
    recorder.emit(Note(text="x" * 1_000))
    recorder.emit(Note(text="after"))
    dropped, *others = left(tmp_path)
    assert isinstance(dropped.body, EventsDropped)
    assert dropped.body.count == 1
    assert [event.body.fields["text"] for event in others] == ["before", "after"]


def test_packing_is_requested_before_the_ring_overflows(recorder):
    woken = []
    recorder.on_crowded = lambda: woken.append(True)
    for _ in range(SLOTS // 2):
        recorder.emit(Note(text="x"))
    assert not woken
    recorder.emit(Note(text="x"))
    assert woken
    recorder.collect()
    woken.clear()
    recorder.emit(Note(text="x"))
    assert not woken


def test_process_that_ends_normally_leaves_no_file(tmp_path):
    recorder = Recorder()
    recorder.begin(tmp_path, "w", 1)
    recorder.emit(Note(text="x"))
    recorder.collect()
    recorder.stored(0)
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_note_makes_no_system_call(recorder):
    """Its cost is measured by benchmarks/bench_sdk.py."""
    called = set()

    def look(frame, event, called_function):
        if event == "c_call":
            called.add((called_function.__module__, called_function.__name__))

    fact = Note(text="x")
    recorder.emit(fact)
    sys.setprofile(look)
    try:
        recorder.emit(fact)
    finally:
        sys.setprofile(None)
    assert ("time", "monotonic_ns") in called, "the profile sees calls of C functions"
    assert {module for module, _ in called} & {"posix", "io", "_io", "mmap", "_socket"} == set()
