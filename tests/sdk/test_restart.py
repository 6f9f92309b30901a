"""Workers survive a killed and restarted coordinator, and every event is stored exactly once."""

import itertools
import os
import signal

import pytest

from strata.core.cluster import CODEC
from strata.core.workers.exchange_facts import ConnectionChanged
from strata.core.workers.worker_facts import CODEC as WORKER_CODEC
from strata.core.workers.worker_facts import StepFinished
from strata.sdk.record.spool import read_spool
from strata.store.event_batches import unpack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteStore
from tests.sdk.harness import CoordinatorProcess, until

WORKERS = 8


@pytest.fixture
def strata_up(tmp_path):
    """A coordinator process with short intervals."""
    started = CoordinatorProcess(
        tmp_path, heartbeat_interval_s=0.5, heartbeat_timeout_s=10, reattach_grace_s=20
    )
    yield started
    started.close()


def events_by_stream(store):
    """All stored events of every incarnation, by seq."""
    found = {}
    for node, _ in store.streams():
        for batch in store.batches(Window(node=node)):
            events = unpack(WORKER_CODEC, batch)
            found.setdefault((batch.node, batch.incarnation), []).extend(events)
    return {stream: sorted(events, key=lambda e: e.seq) for stream, events in found.items()}


def assert_nothing_lost_or_twice(store, crowd):
    streams = events_by_stream(store)
    assert len(streams) == len(crowd)
    for (node, incarnation), events in streams.items():
        assert [event.seq for event in events] == list(range(len(events))), node
        assert store.gaps(node, incarnation) == []
        steps = [event.body.step for event in events if isinstance(event.body, StepFinished)]
        assert steps == list(range(len(steps))), f"{node} applied {steps}"
        # Only requests follow it: an open one ends, and the worker leaves.
        kinds = [event.kind for event in events]
        after = kinds[kinds.index("RunEnded") + 1 :]
        assert set(after) <= {"RequestSubmitted", "RequestCompleted"}
    return streams


def test_workers_restarted_after_a_total_kill_join_at_once(strata_up, trainees, tmp_path):
    """The coordinator still considers the killed workers alive when their ids register again."""
    given = {"world_size": 2, "step_s": 0.01, "checkpoint_every": 10}
    killed = [
        trainees(strata_up.address, "keep", worker_id=name, steps=10**6, **given) for name in "ab"
    ]
    for worker in killed:
        worker.says("saved", count=3)
    strata_up.kill()
    for worker in killed:
        worker.kill()
    strata_up.start()
    again = [
        trainees(strata_up.address, "keep", worker_id=name, steps=100, **given) for name in "ab"
    ]
    for worker in again:
        assert worker.says("restored")["source"] == "checkpoint"
        assert worker.says("ended")["exact"]
        assert worker.ends() == 0
    strata_up.stop()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        kinds = [event.kind for event in store.read()]
    assert "WorkerRejected" not in kinds


@pytest.mark.slow
def test_eight_workers_survive_the_coordinator(strata_up, trainees, tmp_path):
    crowd = [
        trainees(
            strata_up.address,
            "train",
            worker_id=f"w{n}",
            world_size=WORKERS,
            step_s=0.005,
            barrier_every=10,
        )
        for n in range(WORKERS)
    ]
    joined = [each.says("joined") for each in crowd]
    for restart in range(2):
        crowd[0].says("met", count=3 * (restart + 1))
        strata_up.kill()
        strata_up.start()
        reached = max(len(each.said) for each in crowd)
        for each in crowd:
            each.says("met", count=reached + 3)
    # Signals would reach some while others have left already, which makes a new generation.
    strata_up.stop_task(joined[0]["task_id"])
    assert [each.ends() for each in crowd] == [0] * WORKERS
    ended = [each.says("ending") for each in crowd]
    same = ("worker_id", "incarnation", "pid", "generation", "rank")
    assert [[e[n] for n in same] for e in ended] == [[j[n] for n in same] for j in joined]
    strata_up.stop()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        streams = assert_nothing_lost_or_twice(store, crowd)
        facts = list(store.read())
    kinds = [event.kind for event in facts]
    assert [event.body for event in facts if event.kind == "WorkerLost"] == []
    assert kinds.count("WorkerRegistered") == WORKERS
    assert kinds.count("CoordinatorStarted") == 3
    for events in streams.values():
        paths = [e.body.path for e in events if isinstance(e.body, ConnectionChanged)]
        assert paths == ["direct", "disconnected"] * 2 + ["direct"]
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.slow
def test_barrier_survives_a_restart_in_its_middle(strata_up, trainees, tmp_path):
    early = [
        trainees(strata_up.address, "meet", worker_id=f"w{n}", world_size=4, rounds=2)
        for n in range(3)
    ]
    gate = tmp_path / "gate"
    last = trainees(strata_up.address, "gate", worker_id="w3", world_size=4, gate=str(gate))
    for each in [*early, last]:
        each.says("joined")
    strata_up.kill()
    strata_up.start()
    assert not any(s["say"] == "met" for each in early for s in each.said)
    gate.touch()
    for each in [*early, last]:
        each.says("met", count=2)
        assert each.ends() == 0
    strata_up.stop()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        released = [event.body for event in store.read() if event.kind == "BarrierReleased"]
    assert [each.participants for each in released] == [4, 4]
    assert len({each.round for each in released}) == 2


@pytest.mark.slow
def test_events_wait_on_disk_while_the_coordinator_is_away(strata_up, trainees, spool, tmp_path):
    worker = trainees(strata_up.address, "train", worker_id="w", step_s=0.002)
    worker.says("joined")
    strata_up.kill()
    (file,) = spool.glob("*.events")
    until(lambda: file.stat().st_size > 5_000, what="the spool's growth")
    strata_up.start()
    until(lambda: file.stat().st_size < 3_000, what="the delivery")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    strata_up.stop()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        (events,) = assert_nothing_lost_or_twice(store, [worker]).values()
    gaps = [b.mono_ns - a.mono_ns for a, b in itertools.pairwise(events)]
    assert max(gaps) < 2_000_000_000, "it stopped recording while the coordinator was away"
    assert not os.listdir(spool)


@pytest.mark.slow
def test_unsent_events_of_a_crashed_worker_are_on_disk(strata_up, trainees, spool):
    worker = trainees(strata_up.address, "train", worker_id="w", step_s=0.002)
    worker.says("joined")
    strata_up.kill()
    (file,) = spool.glob("*.events")
    until(lambda: file.stat().st_size > 3_000, what="the spool's growth")
    worker.signal(signal.SIGKILL)
    worker.ends()
    events = [event for batch in read_spool(file) for event in unpack(WORKER_CODEC, batch)]
    seqs = [event.seq for event in events]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert any(isinstance(event.body, StepFinished) for event in events)
