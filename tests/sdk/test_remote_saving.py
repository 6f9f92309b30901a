"""Guards saving to S3 through what an S3 server does wrong: a passing fault is got over, a lasting
one fails checkpoints with its reason, the run goes on, and the one before stays the latest."""

from contextlib import contextmanager
from functools import partialmethod

import httpx
import pytest

from strata.config import Settings
from strata.storage.s3 import S3Storage
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.sdk.test_saving import TASK, listed, states, worker_facts
from tests.storage.server import BUCKET

RETRIES = {"max_retries": 3, "retry_timeout_s": 10.0, "request_timeout_s": 5.0}
PASSING = ["internal", "slow_down", "throttled", "reset", "truncate"]
UPLOADING = {f"CheckpointUpload{phase}" for phase in ("Started", "Progress", "Completed")}
LASTING = {
    "internal": "500 InternalError",
    "slow_down": "503 SlowDown",
    "throttled": "429 TooManyRequests",
    "hang": "nobody answers there",
    "denied": "s3:PutObject",
    "expired": "renew AWS_SESSION_TOKEN",
}


@pytest.fixture
def training(tmp_path, trainees, s3, monkeypatch):
    """Two workers that save to S3 all the time; at the end each step has counted once, and what is
    saved is what was trained."""
    monkeypatch.setattr(S3Storage, "__init__", partialmethod(S3Storage.__init__, **RETRIES))
    monkeypatch.setattr("strata.coordinator.sealing.DELAYS_S", (0.1, 0.1))

    @contextmanager
    def train(**given):
        place = {"checkpoint_dir": f"s3://{BUCKET}/runs", "heartbeat_interval_s": 0.25}
        given = {"world_size": 2, "steps": 10**6, "checkpoint_every": 20, **given}
        with coordinator(tmp_path / "data", **place, **s3.aws) as started:
            hub = Hub(started)
            workers = [
                trainees(hub.address, "keep_impatiently", retries=RETRIES, worker_id=name, **given)
                for name in "ab"
            ]
            until(lambda: committed(hub), what="a first checkpoint")
            yield hub
            s3.faults.always("")
            hub.stop_task(TASK)
            assert [worker.ends() for worker in workers] == [0, 0]
            assert all(worker.says("ended")["exact"] for worker in workers)
            newest = listed(hub)[0]
            assert (newest["status"], newest["step"]) == ("completed", last_saved(workers))
            url = f"{hub.running.http_url}/api/checkpoints/{newest['id']}/verify"
            assert httpx.post(url, timeout=60).json()["ok"]
            assert {type(fact).__name__ for fact in worker_facts(hub, "a")} >= UPLOADING

    return train


def committed(hub):
    return [name for name, state in states(hub).items() if state == "committed"]


def failed(hub):
    return [c for c in listed(hub) if c["status"] == "failed"]


def last_saved(workers):
    (step,) = {[s for s in worker.said if s["say"] == "saved"][-1]["step"] for worker in workers}
    return step


def met(s3, fault):
    """How many requests have met a fault."""
    return [each for _, _, each in s3.faults.seen].count(fault)


def commits_again(hub):
    latest = committed(hub)[-1]
    until(lambda: committed(hub)[-1] != latest, what="another checkpoint")


def test_a_passing_fault_costs_time_and_no_checkpoint(training, s3):
    with training() as hub:
        for fault in PASSING:
            s3.faults.first(2, fault)
            until(lambda fault=fault: met(s3, fault) == 2, what=f"requests that meet {fault}")
            commits_again(hub)
        assert failed(hub) == []


def test_a_lasting_fault_fails_checkpoints_and_not_the_run(training, s3):
    with training() as hub:
        for fault, reason in LASTING.items():
            count, step = len(failed(hub)), hub.state.tasks[TASK].committed
            s3.faults.always(fault, "PUT", "part-")
            until(lambda count=count: len(failed(hub)) > count, what=f"a failure by {fault}")
            assert reason in failed(hub)[0]["reason"]
            latest = committed(hub)[-1]
            until(lambda step=step: hub.state.tasks[TASK].committed > step + 20)
            assert committed(hub)[-1] == latest, "the one before stays the latest"
            s3.faults.always("")
            commits_again(hub)


def test_a_manifest_that_cannot_be_written_is_no_checkpoint(training, s3):
    with training() as hub:
        s3.faults.plan = lambda method, path: (
            "internal" if method == "PUT" and "part-" not in path else None
        )
        until(lambda: failed(hub))
        assert "500 InternalError" in failed(hub)[0]["reason"]
        s3.faults.always("")
        commits_again(hub)
        gone = failed(hub)[-1]["id"]
        storage = S3Storage(BUCKET, f"runs/{hub.state.cluster}/{TASK}", Settings(**s3.aws))
        until(lambda: storage.walk(gone) == [], what="the end of its parts")


def test_credentials_that_expire_in_mid_upload_fail_that_checkpoint(training, s3):
    with training(size=3_000_000, checkpoint_every=40) as hub:
        s3.faults.always("expired", "PUT", "partNumber=2")
        until(lambda: failed(hub))
        assert "renew AWS_SESSION_TOKEN" in failed(hub)[0]["reason"]
        s3.faults.always("")
        commits_again(hub)
