"""`run.shards`: every shard is trained once per epoch, by workers at their own pace."""

import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from strata.core.cluster import CODEC
from strata.store.sqlite import SqliteStore
from tests.sdk.harness import CoordinatorProcess, until

LEARNER = Path(__file__).with_name("learner.py")
SAMPLES, SHARD = 205, 10


@pytest.fixture
def roamers(hub, trainees):
    """Start workers that train `numbers` by leased shards, in a task with policy continue."""
    body = {"dataset_id": "numbers", "total_samples": SAMPLES, "shard_size": SHARD, "seed": 7}
    httpx.post(f"{hub.running.http_url}/api/datasets", json=body).raise_for_status()

    def start(*names, workers=None, **given):
        if workers is not None:
            asked = {"name": "t", "worker_count": workers, "policy": "continue"}
            httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).raise_for_status()
        return [
            trainees(hub.address, "roam", script=LEARNER, worker_id=n, task="t-1", **given)
            for n in names
        ]

    return start


def audited(hub):
    found = httpx.get(f"{hub.running.http_url}/api/tasks/t-1/audit", timeout=20).json()
    assert found["verdict"] == "unproven", "leases count by the workers' word"
    (feed,) = found["feeds"]
    return [(each["once"], each["missing"], each["twice"]) for each in feed["epochs"]]


def counted(hub):
    """How often each shard of each epoch was returned as trained."""
    epochs = {fact.lease: fact.epoch for fact in hub.facts("LeaseGranted")}
    returned = [fact for fact in hub.facts("LeaseReturned") if fact.consumed]
    return Counter((epochs[fact.lease], fact.shard) for fact in returned)


def test_every_sample_is_trained_once_per_epoch_at_any_pace(hub, roamers):
    slow, fast = roamers("slow", workers=2, epochs=2, step_s=0.05) + roamers("fast", epochs=2)
    assert [slow.ends(60), fast.ends(60)] == [0, 0]
    trained = [said for each in (slow, fast) for said in each.said if said["say"] == "trained"]
    for epoch in (0, 1):
        own = [row for said in trained if said["epoch"] == epoch for row in said["own"]]
        assert sorted(own) == list(range(SAMPLES))
    assert len([s for s in fast.said if s["say"] == "trained"]) > len(
        [s for s in slow.said if s["say"] == "trained"]
    )
    assert audited(hub) == [(SAMPLES, 0, 0)] * 2


def test_shards_of_a_killed_worker_are_leased_again(hub, roamers):
    victim, heir = roamers("victim", "heir", workers=2, step_s=0.02)
    victim.says("shard", count=3)
    victim.signal(signal.SIGKILL)
    assert heir.ends(60) == 0
    back = [fact for fact in hub.facts("LeaseReturned") if fact.reason == "its worker is gone"]
    assert {fact.worker for fact in back} == {"victim"}
    assert set(counted(hub).values()) == {1}
    assert audited(hub) == [(SAMPLES, 0, 0)]


def test_work_of_a_worker_declared_lost_does_not_count(hub, roamers):
    (sleeper,) = roamers("sleeper", workers=2, step_s=0.02)
    (other,) = roamers("other", step_s=0.3)
    held = sleeper.says("shard", count=2)["number"]
    sleeper.signal(signal.SIGSTOP)
    until(lambda: hub.facts("WorkerLost"), what="the loss")
    sleeper.signal(signal.SIGCONT)
    assert [sleeper.ends(60), other.ends(60)] == [0, 0], sleeper.story()
    assert counted(hub)[0, held] == 1
    assert audited(hub) == [(SAMPLES, 0, 0)]


def test_unfinished_shard_is_leased_again(hub, roamers):
    (worker,) = roamers("w", workers=1, leave_at=1)
    assert worker.ends(60) == 0
    (back,) = [fact for fact in hub.facts("LeaseReturned") if not fact.consumed]
    assert back.reason == "left before its end"
    assert audited(hub) == [(SAMPLES, 0, 0)]


def test_error_returns_the_shard(hub, roamers):
    failing, other = roamers("failing", workers=2, fail_at=1, step_s=0.02) + roamers(
        "other", step_s=0.02
    )
    assert failing.ends(60) == 1
    assert other.ends(60) == 0
    assert audited(hub) == [(SAMPLES, 0, 0)]


def test_stop_returns_the_shard(hub, roamers):
    (worker,) = roamers("w", workers=1, epochs=1_000, step_s=0.05)
    worker.says("shard", count=2)
    hub.stop_task("t-1")
    assert worker.ends(60) == 0
    assert audited(hub)[0][1:] == (0, 0)


@pytest.fixture
def strata_up(tmp_path):
    started = CoordinatorProcess(tmp_path, heartbeat_interval_s=0.25, heartbeat_timeout_s=20)
    yield started
    started.close()


def test_leases_survive_a_killed_coordinator(strata_up, trainees, tmp_path):
    """Killed while both workers hold a shard: each is trained once, and none is leased twice."""
    url = f"http://127.0.0.1:{strata_up.http_port}/api"
    body = {"dataset_id": "numbers", "total_samples": SAMPLES, "shard_size": SHARD, "seed": 7}
    httpx.post(f"{url}/datasets", json=body, trust_env=False).raise_for_status()
    asked = {"name": "t", "worker_count": 2, "policy": "continue"}
    httpx.post(f"{url}/tasks", json=asked, trust_env=False).raise_for_status()
    given = {"script": LEARNER, "task": "t-1", "step_s": 0.1}
    crowd = [trainees(strata_up.address, "roam", worker_id=name, **given) for name in "ab"]
    for each in crowd:
        each.says("shard", count=2)
    strata_up.kill()
    strata_up.start()
    assert [each.ends() for each in crowd] == [0, 0], [each.story() for each in crowd]
    own = [row for each in crowd for s in each.said if s["say"] == "trained" for row in s["own"]]
    assert sorted(own) == list(range(SAMPLES))
    strata_up.stop()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        facts = [event.body for event in store.read()]
    kinds = [type(fact).__name__ for fact in facts]
    assert kinds.count("CoordinatorStarted") == 2
    assert "WorkerLost" not in kinds
    leases = [fact for fact in facts if type(fact).__name__ == "LeaseGranted"]
    assert len({fact.shard for fact in leases}) == len(leases)
