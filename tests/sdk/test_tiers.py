"""Guards checkpoints in two places and on S3: copied in the background, visible, restored from the
nearest that has them undamaged."""

import shutil

import pytest

from strata.checkpoint.manager import CheckpointManager
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.sdk.test_recovering import killed_after_two_commits
from tests.sdk.test_saving import TASK, folder, listed
from tests.storage.server import BUCKET, running

QUICK = {"heartbeat_interval_s": 0.25, "heartbeat_timeout_s": 2.5}


def test_a_checkpoint_is_copied_seen_and_restored_when_the_near_one_is_gone(tmp_path, trainees):
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


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """A real S3 server, named to this process and to the workers as users name one."""
    with running(tmp_path / "s3") as settings:
        monkeypatch.setenv("AWS_ENDPOINT_URL", settings.aws_endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings.aws_access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings.aws_secret_access_key)
        monkeypatch.setenv("AWS_REGION", settings.aws_region or "us-east-1")
        yield settings


def test_workers_save_to_s3_and_restore_from_there(tmp_path, trainees, s3):
    aws = {name: getattr(s3, name) for name in s3.__struct_fields__ if name.startswith("aws_")}
    place = f"s3://{BUCKET}/runs"
    with coordinator(tmp_path / "data", checkpoint_dir=place, **QUICK, **aws) as started:
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
