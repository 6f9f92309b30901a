"""Guards what survives `kill -9` at any moment: the newest committed checkpoint, and nothing
partial.

Savers are real processes, killed at moments spread over claiming, writing, committing, expiring and
recycling; each next one continues in the same folder.
"""

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
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.write.claims import own_claim
from tests.checkpoint import saver
from tests.checkpoint.conftest import assert_same


def start(folder, keep_count=2):
    return subprocess.Popen(
        [sys.executable, saver.__file__, str(folder), str(keep_count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(process) -> list[int]:
    """Kill the saver; return the steps that it printed as committed."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return [int(line) for line in said.split()]


def check(folder, committed: int) -> int:
    """Check that every listed checkpoint is whole, that the newest is at least the printed one, and
    that a sweep leaves nothing else.
    """
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


def test_killed_saver_leaves_the_newest_committed_checkpoint(tmp_path):
    assert kills(tmp_path / "c", rounds=4, seed=1) > 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repeated_kills_lose_no_committed_checkpoint(tmp_path):
    assert kills(tmp_path / "c", rounds=40, seed=2) > 40


STOPS = [
    "strata.checkpoint.write.save_job.put_claim",
    "strata.checkpoint.write.save_job.write_part",
    "strata.checkpoint.write.save_job.commit",
    "strata.checkpoint.cleanup.CheckpointCleaner.retain",
    "strata.storage.folder.os.replace",
    "strata.storage.folder.os.rename",
    "strata.storage.folder.os.link",
    "strata.storage.folder.sync_folder",
    "strata.storage.direct_io.os.fsync",
    "strata.storage.direct_io.os.ftruncate",
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
def test_saver_killed_at_each_step_of_a_save_leaves_no_partial_checkpoint(tmp_path, stop, before):
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


def test_two_jobs_with_one_path_keep_each_others_saves(tmp_path):
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
    """A half-written checkpoint with a claim of this process, changed as given."""
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
def test_sweep_deletes_only_saves_of_dead_writers(tmp_path, changes, goes):
    claim_of(tmp_path, "step-00000001-a", **changes)
    manager = CheckpointManager(tmp_path)
    assert manager.sweep() == (["step-00000001-a"] if goes else [])
    assert bool(os.listdir(tmp_path)) is not goes


def test_sweep_deletes_saves_of_unknown_writers_by_age(tmp_path):
    claim_of(tmp_path, "step-00000001-a", host="elsewhere")
    manager = CheckpointManager(tmp_path)
    old = time.time() - 7 * 3600
    os.utime(tmp_path / "step-00000001-a.claim", (old, old))
    assert manager.sweep() == ["step-00000001-a"]


def test_sweep_touches_only_checkpoints(tmp_path):
    for name in ("data", "step-1", "step-00000001-b", "notes-00000001-a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    (tmp_path / "step-00000002-c.txt").write_text("mine")
    before = sorted(os.listdir(tmp_path))
    assert is_id("step-00000001-b")
    assert CheckpointManager(tmp_path).sweep() == []
    assert sorted(os.listdir(tmp_path)) == before


def test_first_save_of_a_process_sweeps(tmp_path):
    claim_of(tmp_path, "step-00000001-a", pid=2**22 + 1)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": np.zeros(3)}, step=2)
        manager.wait_pending()
        assert not (tmp_path / "step-00000001-a").exists()
        assert manager.latest().step == 2


def test_claim_left_after_commit_is_harmless(tmp_path):
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
