"""Unreachable storage: workers wait, the task shows it, and training resumes from the newest
checkpoint; no checkpoint is discarded, and no task restarts from step 0."""

import subprocess

import httpx
import pytest

from tests.coordinator.conftest import coordinator
from tests.coordinator.process import STRATA
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.sdk.test_recovering import killed_after_two_commits
from tests.sdk.test_saving import TASK, folder, listed
from tests.storage.server import BUCKET, Server

QUICK = {"heartbeat_interval_s": 0.25, "heartbeat_timeout_s": 2.5}
GIVEN = {"world_size": 2, "step_s": 0.01, "checkpoint_every": 10}


def task_of(hub):
    return hub.state.tasks[TASK]


def given_up(hub):
    """Committed checkpoints that were discarded, without those interrupted by a kill."""
    return [each.id for each in task_of(hub).checkpoints.values() if each.damaged]


def restart(hub, trainees, steps):
    return [trainees(hub.address, "keep", worker_id=name, steps=steps, **GIVEN) for name in "ab"]


def wait_for_report(hub):
    """Wait until both workers have reported their wait; returns the task."""
    until(
        lambda: (
            task_of(hub).storage_wait is not None and len(task_of(hub).storage_wait.workers) == 2
        ),
        what="a report of both workers",
    )
    return httpx.get(f"{hub.running.http_url}/api/tasks/{TASK}").json()


def goes_on(workers, hub, newest):
    """Check that both workers restore the newest checkpoint and train to the end."""
    for worker in workers:
        restored = worker.says("restored")
        assert (restored["source"], restored["applied"]) == ("checkpoint", newest)
        assert worker.says("ended")["exact"]
        assert worker.ends() == 0
    assert task_of(hub).state == "completed"
    assert not given_up(hub)
    assert [fact.ended for fact in hub.facts("StorageReached")][-1]


@pytest.mark.parametrize("away", ["folder", "manifest", "part"])
def test_training_resumes_when_a_folder_is_back(hub, trainees, tmp_path, away):
    newest = killed_after_two_commits(hub, trainees, **GIVEN)
    root = folder(hub, tmp_path)
    found = {
        "folder": [root],
        "manifest": sorted(root.glob("step-*.json")),
        "part": sorted(root.glob("step-*/part-00000.safetensors")),
    }[away]
    moved = [(path, tmp_path / f"away-{number}") for number, path in enumerate(found)]
    for path, elsewhere in moved:
        path.rename(elsewhere)
    workers = restart(hub, trainees, newest + 5)
    shown = wait_for_report(hub)
    assert shown["status"] == "recovering"
    said = "storage unreachable: " if away == "folder" else "checkpoint step-"
    assert shown["reason"].startswith(said)
    assert ("strata checkpoints rm step-" in shown["reason"]) == (away != "folder")
    notices = httpx.get(f"{hub.running.http_url}/api/dashboard").json()["attention"]
    assert any("for storage" in notice["text"] for notice in notices)
    for path, elsewhere in moved:
        elsewhere.rename(path)
    goes_on(workers, hub, newest)


def test_training_resumes_from_the_previous_checkpoint_when_a_user_deletes_one(
    hub, trainees, tmp_path
):
    newest = killed_after_two_commits(hub, trainees, **GIVEN)
    chosen = max(path.stem for path in folder(hub, tmp_path).glob("step-*.json"))
    for part in folder(hub, tmp_path).glob(f"{chosen}/part-00000.safetensors"):
        part.unlink()
    workers = restart(hub, trainees, newest + 5)
    reason = wait_for_report(hub)["reason"]
    command = reason[reason.index("strata checkpoints") :].split()
    subprocess.run([*STRATA, *command[1:], "--url", hub.running.http_url], check=True, timeout=60)
    for worker in workers:
        restored = worker.says("restored")
        assert (restored["source"], restored["applied"]) == ("checkpoint", newest - 10)
        assert worker.says("ended")["exact"]
        assert worker.ends() == 0
    assert task_of(hub).state == "completed"


def test_training_resumes_when_an_s3_server_is_restarted(tmp_path, trainees, monkeypatch):
    server = Server(tmp_path / "s3")
    try:
        aws = {
            name: getattr(server.settings, name)
            for name in server.settings.__struct_fields__
            if name.startswith("aws_")
        }
        for name, value in aws.items():
            monkeypatch.setenv(name.upper(), str(value))
        place = {"checkpoint_dir": f"s3://{BUCKET}/runs", **QUICK, **aws}
        with coordinator(tmp_path / "data", **place) as started:
            hub = Hub(started)
            newest = killed_after_two_commits(hub, trainees, **GIVEN)
            server.stop()
            workers = restart(hub, trainees, newest + 5)
            assert "s3://" in wait_for_report(hub)["reason"]
            server.start()
            goes_on(workers, hub, newest)
    finally:
        server.stop()


@pytest.mark.parametrize("fault", ["denied", "expired", "missing"])
def test_training_resumes_when_s3_answers_again(tmp_path, trainees, s3, fault):
    place = {"checkpoint_dir": f"s3://{BUCKET}/runs", **QUICK, **s3.aws}
    with coordinator(tmp_path / "data", **place) as started:
        hub = Hub(started)
        newest = killed_after_two_commits(hub, trainees, **GIVEN)
        s3.faults.always(fault, "GET")
        workers = restart(hub, trainees, newest + 5)
        wait_for_report(hub)
        s3.faults.always("")
        goes_on(workers, hub, newest)


def test_task_fails_after_the_storage_timeout_and_keeps_its_checkpoints(tmp_path, trainees):
    with coordinator(tmp_path / "data", storage_timeout_s=1.0, **QUICK) as started:
        hub = Hub(started)
        newest = killed_after_two_commits(hub, trainees, **GIVEN)
        root = folder(hub, tmp_path)
        root.rename(tmp_path / "away")
        workers = restart(hub, trainees, newest + 5)
        for worker in workers:
            worker.ends()
            assert not [each for each in worker.said if each["say"] == "restored"]
        until(lambda: task_of(hub).ended)
        assert (task_of(hub).state, task_of(hub).exit_code) == ("failed", 1)
        assert "storage was unreachable for 1 s" in task_of(hub).reason
        assert not given_up(hub)
        assert not root.exists(), "nothing was written where the storage should be"


def test_task_fails_when_every_checkpoint_is_damaged(hub, trainees, tmp_path):
    newest = killed_after_two_commits(hub, trainees, size=40_000, **GIVEN)
    for part in folder(hub, tmp_path).glob("step-*/part-00001.safetensors"):
        image = bytearray(part.read_bytes())
        image[5_000] ^= 1  # of a tensor that every rank needs
        part.write_bytes(image)
    for worker in [
        trainees(hub.address, "keep", worker_id=name, steps=newest + 5, size=40_000, **GIVEN)
        for name in "ab"
    ]:
        worker.ends()
        assert not [each for each in worker.said if each["say"] == "restored"]
    until(lambda: task_of(hub).ended)
    damaged = [each["id"] for each in listed(hub) if each["status"] == "failed"]
    assert task_of(hub).state == "failed"
    assert len(damaged) >= 2
    assert all(f"{each} (damaged)" in task_of(hub).reason for each in damaged)
