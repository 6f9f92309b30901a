"""A step that an error or Ctrl-C ends: applied as a whole, undone, or the state is refused.

Each script trains alone with an embedded coordinator, as `python train.py` or in a notebook.
"""

import subprocess
import sys

import pytest

from tests.kernels import kernel
from tests.sdk.test_embedded import environment

LOOP = """
import signal, sys, time
import numpy as np
import strata
from strata.errors import NotAllowedNow

class Mistake(Exception): pass

def train(run, state, fail=None):
    for batch in run.batches(DATA, batch_size=4, steps=6 - run.steps):
        with run.step():
            state["w"] += 1
            if fail is not None and run.steps == 3:
                fail()
            state["w"] += 1

def begin():
    global DATA
    run = strata.join(capture=False)
    DATA = strata.open_arrays({"x": np.arange(64)}, name="numbers")
    return run, run.restore({"w": np.zeros(1)})
"""


@pytest.fixture
def train(tmp_path):
    """Run a script after these definitions; returns what it printed."""

    def run(rest):
        (tmp_path / "train.py").write_text(LOOP + rest, "utf-8")
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout + done.stderr

    return run


def test_state_that_a_failed_step_changed_is_neither_trained_nor_saved(train):
    printed = train("""
run, state = begin()
def fail(): raise Mistake
try: train(run, state, fail)
except Mistake: print("failed in step", run.steps)
try: train(run, state)
except NotAllowedNow as error: print("refused:", error)
run.save()
run.leave()
""")
    assert "failed in step 3" in printed
    refused = "the state may be partly changed: Mistake ended step 3 (start this process"
    assert f"refused: {refused}" in printed
    assert f"the state after 3 steps is not saved: step 3: {refused}" in printed


@pytest.mark.parametrize("presses", [1, 2])
def test_interrupted_step_is_completed_first_unless_it_is_interrupted_again(train, presses):
    printed = train(f"""
run, state = begin()
def fail(): [signal.raise_signal(signal.SIGINT) for _ in range({presses})]
try: train(run, state, fail)
except KeyboardInterrupt: print("interrupted after", run.steps, state["w"])
try: train(run, state)
except NotAllowedNow as error: print("refused:", error)
print("ended with", state["w"])
run.leave()
""")
    assert "ends after this step; interrupt again to end at once" in printed
    if presses == 1:
        assert "interrupted after 4 [8.]" in printed
        assert "ended with [12.]" in printed
    else:
        assert "interrupted after 3 [7.]" in printed
        assert "refused: the state may be partly changed: KeyboardInterrupt ended step 3" in printed


def test_torch_step_that_failed_before_the_update_is_repeated_as_if_it_had_not_been(train):
    pytest.importorskip("torch")
    script = """
import torch, strata.torch

def learn(fail):
    for batch in run.batches(DATA, batch_size=4, steps=6 - run.steps):
        with run.step():
            x = torch.as_tensor(batch["x"], dtype=torch.float32)[:, None] / 64
            model(x).sum().backward()
            if fail and run.steps == 3: raise Mistake
            optimizer.step()
            optimizer.zero_grad()

run, _ = begin()
torch.manual_seed(1)
model = strata.torch.data_parallel(run, torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run.restore(model=model, optimizer=optimizer)
if FAILS:
    try: learn(True)
    except Mistake: print("failed in step", run.steps)
learn(False)
print("steps", run.steps, [each.item() for each in model.parameters()], "end")
run.leave()
"""
    printed = [train(script.replace("FAILS", value)) for value in ("True", "False")]
    assert "failed in step 3" in printed[0]
    failed, reference = (each.partition("steps 6")[2].partition("end")[0] for each in printed)
    assert failed == reference != ""


@pytest.mark.slow
def test_cell_that_is_interrupted_or_fails_before_the_update_goes_on_in_the_next(tmp_path):
    with kernel(environment(), cwd=str(tmp_path)) as notebook:
        notebook.run(LOOP)
        notebook.run("run, state = begin()")
        printed = notebook.run(
            "def fail(): signal.raise_signal(signal.SIGINT)\ntrain(run, state, fail)"
        )
        assert "ends after this step" in printed
        assert "KeyboardInterrupt" in printed
        assert notebook.run("print(run.steps, state['w'])") == "4 [8.]\n"
        broken = "for _ in run.batches(DATA, batch_size=4, steps=1):\n  with run.step(): 1 / 0"
        assert "ZeroDivisionError" in notebook.run(broken)
        assert notebook.run("train(run, state)\nprint(run.steps, state['w'])") == "6 [12.]\n"
        assert notebook.run("run.leave()") == ""
