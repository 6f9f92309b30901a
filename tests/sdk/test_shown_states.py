"""The states that a user sees while a run saves and recovers on slow storage."""

import httpx

from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.sdk.test_recovering import killed_after_two_commits
from tests.storage.server import BUCKET

QUICK = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 5.0}
GIVEN = {"world_size": 2, "step_s": 0.02, "checkpoint_every": 10, "size": 20_000}


def test_worker_and_checkpoint_show_what_storage_is_doing(tmp_path, trainees, s3):
    def shown(path, field="status"):
        return {row[field] for row in httpx.get(f"{hub.running.http_url}/api/{path}").json()}

    place = f"s3://{BUCKET}/runs"
    with coordinator(tmp_path / "data", checkpoint_dir=place, **QUICK, **s3.aws) as started:
        hub = Hub(started)
        newest = killed_after_two_commits(hub, trainees, **GIVEN)
        assert shown("workers") == {"failed"}
        s3.faults.always("slow_down", "GET", "part-")
        again = [
            trainees(hub.address, "keep", worker_id=name, steps=10**6, **GIVEN) for name in "ab"
        ]
        until(lambda: shown("workers") == {"recovering"}, what="workers that read a checkpoint")
        s3.faults.always("")
        assert [worker.says("restored")["applied"] for worker in again] == [newest, newest]
        until(lambda: "active" in shown("workers"), what="workers that train")
        s3.faults.always("slow_down", "PUT", "part-")
        until(lambda: "in_progress" in shown("checkpoints"), what="a checkpoint in progress")
        (saving,) = [
            row["id"]
            for row in httpx.get(f"{hub.running.http_url}/api/checkpoints").json()
            if row["status"] == "in_progress"
        ]
        s3.faults.always("")
        until(lambda: status_of(hub, saving) == "completed", what="its end")
        until(lambda: "checkpointing" in shown("workers"), what="a worker that saves")


def status_of(hub, checkpoint):
    rows = httpx.get(f"{hub.running.http_url}/api/checkpoints").json()
    return next(row["status"] for row in rows if row["id"] == checkpoint)
