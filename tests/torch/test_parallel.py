"""Guards `strata.torch.data_parallel`: ordinary training code learns what it learns in one plain
process, for any number of workers, also when a worker is killed or stands still in a step."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import run, script
from tests.sdk.harness import clean_environment

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from cases import ALONE, CASES, STEPS, TOLERANCE, reference  # noqa: E402

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
QUIET = ""
KILLED = "killed before the first case"
LATE = "killed after some optimizers have stepped"
STOPPED = "stopped before the first case"
HOW = {
    QUIET: [],
    KILLED: [f"signal={int(signal.SIGKILL)}"],
    LATE: [f"signal={int(signal.SIGKILL)}", "before=two_optimizers"],
    STOPPED: [f"signal={int(signal.SIGSTOP)}"],
}


def learn(folder, workers, *config, name="learner.py"):
    """Run the learner to its end; the exit code and what the terminal showed."""
    pairs = [each for pair in (f"folder={folder}", *config) for each in ("--config", pair)]
    done = subprocess.run(
        [*MAIN, "run", str(HERE / name), "--workers", str(workers), *pairs],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(
            STRATA_HEARTBEAT_TIMEOUT_S="6", STRATA_HEARTBEAT_INTERVAL_S="1", OMP_NUM_THREADS="1"
        ),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of all cases, made once for its number of workers and disturbance."""

    @functools.cache
    def train(workers, how):
        folder = tmp_path_factory.mktemp("run")
        return folder, *learn(folder, workers, *HOW[how])

    def succeeded(workers, how):
        folder, code, shown = train(workers, how)
        assert code == 0, shown
        return folder, shown

    return succeeded


def rows(folder, workers):
    """What each rank trained in each step."""
    return [
        [json.loads((folder / f"rows-{step}-{rank}").read_text()) for rank in range(workers)]
        for step in range(STEPS)
    ]


@pytest.mark.parametrize("name", CASES)
def test_one_worker_learns_the_same_bits_as_a_plain_process(trained, name):
    folder, _ = trained(1, QUIET)
    assert torch.equal(torch.load(folder / f"{name}.pt"), reference(name, rows(folder, 1)))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALONE])
@pytest.mark.parametrize(
    ("workers", "how"),
    [(2, QUIET), (2, KILLED), (2, LATE), (2, STOPPED), (3, QUIET), (3, KILLED)],
)
def test_workers_learn_the_same_as_a_plain_process(trained, workers, how, name):
    folder, shown = trained(workers, how)
    assert ("1 loss" in shown) == bool(how), shown
    assert "each sample was applied exactly once per epoch" in shown
    expected = reference(name, rows(folder, workers))
    assert expected.isfinite().all()
    found = torch.load(folder / f"{name}.pt")
    tolerance = TOLERANCE.get(name, 1e-9)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
