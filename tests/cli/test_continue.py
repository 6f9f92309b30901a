"""`strata run` continues runs that were stopped or killed, with other parameters if given."""

import re
import signal
import subprocess

import pytest

from strata.cli.run import resuming
from strata.cli.support.exit_codes import NOT_FOUND, REFUSED
from tests.agent.harness import worker_pids
from tests.coordinator.process import STRATA
from tests.sdk.harness import clean_environment, until

SCRIPT = """
import time
import numpy as np
import strata

with strata.join(checkpoint_every=5) as run:
    seen = run.restore({"seen": np.zeros(64)})["seen"]
    data = strata.open_arrays({"x": np.arange(64)}, name="numbers")
    for epoch in run.epochs(run.config.get("epochs", 6)):
        for batch in run.batches(data, global_batch=8):
            with run.step() as step:
                counted = np.bincount(batch["x"], minlength=64).astype(float)
                seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
            time.sleep(0.05)
    if run.rank == 0:
        print("every sample was seen", seen.min(), "to", seen.max(), "times", flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    return tmp_path


@pytest.fixture
def strata(folder):
    """Start `strata` in the folder: `strata("run", "train.py")`."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [*STRATA, *arguments],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def steps_of(folder):
    """The newest committed checkpoint's step of any run in the folder; 0 without one."""
    names = [each.name for each in folder.glob("**/checkpoints/**/step-*.json")]
    return max((int(name.split("-")[1]) for name in names), default=0)


def interrupted(folder, strata, *arguments, how=signal.SIGINT):
    """Run until a checkpoint is saved, then interrupt; returns what was printed."""
    process = strata("run", "train.py", *arguments)
    until(lambda: steps_of(folder) >= 10, what="a checkpoint")
    process.send_signal(how)
    return process.communicate(timeout=60)[0]


def test_interrupted_run_prints_the_command_that_continues_it(folder, strata):
    printed = interrupted(folder, strata, "--workers", "2")
    (command,) = re.findall(r"continue: +strata (.*)", printed)
    assert command.startswith("run train.py --workers 2 --resume=")
    assert "stopped by Ctrl-C" in printed
    again = strata(*command.split()).communicate(timeout=90)[0]
    assert re.search(r"task +train-1 continues from step \d+", again), again
    assert "every sample was seen 6.0 to 6.0 times" in again
    assert "audit proven" in again


def test_workers_of_a_killed_run_end_by_themselves(folder, strata):
    process = strata("run", "train.py", "--workers", "2", "--config", "epochs=100000")
    until(lambda: len(worker_pids(folder)) == 2 and steps_of(folder) >= 5, what="training")
    process.kill()
    process.wait()
    until(lambda: not worker_pids(folder), what="the end of the workers")


@pytest.mark.parametrize(
    ("words", "run", "command"),
    [
        ("run t.py -n 2", "a", "run t.py -n 2 --resume=a"),
        ("run t.py --resume", "a", "run t.py --resume=a"),
        ("run t.py --resume old -n 2", "a", "run t.py -n 2 --resume=a"),
        ("run --resume t.py", "a", "run t.py --resume=a"),
        ("run t.py --resume=old --fresh -- --resume x", "a", "run t.py --resume=a -- --resume x"),
        ("run t.py --data-dir d --resume", "", "run t.py --data-dir d"),
    ],
)
def test_command_that_continues_names_the_run_once(words, run, command):
    assert resuming(words.split(), run) == command.split()


def test_run_continues_with_other_workers_and_config(folder, strata):
    interrupted(folder, strata, "--workers", "1")
    resumed = strata("run", "train.py", "--resume", "--workers", "2", "--config", "epochs=7")
    again = resumed.communicate(timeout=90)[0]
    assert re.search(r"changed +worker_count +1 → 2", again), again
    assert re.search(r"changed +config\.epochs +– → 7", again)
    assert "every sample was seen 7.0 to 7.0 times" in again
    assert "audit proven" in again


def test_plain_run_says_that_an_unfinished_one_can_be_resumed(folder, strata):
    interrupted(folder, strata, how=signal.SIGKILL)
    process = strata("run", "train.py", "--config", "epochs=1")
    printed = process.communicate(timeout=90)[0]
    assert re.search(r"train-1 was killed.*; --resume continues it", printed), printed
    assert "every sample was seen 1.0 to 1.0 times" in printed


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_same_command_with_a_data_dir_continues(folder, strata, how):
    command = ["--data-dir", "data", "--workers", "2"]
    interrupted(folder, strata, *command, how=how)
    again = strata("run", "train.py", *command).communicate(timeout=90)[0]
    assert re.search(r"task +train-1 continues from step \d+", again), again
    assert "every sample was seen 6.0 to 6.0 times" in again
    assert "audit proven" in again


def test_fresh_run_in_the_same_data_dir_starts_at_step_0(folder, strata):
    interrupted(folder, strata, "--data-dir", "data")
    arguments = ["--data-dir", "data", "--fresh", "--config", "epochs=1"]
    again = strata("run", "train.py", *arguments).communicate(timeout=90)[0]
    assert re.search(r"task +train-2\b", again), again
    assert "every sample was seen 1.0 to 1.0 times" in again


def test_resume_without_a_run_is_an_error(strata):
    process = strata("run", "train.py", "--resume")
    assert "no run of train.py" in process.communicate(timeout=60)[0]
    assert process.returncode == NOT_FOUND


def test_run_that_still_runs_is_not_resumed(folder, strata):
    running = strata("run", "train.py")
    until(lambda: steps_of(folder) >= 5, what="a checkpoint")
    second = strata("run", "train.py", "--resume")
    assert "is still active" in second.communicate(timeout=60)[0]
    assert second.returncode == REFUSED
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
