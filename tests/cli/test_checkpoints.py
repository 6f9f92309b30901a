"""Guards the terminal's actions on one checkpoint, with files that a real manager saved."""

import subprocess
import sys

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager


def strata(*arguments):
    command = [sys.executable, "-c", "from strata.cli import main; main()", "checkpoints"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture
def saved(tmp_path):
    with CheckpointManager(tmp_path / "from") as manager:
        manager.save({"w": np.arange(300_000.0)}, step=7, checkpoint_id="step-00000007-a")
    return tmp_path / "from" / "step-00000007-a"


def test_verify_reports_an_undamaged_checkpoint(saved):
    done = strata("verify", str(saved))
    assert done.returncode == 0, done.stderr
    assert " verified" in done.stdout


def test_verify_names_the_part_that_is_damaged(saved):
    part = saved / "part-00000.safetensors"
    image = bytearray(part.read_bytes())
    image[-1] ^= 1
    part.write_bytes(image)
    done = strata("verify", str(saved))
    assert done.returncode == 8
    assert "part-00000.safetensors is damaged" in done.stderr


def test_pull_copies_what_can_be_loaded_and_never_over_another(saved, tmp_path):
    goal = tmp_path / "to"
    assert strata("pull", str(saved), str(goal)).returncode == 0
    with CheckpointManager(goal) as manager:
        assert (manager.load()["w"] == np.arange(300_000.0)).all()
    again = strata("pull", str(saved), str(goal))
    assert again.returncode == 7
    assert "already has step-00000007-a" in again.stderr


def test_missing_checkpoint_is_an_error(tmp_path):
    assert "there is no checkpoint" in strata("verify", str(tmp_path / "step-00000001-a")).stderr
    assert "needs a checkpoint" in strata("rm").stderr
    assert "needs a task" in strata("save").stderr
