"""Guards training with PyTorch, data-parallel and sharded: what it learns does not depend on how
many workers there are, nor on one of them being killed, or standing still, in the middle of a step.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sdk.harness import clean_environment

pytest.importorskip("torch")

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
LEARNER = Path(__file__).with_name("learner.py")


def learned(folder, workers, how="parallel", sent=0, form=0):
    """The weights after a run, and what the terminal showed."""
    done = subprocess.run(
        [
            *MAIN, "run", str(LEARNER), "--workers", str(workers),
            "--config", f"how={how}", "--config", f"signal={sent}", "--config", f"form={form}",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=clean_environment(STRATA_HEARTBEAT_TIMEOUT_S="6", STRATA_HEARTBEAT_INTERVAL_S="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [each for each in done.stdout.splitlines() if "weights [" in each]
    return np.array(json.loads(line.partition("weights ")[2])), done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one worker learns that nobody disturbs."""
    return learned(tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.mark.parametrize("how", ["parallel", "group", "mesh"])
@pytest.mark.parametrize("sent", [0, signal.SIGKILL, signal.SIGSTOP])
def test_the_same_is_learned_whatever_happens(tmp_path, alone, how, sent):
    weights, shown = learned(tmp_path, 3, how, int(sent))
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(weights, alone, rtol=2e-4, atol=2e-5)
    assert ("1 loss" in shown) == bool(sent), shown
    assert "each sample was applied exactly once per epoch" in shown


def test_a_worker_lost_while_the_shards_are_dealt_out_delays_nobody(tmp_path, alone):
    weights, shown = learned(tmp_path, 3, "mesh", form=int(signal.SIGKILL))
    np.testing.assert_allclose(weights, alone, rtol=2e-4, atol=2e-5)
    assert "1 loss" in shown
