"""Guards training with PyTorch, data-parallel and sharded: what it learns does not depend on how
many workers there are, nor on one of them being killed, or standing still, in the middle of a step.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.runs import run, script
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


UNSEEDED = """
import torch, strata, strata.torch
with strata.join() as run:
    torch.manual_seed(run.rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model[0].weight.data = model[0].weight.data.t()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = strata.torch.DataParallel(run, model)
    run.restore({"model": model, "optimizer": optimizer})
    dataset = strata.open_arrays({"x": torch.eye(4).repeat(8, 1)}, name="units")
    for batch in run.batches(dataset, batch_size=4, epochs=1):
        optimizer.zero_grad()
        with parallel.averaging(len(batch["x"])):
            model(torch.from_numpy(batch["x"])).square().sum().backward()
        optimizer.step()
        run.mark_step()
    print("ends with", [each.tolist() for each in model.parameters()])
"""


def test_everyone_begins_with_the_model_of_rank_0(tmp_path):
    code, output = run(tmp_path, script(tmp_path, UNSEEDED), "--workers", "2")
    assert code == 0, output
    first, second = re.findall(r"ends with (.*)", output)
    assert first == second
