"""Training in a notebook: a real kernel, cell by cell, with an interrupt."""

import pytest

from tests.kernels import kernel
from tests.sdk.harness import clean_environment, until


@pytest.fixture
def notebook(hub, spool):
    """A kernel whose processes join the coordinator of the test."""
    environment = clean_environment(COORDINATOR_ADDR=hub.address, STRATA_SPOOL_DIR=str(spool))
    with kernel(environment) as started:
        yield started


@pytest.mark.slow
def test_notebook_joins_trains_is_interrupted_and_leaves(hub, trainees, notebook):
    trainees(hub.address, "train", worker_id="other", world_size=2)
    assert notebook.run("import strata; run = strata.join(worker_id='nb', world_size=2)") == ""
    assert "step 3" in notebook.run(
        "for _ in range(3): run.mark_step(loss=1.0)\nprint('step', run.steps)"
    )
    until(lambda: ("info", "step 3") in hub.lines("nb"), what="the line that the cell printed")

    def pressed():
        until(lambda: hub.state.tasks["default-1"].barriers, what="the arrival")
        notebook.interrupt()

    assert "KeyboardInterrupt" in notebook.run("run.barrier('alone')", pressed)
    assert notebook.run("run.leave()") == ""
    until(lambda: hub.state.workers["nb"].state == "left", what="the leave")
