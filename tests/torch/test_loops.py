"""Guards the callbacks for other frameworks' trainers, against the real libraries: every step is a
fact with its loss, a preempted training saves, and the next one goes on from there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata.core.catalogue import CODEC
from strata.core.checkpoints import CheckpointCommitted
from strata.core.worker_facts import StepFinished
from strata.store.base import Window
from strata.store.sqlite import SqliteReader
from tests.sdk.harness import clean_environment

pytest.importorskip("torch")

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
FITTING = Path(__file__).with_name("fitting.py")
STEPS = 40


def fit(folder, framework, **environment):
    """Runs the script on one worker; what the terminal showed, and the run's log."""
    pytest.importorskip({"lightning": "lightning", "huggingface": "transformers"}[framework])
    done = subprocess.run(
        [*MAIN, "run", str(FITTING), "--data-dir", "data", "--", framework],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=clean_environment(**environment),
    )
    return done, SqliteReader(folder / "data" / "log.db", CODEC)


@pytest.mark.parametrize("framework", ["lightning", "huggingface"])
def test_every_step_is_a_fact_with_its_loss(tmp_path, framework):
    done, log = fit(tmp_path, framework)
    assert done.returncode == 0, done.stdout + done.stderr
    with log:
        (worker,) = {node for node, _ in log.streams()}
        steps = [
            e.body for _, _, e in log.query(Window(node=worker, kinds=frozenset({"StepFinished"})))
        ]
    assert [step.step for step in steps] == list(range(STEPS))
    losses = [step.loss for step in steps if step.loss is not None]
    assert len(losses) >= STEPS - 1
    assert losses[-1] < losses[0] / 10
    assert isinstance(steps[-1], StepFinished)
    assert steps[-1].epoch >= 4


@pytest.mark.parametrize("stop_at", [12, STEPS - 1])
@pytest.mark.parametrize("framework", ["lightning", "huggingface"])
def test_a_preempted_training_saves_before_it_ends(tmp_path, framework, stop_at):
    done, log = fit(tmp_path, framework, STOP_AT=str(stop_at))
    with log:
        saved = [e.body for e in log.read() if isinstance(e.body, CheckpointCommitted)]
    assert saved, done.stdout + done.stderr
    assert saved[0].step >= stop_at
    assert os.listdir(tmp_path / "data" / "checkpoints")
