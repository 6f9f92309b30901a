"""Saving to a faulty S3 server: transient faults are retried, a permanent fault fails checkpoints
with the reason, the run continues, and the previous checkpoint stays the latest."""

from contextlib import contextmanager
from functools import partialmethod

import httpx
import pytest

from strata.config import Settings
from strata.storage.s3 import S3Storage
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.sdk.test_saving import TASK, listed, states
from tests.storage.server import BUCKET

RETRIES = {"max_retries": 2, "retry_timeout_s": 8.0, "request_timeout_s": 3.0}
PASSING = ["internal", "slow_down", "throttled", "reset", "truncate"]
UPLOADING = {f"CheckpointUpload{phase}" for phase in ("Started", "Progress", "Completed")}
LASTING = {
    "internal": "500 InternalError",
    "slow_down": "503 SlowDown",
    "throttled": "429 TooManyRequests",
    "hang": "no response",
    "denied": "s3:PutObject",
    "expired": "renew AWS_SESSION_TOKEN",
}


@pytest.fixture
def training(tmp_path, trainees, s3, monkeypatch):
    """Train with two workers that save to S3; checks at the end that each step counted once and
    that the saved state is the trained one."""
    monkeypatch.setattr(S3Storage, "__init__", partialmethod(S3Storage.__init__, **RETRIES))
    monkeypatch.setattr("strata.coordinator.checkpoint_files.DELAYS_S", (0.1, 0.1))

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
            assert {type(fact).__name__ for fact in hub.recorded_facts("a")} >= UPLOADING

    return train


def committed(hub):
    return [name for name, state in states(hub).items() if state == "committed"]


def failed(hub):
    return [c for c in listed(hub) if c["status"] == "failed"]


def last_saved(workers):
    (step,) = {[s for s in worker.said if s["say"] == "saved"][-1]["step"] for worker in workers}
    return step


def met(s3, fault):
    """The number of requests that got a fault."""
    return [each for _, _, each in s3.faults.seen].count(fault)


def commits_again(hub):
    latest = committed(hub)[-1]
    until(lambda: committed(hub)[-1] != latest, what="another checkpoint")


def test_transient_fault_fails_no_checkpoint(training, s3):
    with training() as hub:
        for fault in PASSING:
            s3.faults.first(2, fault)
            until(lambda fault=fault: met(s3, fault) == 2, what=f"requests that meet {fault}")
            commits_again(hub)
        assert failed(hub) == []


def test_permanent_fault_fails_checkpoints_but_not_the_run(training, s3):
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


def test_checkpoint_without_a_manifest_is_not_committed(training, s3):
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
