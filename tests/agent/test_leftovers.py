"""An agent delivers the events in a killed worker's spool, each once, and reports events that
cannot be delivered."""

import json
import os
import signal
import subprocess
import sys

import pytest

from strata.agent.leftover_events import FOLDER, Leftovers
from strata.core.events import Envelope
from strata.core.workers.worker_facts import CODEC, StepFinished
from strata.sdk.record.spool import Spool, read_spool
from strata.store.event_batches import pack, unpack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteStore
from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.harness import Agent, Api, environment, until, worker_pids
from tests.coordinator.process import process

# Trains for a while, remembers which step was the last before the last half second, and is killed.
# The next start of it only finishes.
DOOMED = """
import json, os, pathlib, signal, sys, time, strata
said = pathlib.Path("said.json")
with strata.join() as run:
    if said.exists():
        sys.exit(0)
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        run.mark_step(loss=1.0)
        if time.monotonic() - began < 2.0:
            safe = run.steps
        time.sleep(0.005)
    said.write_text(json.dumps({"incarnation": run.incarnation, "safe": safe, "made": run.steps}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def steps_of(store, worker, incarnation):
    """The steps in a worker's stored events; checks that there are no gaps or duplicates."""
    batches = [b for b in store.batches(Window(node=worker)) if b.incarnation == incarnation]
    events = [event for batch in batches for event in unpack(CODEC, batch)]
    assert sorted(event.seq for event in events) == list(range(len(events)))
    assert store.gaps(worker, incarnation) == []
    return [event.body.step for event in events if isinstance(event.body, StepFinished)]


def test_last_events_of_a_worker_killed_under_strata_run_are_readable(tmp_path):
    (tmp_path / "doomed.py").write_text(DOOMED, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-c", "from strata.cli import main; main()", "run", "doomed.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "said.json").read_text("utf-8"))
    (log,) = tmp_path.glob("strata-data/runs/*/log.db")
    with SqliteStore(log, CODEC) as store:
        steps = steps_of(store, "doomed-1-w0", said["incarnation"])
    assert steps == list(range(len(steps)))
    assert said["safe"] <= len(steps) <= said["made"]
    assert list(tmp_path.glob(f"strata-data/runs/*/agents/local/{FOLDER}/*")) == []


def stopped_with_events(folder, spools):
    """Pause the worker when it has events that are not stored; returns its process."""
    for pid in worker_pids(folder).values():
        os.kill(pid, signal.SIGSTOP)
        if any(file.stat().st_size > 500 for file in spools.glob("*/*.events")):
            return pid
        os.kill(pid, signal.SIGCONT)
    return 0


@pytest.mark.slow
def test_undelivered_events_survive_the_agent(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import time, strata\nwith strata.join() as run:\n"
        "    while True:\n        run.mark_step()\n        time.sleep(0.005)\n",
        "utf-8",
    )
    with process(tmp_path, heartbeat_interval_s=0.2, heartbeat_timeout_s=3.0) as coordinator:
        api, agent = Api(coordinator), Agent(tmp_path, coordinator.address, 1)
        try:
            api.submit(script, 1, policy="stop")
            spools = tmp_path / "data" / "agents" / "a" / FOLDER
            pid = until(lambda: stopped_with_events(tmp_path, spools), "events in the spool")
            (file,) = spools.glob("*/*.events")
            left = list(read_spool(file))[-1]
            agent.kill()
            os.killpg(pid, signal.SIGKILL)
            until(lambda: api.facts("WorkerLost"), "its loss")
            agent.start()
            until(lambda: not list(spools.glob("*")), "the delivery")
        finally:
            agent.close()
        assert coordinator.stop() == 0
    with SqliteStore(coordinator.store, CODEC) as store:
        steps_of(store, left.node, left.incarnation)
        assert store.last_seq(left.node, left.incarnation) == left.stop_seq - 1


def batch(first, count=3, node="w", incarnation=7):
    facts = [
        StepFinished(step=seq, data_s=0.0, compute_s=0.0, communication_s=0.0, wait_s=0.0)
        for seq in range(first, first + count)
    ]
    events = [Envelope(seq, seq + 1, seq + 1, fact) for seq, fact in enumerate(facts, first)]
    return pack(CODEC, node, incarnation, events)


@pytest.fixture
def left(tmp_path):
    """The leftovers of a process `key` with three batches."""
    leftovers = Leftovers(tmp_path)
    spool = Spool(leftovers.folder_of("key"), "w", 7)
    for first in (0, 3, 6):
        spool.add(batch(first))
    spool.close()
    return leftovers


def settle(sent, **given):
    return pb.LeftSettled(
        worker_id=sent.worker_id,
        incarnation=sent.incarnation,
        first_seq=sent.events.first_seq,
        **given,
    )


def test_batches_are_sent_one_at_a_time_before_the_folder_is_deleted(left):
    said = []
    left.ended("key", said.append)
    for first in (0, 3, 6):
        assert left.folder_of("key").exists()
        sent = left.next_message()
        assert (sent.worker_id, sent.incarnation, sent.events.first_seq) == ("w", 7, first)
        assert left.next_message() is None
        left.settled(settle(sent))
    assert left.empty
    assert left.keys() == []
    assert said == []


def test_unsettled_batch_is_sent_again(left):
    left.ended("key", print)
    first = left.next_message()
    left.resend()
    assert left.next_message() == first
    left.settled(settle(first))
    left.settled(settle(first))
    assert left.next_message().events.first_seq == 3


def test_refused_batch_is_reported_and_skipped(left):
    said = []
    left.ended("key", said.append)
    left.settled(settle(left.next_message(), refused=pb.Refused(message="no such worker")))
    assert said == ["3 events were refused: no such worker"]
    assert left.next_message().events.first_seq == 3


def test_events_before_damage_are_delivered_and_damage_is_reported(left):
    (file,) = left.folder_of("key").glob("*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    said = []
    left.ended("key", said.append)
    sent = left.next_message()
    assert sent.events.first_seq == 0
    left.settled(settle(sent))
    assert left.empty
    (text,) = said
    assert "cannot be read" in text


def test_torn_end_is_not_damage(left):
    (file,) = left.folder_of("key").glob("*")
    os.truncate(file, file.stat().st_size - 5)
    said, found = [], []
    left.ended("key", said.append)
    while (sent := left.next_message()) is not None:
        found.append(sent.events.first_seq)
        left.settled(settle(sent))
    assert found == [0, 3]
    assert said == []


def test_process_that_left_nothing_leaves_no_folder(tmp_path):
    leftovers = Leftovers(tmp_path)
    leftovers.folder_of("key").mkdir(parents=True)
    leftovers.ended("key", print)
    leftovers.ended("another", print)
    assert leftovers.empty
    assert leftovers.keys() == []
