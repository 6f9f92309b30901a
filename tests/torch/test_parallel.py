"""Guards `strata.torch.data_parallel`: training code learns the same as in one plain process, for
any number of workers, also when a worker is killed or hangs in a step.
"""

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import run, script
from tests.sdk.harness import clean_environment

torch = pytest.importorskip("torch")

# PyTorch warns about a part of its own when it imports its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from cases import ALONE, CASES, STEPS, TOLERANCE, reference  # noqa: E402

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
KILL = int(signal.SIGKILL)
QUIET = ""
KILLED = "killed before the first case"
DISTURBED = "killed, killed after some optimizers have stepped, and stopped"
COMMUNICATING = "one worker that communicates"
LAUNCHED = "optimizers launched before the host knows the gradients"
LAUNCHED_KILLED = "the same, killed before the first case"
HOW = {
    QUIET: [],
    KILLED: [f"signals=12:{KILL}"],
    DISTURBED: [f"signals=12:{KILL} 14:{KILL}:two_optimizers 16:{int(signal.SIGSTOP)}"],
    COMMUNICATING: ["communicate=1"],
    LAUNCHED: ["late=1"],
    LAUNCHED_KILLED: ["late=1", f"signals=12:{KILL}"],
}
LOSSES = {KILLED: "1 loss,", DISTURBED: "3 losses,", LAUNCHED_KILLED: "1 loss,"}


def learn(folder, workers, *config, name="learner.py", losses=True):
    """Run the learner to its end; return the exit code and the terminal output.

    Only a run that loses workers needs a process prepared for replacements.
    """
    warm = {"STRATA_WARM_STARTS_AFTER_S": "0.1"} if losses else {"STRATA_WARM_STARTS": "false"}
    pairs = [each for pair in (f"folder={folder}", *config) for each in ("--config", pair)]
    done = subprocess.run(
        [*MAIN, "run", str(HERE / name), "--workers", str(workers), *pairs],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(
            STRATA_HEARTBEAT_TIMEOUT_S="6",
            STRATA_HEARTBEAT_INTERVAL_S="1",
            OMP_NUM_THREADS="1",
            **warm,
        ),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of all cases, made once for its number of workers and disturbance."""

    @functools.cache
    def train(workers, how):
        folder = tmp_path_factory.mktemp("run")
        return folder, *learn(folder, workers, *HOW[how], losses=how in LOSSES)

    def succeeded(workers, how):
        folder, code, shown = train(workers, how)
        assert code == 0, shown
        return folder, shown

    return succeeded


def rows(folder, workers):
    """The rows that each rank trained in each step."""
    return [
        [json.loads((folder / f"rows-{step}-{rank}").read_text()) for rank in range(workers)]
        for step in range(STEPS)
    ]


@pytest.mark.parametrize("name", CASES)
def test_one_worker_learns_the_same_bits_as_a_plain_process(trained, name):
    folder, _ = trained(1, QUIET)
    assert torch.equal(torch.load(folder / f"{name}.pt"), reference(name, rows(folder, 1)))


@pytest.mark.parametrize("name", CASES)
def test_one_worker_that_communicates_learns_the_same(trained, name):
    """On a GPU this is the path of nccl, which refuses several workers on one device."""
    folder, _ = trained(1, COMMUNICATING)
    expected = reference(name, rows(folder, 1))
    tolerance = TOLERANCE.get(name, 1e-9)
    found = torch.load(folder / f"{name}.pt")
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALONE])
@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (2, QUIET),
        (2, DISTURBED),
        (2, LAUNCHED),
        (2, LAUNCHED_KILLED),
        (3, QUIET),
        (3, KILLED),
    ],
)
def test_workers_learn_the_same_as_a_plain_process(trained, workers, how, name):
    folder, shown = trained(workers, how)
    assert LOSSES.get(how, "0 losses,") in shown, shown
    assert "audit proven" in shown
    expected = reference(name, rows(folder, workers))
    assert expected.isfinite().all()
    found = torch.load(folder / f"{name}.pt")
    tolerance = TOLERANCE.get(name, 1e-9)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_optimizer_that_was_launched_skips_aborted_gradients(tmp_path):
    code, shown = learn(tmp_path, 2, "late=1", "skip=1", "only=fused")
    assert code == 0, shown
    assert "1 loss" in shown
    assert "may be partly applied" not in shown
    assert "continues from step 12 (peer)" in shown
    found = torch.load(tmp_path / "fused.pt")
    torch.testing.assert_close(found, reference("fused", rows(tmp_path, 2)), rtol=1e-9, atol=1e-9)


UNSEEDED = """
import torch, strata, strata.torch
with strata.join() as run:
    torch.manual_seed(run.rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model[0].weight.data = model[0].weight.data.t()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert strata.torch.data_parallel(run, model) is model
    run.restore({"model": model, "optimizer": optimizer})
    dataset = strata.open_arrays({"x": torch.eye(4).repeat(8, 1)}, name="units")
    for batch in run.batches(dataset, batch_size=4, epochs=1):
        with run.step() as step:
            model(torch.from_numpy(batch["x"])).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    print("ends with", [each.tolist() for each in (*model.parameters(), *model.buffers())])
"""


def test_workers_begin_with_the_model_of_rank_0_and_end_with_equal_buffers(tmp_path):
    code, output = run(tmp_path, script(tmp_path, UNSEEDED), "--workers", "2")
    assert code == 0, output
    first, second = re.findall(r"ends with (.*)", output)
    assert first == second


MISUSE = """
import sys, torch, strata, strata.torch
from strata.errors import StrataError

run = strata.join()
model = torch.nn.Linear(4, 1)
strata.torch.data_parallel(run, model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(2, 4)

def outside():
    model(x).sum().backward()

def optimizer_outside():
    optimizer.step()

def left_over():
    with run.step():
        model(x).sum().backward()

def not_averaged():
    with run.step():
        for each in model.parameters():
            each.grad = torch.autograd.grad(model(x).sum(), each)[0]
        optimizer.step()

def never_sent():
    with run.step() as step:
        with step.accumulate():
            model(x).sum().backward()
        optimizer.step()

def different_passes():
    with run.step() as step:
        for _ in range(1 + run.rank):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with run.step() as step:
        model(x).sum().backward()
        optimizer.step()

try:
    globals()[sys.argv[1]]()
    print("it passed")
except StrataError as error:
    print("refused:", error)
run.leave()
"""


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("outside", "backward() was called outside of a step"),
        ("optimizer_outside", "optimizer.step() was called outside of a step"),
        ("left_over", "ended with gradients that no optimizer has used"),
        ("not_averaged", "would apply gradients that were not averaged over the workers"),
        ("never_sent", "the gradients of the last backward pass were not averaged"),
        ("different_passes", "the workers are in different backward passes"),
    ],
)
def test_mistake_is_an_error(tmp_path, mistake, message):
    name = script(tmp_path, MISUSE)
    _, output = run(tmp_path, name, "--workers", "2", "--", mistake)
    assert "it passed" not in output
    assert output.count(message) == 2, output
