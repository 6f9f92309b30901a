"""Guards the last moments of a process: what it recorded and had not packed outlives a SIGKILL."""

import signal
import subprocess
import sys
import time

import pytest

from strata.core.events import Fact
from strata.core.worker_facts import CODEC, EventsDropped
from strata.sdk.blackbox import SLOTS
from strata.sdk.events import Recorder
from strata.sdk.spool import read_spool
from strata.store.batches import unpack

DYING = """
import os, signal, sys
from pathlib import Path
from strata.core.events import Fact
from strata.sdk.events import Recorder

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


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder()
    recorder.begin(tmp_path, "w/1", 7)
    yield recorder
    recorder.close()


def left(folder):
    """What whoever delivers it finds."""
    (file,) = folder.glob("*.events")
    return [event for batch in read_spool(file) for event in unpack(CODEC, batch)]


def test_a_killed_process_leaves_its_last_events(tmp_path):
    process = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], timeout=60)
    assert process.returncode == -signal.SIGKILL
    events = left(tmp_path)
    assert [event.seq for event in events] == list(range(10))
    texts = [event.body.fields["text"] for event in events]
    assert texts == [f"packed {n}" for n in range(5)] + [f"not packed {n}" for n in range(5)]
    assert (events[-1].cause, events[-1].op) == (("cause",), "op")


def test_batches_say_whose_they_are_also_when_nothing_was_spooled(tmp_path, recorder):
    recorder.emit(Note("only here"))
    (file,) = tmp_path.glob("*.events")
    (batch,) = read_spool(file)
    assert (batch.node, batch.incarnation, batch.kinds) == ("w/1", 7, ("Note",))


def test_what_was_packed_is_not_there_twice(tmp_path, recorder):
    for number in range(3):
        recorder.emit(Note(str(number)))
        recorder.collect()
    assert [event.body.fields["text"] for event in left(tmp_path)] == ["0", "1", "2"]


def test_killed_between_the_spool_and_the_word_about_it(tmp_path, recorder):
    recorder.emit(Note("a"))
    recorder.emit(Note("b"))
    recorder._box.collected = lambda number, next_seq: None
    recorder.collect()
    recorder._box.__dict__.pop("collected")
    recorder.emit(Note("c"))
    events = left(tmp_path)
    assert [event.body.fields["text"] for event in events] == ["a", "b", "c"]
    assert [event.seq for event in events] == [0, 1, 2]


def test_what_does_not_fit_is_counted(tmp_path, recorder):
    recorder.emit(Note("before"))
    recorder.emit(Note("x" * 1_000))
    recorder.emit(Note("after"))
    dropped, *others = left(tmp_path)
    assert isinstance(dropped.body, EventsDropped)
    assert dropped.body.count == 1
    assert [event.body.fields["text"] for event in others] == ["before", "after"]


def test_whoever_packs_is_woken_before_the_ring_comes_round(recorder):
    woken = []
    recorder.on_crowded = lambda: woken.append(True)
    for _ in range(SLOTS // 2):
        recorder.emit(Note("x"))
    assert not woken
    recorder.emit(Note("x"))
    assert woken
    recorder.collect()
    woken.clear()
    recorder.emit(Note("x"))
    assert not woken


def test_a_process_that_ends_well_leaves_nothing(tmp_path):
    recorder = Recorder()
    recorder.begin(tmp_path, "w", 1)
    recorder.emit(Note("x"))
    recorder.collect()
    recorder.stored(0)
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_noting_costs_less_than_a_microsecond_or_so(recorder):
    """A bound that a system call would break; the figure itself is in docs/BENCHMARKS.md."""
    fact = Note("x")
    for _ in range(100):
        recorder.emit(fact)
    best_s = min(timed(recorder, fact) for _ in range(20))
    assert best_s < 5e-6, f"{best_s * 1e6:.2f} µs"


def timed(recorder, fact) -> float:
    begun_s = time.process_time()
    for _ in range(1_000):
        recorder.emit(fact)
    return (time.process_time() - begun_s) / 1_000
