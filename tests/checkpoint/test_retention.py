"""Guards retention: keeps the given number, the best, one per number of steps, always the latest,
and any checkpoint that is being read.
"""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.errors import InvalidArgument, Unavailable
from tests.checkpoint.conftest import assert_same


def steps(manager):
    return [info.step for info in manager.all_checkpoints()]


def save_all(manager, *wanted):
    for step in wanted:
        manager.save({"a": np.full(50_000, step)}, step=step)
    manager.wait_pending()


def test_newest_checkpoints_are_kept(storage):
    with CheckpointManager(storage, keep_count=3) as manager:
        save_all(manager, 1, 2, 3, 4, 5)
        assert steps(manager) == [3, 4, 5]
        for info in manager.all_checkpoints():
            assert manager.load(info.checkpoint_id)["a"][0] == info.step
    folders = {name.partition("/")[0] for name in (each.name for each in storage.walk())}
    assert len(folders) == 6, "three manifests, three folders, no spare after close"


def test_five_checkpoints_are_kept_by_default(local):
    save_all(local, *range(8))
    assert steps(local) == [3, 4, 5, 6, 7]


def test_highest_step_is_kept_after_a_rollback(tmp_path):
    with CheckpointManager(tmp_path, keep_count=2) as manager:
        save_all(manager, 100, 200, 110, 120, 130)
        assert steps(manager) == [120, 130, 200]
        save_all(manager, 210)
        assert steps(manager) == [130, 210]


def test_checkpoint_being_read_is_not_deleted(storage):
    with CheckpointManager(storage, keep_count=1) as manager:
        save_all(manager, 1)
        with manager.open() as reader:
            save_all(manager, 2, 3)
            assert steps(manager) == [1, 3]
            assert reader.tensor("a")[0] == 1
        save_all(manager, 4)
        assert steps(manager) == [4]


def test_checkpoint_read_by_another_process_is_not_overwritten(tmp_path):
    with CheckpointManager(tmp_path, keep_count=1) as manager:
        save_all(manager, 1)
        script = (
            "import sys\nfrom strata.checkpoint.manager import CheckpointManager\n"
            "reader = CheckpointManager(sys.argv[1]).open()\n"
            "reader.slice('a', [0], [1])\nprint('reading', flush=True)\nsys.stdin.readline()\n"
            "print(reader.tensor('a').tolist() == [1] * 50_000, flush=True)"
        )
        reader = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout.readline() == "reading\n"
        save_all(manager, 2, 3, 4)
        said, _ = reader.communicate("\n")
        assert said == "True\n"
        save_all(manager, 5)
        assert steps(manager) == [5]


def test_files_of_expired_checkpoints_are_overwritten(tmp_path):
    with CheckpointManager(tmp_path, keep_count=1) as manager:
        inodes = []
        for step in range(5):
            save_all(manager, step)
            part = tmp_path / manager.latest().checkpoint_id / "part-00000.safetensors"
            inodes.append(part.stat().st_ino)
        assert inodes[2:] == [inodes[0], inodes[1], inodes[0]] or len(set(inodes)) < 5
        assert manager.load()["a"][0] == 4
    assert len(os.listdir(tmp_path)) == 2


def test_recycling_can_be_turned_off(tmp_path):
    with CheckpointManager(tmp_path, keep_count=1, recycle=False) as manager:
        save_all(manager, 1, 2, 3)
        assert len(os.listdir(tmp_path)) == 2


def test_smaller_state_in_a_recycled_larger_file_is_read_correctly(tmp_path):
    with CheckpointManager(tmp_path, keep_count=1) as manager:
        for step, size in enumerate([900_000, 800_000, 10, 500_000, 3]):
            manager.save({"a": np.full(size, step)}, step=step)
            manager.wait_pending()
            assert_same(manager.load(), {"a": np.full(size, step)})


def test_manifest_is_deleted_before_the_parts(tmp_path, monkeypatch):
    with CheckpointManager(tmp_path, keep_count=1, recycle=False) as manager:
        save_all(manager, 1)
        order = []
        for name in ("delete", "delete_folder"):
            real = getattr(manager.storage, name)

            def noted(target, real=real, name=name):
                order.append((name, target.rpartition(".")[2]))
                real(target)

            monkeypatch.setattr(manager.storage, name, noted)
        save_all(manager, 2)
        assert order.index(("delete", "json")) < [name for name, _ in order].index("delete_folder")


def test_failed_retention_does_not_fail_the_save(local, monkeypatch, caplog):
    def refuse(name):
        raise Unavailable("not now")

    save_all(local, 1, 2, 3, 4, 5)
    with monkeypatch.context() as patch:
        patch.setattr(local.storage, "delete_folder", refuse)
        save_all(local, 6, 7)
        assert local.latest().step == 7
    assert "could not delete old checkpoints" in caplog.text


@pytest.mark.parametrize("created", [[5, 4, 3, 2, 1], [1, 1, 1, 1, 1]])
def test_retention_does_not_depend_on_the_clock(tmp_path, monkeypatch, created):
    with CheckpointManager(tmp_path, keep_count=2) as manager:
        for moment in created:
            monkeypatch.setattr("strata.checkpoint.write.save_job.time.time_ns", lambda m=moment: m)
            manager.save(b"%d" % moment, step=7)
            manager.wait_pending()
        last = manager.latest()
        assert manager.load() == b"%d" % created[-1]
        assert manager.all_checkpoints()[-1] == last


def test_best_and_periodic_checkpoints_are_kept(tmp_path):
    kept = {"keep_count": 1, "keep_every": 100, "keep_best": "max:accuracy"}
    with CheckpointManager(tmp_path, **kept) as manager:
        for step, accuracy in ((50, 0.9), (105, 0.5), (150, math.nan), (160, 0.6)):
            manager.save(b"state", step=step, metrics={"accuracy": accuracy})
            manager.wait_pending()
        assert steps(manager) == [50, 105, 160]
        assert manager.get_by_step(50).metrics == {"accuracy": 0.9}
        manager.save(b"state", step=200, metrics={"accuracy": 0.95})
        manager.wait_pending()
        assert steps(manager) == [105, 200]


def test_metrics_of_an_earlier_process_count(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(b"state", step=1, metrics={"loss": 0.1})
    with CheckpointManager(tmp_path, keep_count=1, keep_best="loss") as manager:
        for step in (2, 3):
            manager.save(b"state", step=step, metrics={"loss": 0.2})
            manager.wait_pending()
        assert steps(manager) == [1, 3]


@pytest.mark.parametrize("bad", [{"keep_every": -1}, {"keep_best": "max:"}])
def test_invalid_retention_is_refused(tmp_path, bad):
    with pytest.raises(InvalidArgument):
        CheckpointManager(tmp_path, **bad)
