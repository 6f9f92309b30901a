"""Training in a notebook: a real kernel, cell by cell, with an interrupt."""

import pytest

from tests.sdk.harness import clean_environment, until

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

WAIT_S = 60


@pytest.fixture
def notebook(hub, spool):
    """Run a cell; returns its output and its error, if any."""
    environment = clean_environment(COORDINATOR_ADDR=hub.address, STRATA_SPOOL_DIR=str(spool))
    kernel, client = manager.start_new_kernel(env=environment)

    def cell(source, during=lambda: None):
        printed, asked = [], client.execute(source)
        during()
        while True:
            message = client.get_iopub_msg(timeout=WAIT_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            if message["msg_type"] == "error":
                printed.append(message["content"]["ename"])
            if message["content"].get("execution_state") == "idle":
                return "".join(printed)

    cell.stop = kernel.interrupt_kernel
    yield cell
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


@pytest.mark.slow
def test_notebook_joins_trains_is_interrupted_and_leaves(hub, trainees, notebook):
    trainees(hub.address, "train", worker_id="other", world_size=2)
    assert notebook("import strata; run = strata.join(worker_id='nb', world_size=2)") == ""
    assert "step 3" in notebook(
        "for _ in range(3): run.mark_step(loss=1.0)\nprint('step', run.steps)"
    )
    until(lambda: ("info", "step 3") in hub.lines("nb"), what="the line that the cell printed")

    def pressed():
        until(lambda: hub.state.tasks["default-1"].barriers, what="the arrival")
        notebook.stop()

    assert "KeyboardInterrupt" in notebook("run.barrier('alone')", pressed)
    assert notebook("run.leave()") == ""
    until(lambda: hub.state.workers["nb"].state == "left", what="the leave")
