"""Guards local steps on a torch module: parameters of any type and running statistics end alike on
every worker, also when one of them is killed in the middle of a round."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sdk.harness import clean_environment

torch = pytest.importorskip("torch")

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
LEARNER = Path(__file__).with_name("local_learner.py")


@pytest.mark.parametrize("sent", [0, signal.SIGKILL])
def test_all_end_with_the_same_module(tmp_path, sent):
    done = subprocess.run(
        [*MAIN, "run", str(LEARNER), "--workers", "2", "--config", f"signal={int(sent)}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env=clean_environment(STRATA_HEARTBEAT_TIMEOUT_S="6", STRATA_HEARTBEAT_INTERVAL_S="1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"weights (\w{64}) off ([\d.]+)", done.stdout)
    assert len(found) == 2, done.stdout
    assert len(set(found)) == 1
    assert float(found[0][1]) < 0.1, "nothing was learned"
    assert ("1 loss" in done.stdout) == bool(sent), done.stdout
    assert "audit proven" in done.stdout


def test_learned_values_come_first_and_averaged_ones_last():
    from strata.torch.module_local_steps import ModuleWeights

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module[0].bias.requires_grad_(False)
    weights = ModuleWeights(module)
    vector = weights.read()
    assert (vector.size, weights.exact) == (4 + 2 + 2 + 4, 4)
    assert vector[-4:].tolist() == [0, 0, 1, 1]
    weights.write(np.arange(12, dtype=np.float32))
    assert module[0].weight.flatten().tolist() == [0, 1, 2, 3]
    assert module[1].running_var.tolist() == [10, 11]
    assert vector[-1] == 1, "what was read is a copy"
