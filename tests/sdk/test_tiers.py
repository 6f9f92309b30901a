"""Checkpoints with a second storage, also S3: copied in the background, listed, and restored from
the nearest undamaged copy."""

import shutil
import subprocess
import sys

import httpx

from strata.checkpoint.manager import CheckpointManager
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import clean_environment, until
from tests.sdk.test_recovering import killed_after_two_commits
from tests.sdk.test_saving import TASK, folder, listed, states
from tests.storage.server import BUCKET

QUICK = {"heartbeat_interval_s": 0.25, "heartbeat_timeout_s": 2.5}


def test_checkpoint_is_restored_from_its_copy_if_the_first_is_gone(tmp_path, trainees):
    far = tmp_path / "far"
    with coordinator(tmp_path / "data", checkpoint_upload=str(far), **QUICK) as started:
        hub = Hub(started)
        given = {"world_size": 2, "step_s": 0.02, "checkpoint_every": 10}
        newest = killed_after_two_commits(hub, trainees, **given)
        until(lambda: all(len(c["tiers"]) == 2 for c in listed(hub) if c["status"] == "completed"))
        assert str(far) in listed(hub)[0]["tiers"][1]
        with CheckpointManager(far / hub.state.cluster / TASK) as manager:
            assert manager.load()["applied"] == newest
        shutil.rmtree(folder(hub, tmp_path))
        again = [
            trainees(hub.address, "keep", worker_id=name, steps=newest + 5, **given)
            for name in "ab"
        ]
        for worker in again:
            restored = worker.says("restored")
            assert (restored["source"], restored["applied"]) == ("checkpoint", newest)
            assert worker.says("ended")["exact"]


def test_workers_save_to_s3_and_restore_from_there(tmp_path, trainees, s3):
    place = f"s3://{BUCKET}/runs"
    with coordinator(tmp_path / "data", checkpoint_dir=place, **QUICK, **s3.aws) as started:
        hub = Hub(started)
        given = {"world_size": 2, "step_s": 0.02, "checkpoint_every": 10, "size": 20_000}
        newest = killed_after_two_commits(hub, trainees, **given)
        assert listed(hub)[0]["path"].startswith(place)
        again = [
            trainees(hub.address, "keep", worker_id=name, steps=newest + 5, **given)
            for name in "ab"
        ]
        for worker in again:
            assert worker.says("restored")["applied"] == newest
            assert worker.says("ended")["exact"]


def parts_fetched(s3, since):
    """The parts that were read from S3 after the first `since` requests."""
    asked = [path for method, path, _ in s3.faults.seen[since:] if method == "GET"]
    return [path for path in asked if "part-" in path]


def terminal(hub, *arguments):
    """The output of `strata checkpoints` on a wide screen."""
    command = [sys.executable, "-c", "from strata.cli import main; main()", "checkpoints"]
    done = subprocess.run(
        [*command, *arguments, "--url", hub.running.http_url],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(COLUMNS="160"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_s3_copy_is_listed_and_used_only_if_the_first_is_lost(tmp_path, trainees, s3):
    far = f"s3://{BUCKET}/far"
    with coordinator(tmp_path / "data", checkpoint_upload=far, **QUICK, **s3.aws) as started:
        hub = Hub(started)
        given = {"world_size": 2, "step_s": 0.02, "checkpoint_every": 10, "size": 50_000}
        newest = killed_after_two_commits(hub, trainees, **given)
        until(lambda: all(len(c["tiers"]) == 2 for c in listed(hub) if c["status"] == "completed"))
        checkpoint = listed(hub)[0]["id"]
        near, copy = listed(hub)[0]["tiers"]
        assert near == str(folder(hub, tmp_path) / checkpoint)
        assert copy.startswith(far)
        assert copy.endswith(checkpoint)
        assert "disk + s3" in terminal(hub, "ls")
        assert copy in terminal(hub, "show", checkpoint)

        requests = len(s3.faults.seen)
        again = restored_and_killed(hub, trainees, newest, **given)
        assert again == newest
        assert parts_fetched(s3, requests) == [], "the nearest is taken"

        shutil.rmtree(folder(hub, tmp_path))
        verified = httpx.post(f"{hub.running.http_url}/api/checkpoints/{checkpoint}/verify").json()
        assert (verified["ok"], "does not exist" in verified["reason"]) == (True, True)
        pulled = terminal(hub, "pull", checkpoint, str(tmp_path / "pulled"))
        assert "trying the next place" in pulled
        with CheckpointManager(tmp_path / "pulled") as manager:
            assert manager.load()["applied"] == newest
        requests = len(s3.faults.seen)
        for worker in [
            trainees(hub.address, "keep", worker_id=name, steps=newest + 15, **given)
            for name in "ab"
        ]:
            assert worker.says("restored")["applied"] == newest
            assert worker.says("ended")["exact"]
        assert parts_fetched(s3, requests), "the near one was lost"


def restored_and_killed(hub, trainees, newest, **given):
    """Restore with two workers and kill them before they save; returns the restored step."""
    given = {**given, "checkpoint_every": 10**6, "steps": 10**6}
    workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
    steps = {worker.says("restored")["applied"] for worker in workers}
    for worker in workers:
        worker.kill()
    until(lambda: not hub.state.tasks[TASK].members)
    (step,) = steps
    return step


def test_failing_copy_storage_blocks_nothing_and_gets_the_copy_later(
    tmp_path, trainees, s3, monkeypatch
):
    monkeypatch.setattr("strata.coordinator.checkpoint_files.DELAYS_S", (0.1,))
    far = f"s3://{BUCKET}/late"
    s3.faults.always("denied", "PUT")
    with coordinator(tmp_path / "data", checkpoint_upload=far, **QUICK, **s3.aws) as started:
        hub = Hub(started)
        given = {"step_s": 0.01, "checkpoint_every": 10, "steps": 10**6}
        trainees(hub.address, "keep", worker_id="a", **given)
        until(lambda: list(states(hub).values()).count("committed") >= 2)
        assert all(len(c["tiers"]) == 1 for c in listed(hub) if c["status"] == "completed")
        s3.faults.always("")
        until(lambda: any(len(c["tiers"]) == 2 for c in listed(hub)), what="a copy")
        assert "failed" not in states(hub).values()
