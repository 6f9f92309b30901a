"""Guards what survives `kill -9` at any moment: the newest committed checkpoint, and nothing half.

Savers are real processes, killed at moments spread over claiming, writing, committing, expiring and
recycling; each next one goes on in the same folder."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from strata.checkpoint.catalog import is_id
from strata.checkpoint.claims import own_claim
from strata.checkpoint.manager import CheckpointManager
from tests.checkpoint import saver
from tests.checkpoint.conftest import assert_same


def start(folder, keep_count=2):
    return subprocess.Popen(
        [sys.executable, saver.__file__, str(folder), str(keep_count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(process) -> list[int]:
    """The steps that it had said were committed."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return [int(line) for line in said.split()]


def check(folder, committed: int) -> int:
    """Whatever is listed is whole, the newest is at least what was said, and a sweep tidies up."""
    manager = CheckpointManager(folder, keep_count=2)
    found = manager.all_checkpoints()
    for info in found:
        assert_same(manager.load(info.checkpoint_id), saver.state_at(info.step))
    newest = found[-1].step if found else 0
    assert newest >= committed
    manager.sweep()
    left = {name.split(".")[0] for name in os.listdir(folder)} if folder.exists() else set()
    assert left == {info.checkpoint_id for info in manager.all_checkpoints()}
    return newest


def kills(folder, rounds: int, seed: int) -> int:
    moments = random.Random(seed)
    committed = newest = 0
    for _ in range(rounds):
        process = start(folder)
        first = process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.15))
        said = [int(first), *kill(process)] if first else kill(process)
        committed = max([committed, *said])
        newest = check(folder, committed)
    return newest


def test_a_killed_saver_leaves_the_newest_committed(tmp_path):
    assert kills(tmp_path / "c", rounds=4, seed=1) > 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills_lose_nothing(tmp_path):
    assert kills(tmp_path / "c", rounds=40, seed=2) > 40


STOPS = [
    "strata.checkpoint.saving.put_claim",
    "strata.checkpoint.saving.write_part",
    "strata.checkpoint.saving.commit",
    "strata.checkpoint.retention.Keeper.retain",
    "strata.storage.local.os.replace",
    "strata.storage.local.os.rename",
    "strata.storage.local.os.link",
    "strata.storage.local.sync_folder",
    "strata.storage.blocks.os.fsync",
    "strata.storage.blocks.os.ftruncate",
]
DIES = """
import importlib, os, sys
from strata.checkpoint.manager import CheckpointManager
sys.path.insert(0, {root!r})
from tests.checkpoint.saver import state_at
manager = CheckpointManager({folder!r}, keep_count=2)
for step in (1, 2, 3, 4):
    manager.save(state_at(step), step=step)
    manager.wait_pending()
owner, name, module = None, {stop!r}, None
parts = name.split(".")
for cut in range(len(parts) - 1, 0, -1):
    try:
        owner = importlib.import_module(".".join(parts[:cut]))
        break
    except ImportError:
        continue
for part in parts[cut:-1]:
    owner = getattr(owner, part)
real, left = getattr(owner, parts[-1]), [{count}]
def dying(*arguments, **options):
    left[0] -= 1
    if left[0] < 0 and {before}:
        os.kill(os.getpid(), 9)
    result = real(*arguments, **options)
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    return result
setattr(owner, parts[-1], dying)
manager.save(state_at(5), step=5)
manager.wait_pending()
"""


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("stop", STOPS)
def test_death_at_each_step_of_a_save(tmp_path, stop, before):
    folder = tmp_path / "c"
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    for count in (0, 1):
        script = DIES.format(root=root, folder=str(folder), stop=stop, count=count, before=before)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        assert check(folder, committed=4) in (4, 5)
        for each in folder.iterdir():
            if each.is_dir():
                for file in each.iterdir():
                    file.unlink()
                each.rmdir()
            else:
                each.unlink()


def test_two_jobs_with_one_path_do_not_destroy_each_others_saves(tmp_path):
    folder = tmp_path / "shared"
    jobs = [start(folder, keep_count=50) for _ in range(2)]
    stop = threading.Event()
    swept = []

    def sweep():
        manager = CheckpointManager(folder)
        while not stop.is_set():
            swept.extend(manager.sweep())

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    for job in jobs:
        for _ in range(4):
            assert job.stdout.readline()
    stop.set()
    sweeper.join()
    assert swept == []
    for job in jobs:
        kill(job)
    check(folder, committed=7)


def claim_of(folder, checkpoint_id, **changes):
    """A half-written checkpoint with a claim like ours but for the changes."""
    claim = own_claim()
    fields = {name: getattr(claim, name) for name in claim.__struct_fields__} | changes
    (folder / checkpoint_id).mkdir(parents=True)
    (folder / checkpoint_id / "part-00000.safetensors").write_bytes(b"half")
    (folder / f"{checkpoint_id}.claim").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"started": "1"}, True),
        ({"boot": "another boot", "pid": 2**22 + 1}, False),
        ({"namespace": "pid:[1]", "pid": 2**22 + 1}, False),
        ({"host": "elsewhere", "pid": 2**22 + 1}, False),
    ],
)
def test_only_what_is_known_to_be_dead_is_swept(tmp_path, changes, goes):
    claim_of(tmp_path, "step-00000001-a", **changes)
    manager = CheckpointManager(tmp_path)
    assert manager.sweep() == (["step-00000001-a"] if goes else [])
    assert bool(os.listdir(tmp_path)) is not goes


def test_what_cannot_be_known_is_swept_by_age(tmp_path):
    claim_of(tmp_path, "step-00000001-a", host="elsewhere")
    manager = CheckpointManager(tmp_path)
    old = time.time() - 7 * 3600
    os.utime(tmp_path / "step-00000001-a.claim", (old, old))
    assert manager.sweep() == ["step-00000001-a"]


def test_a_sweep_touches_nothing_that_is_not_a_checkpoint(tmp_path):
    for name in ("data", "step-1", "step-00000001-b", "notes-00000001-a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    (tmp_path / "step-00000002-c.txt").write_text("mine")
    before = sorted(os.listdir(tmp_path))
    assert is_id("step-00000001-b")
    assert CheckpointManager(tmp_path).sweep() == []
    assert sorted(os.listdir(tmp_path)) == before


def test_the_first_save_of_a_fresh_process_sweeps(tmp_path):
    claim_of(tmp_path, "step-00000001-a", pid=2**22 + 1)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": np.zeros(3)}, step=2)
        manager.wait_pending()
        assert not (tmp_path / "step-00000001-a").exists()
        assert manager.latest().step == 2


def test_a_claim_that_outlived_its_commit_costs_nothing(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        saved = manager.save(b"x", step=1)
        manager.wait_pending()
        dead = json.dumps({**json.loads(claim_json()), "pid": 2**22 + 1})
        (tmp_path / f"{saved}.claim").write_text(dead)
        assert manager.sweep() == []
        assert not (tmp_path / f"{saved}.claim").exists()
        assert manager.load() == b"x"


def claim_json() -> str:
    claim = own_claim()
    return json.dumps({name: getattr(claim, name) for name in claim.__struct_fields__})
