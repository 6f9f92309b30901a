"""`strata continue` and `strata fork` with a real coordinator, agent and workers."""

import json

import pytest

from strata.cli.support.exit_codes import NOT_FOUND, REFUSED
from tests.agent.harness import Agent, Api, until
from tests.agent.test_agent import QUICK
from tests.cli.conftest import strata
from tests.coordinator.process import process

TRAIN = """
import time
import numpy as np
import strata

with strata.join(checkpoint_every=5) as run:
    numbers = strata.open_arrays({"x": np.arange(40)}, name="numbers")
    seen = run.restore({"seen": np.zeros(40)})["seen"]
    for epoch in run.epochs(run.config["epochs"]):
        for batch in run.batches(numbers, global_batch=8):
            with run.step():
                counted = np.bincount(batch["x"], minlength=40).astype(float)
                seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
            time.sleep(run.config.get("step_s", 0.0))
    if run.rank == 0:
        print("seen", seen.min(), "to", seen.max(), "times")
"""


@pytest.fixture
def api(tmp_path):
    """The API of a coordinator with an agent of two slots."""
    with process(tmp_path, **QUICK) as coordinator:
        agent = Agent(tmp_path, coordinator.address, 2)
        yield Api(coordinator)
        agent.close()


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN, "utf-8")
    return file


@pytest.fixture
def run(tmp_path, api):
    """Run a verb of `strata` against the coordinator: its exit code and output."""
    return lambda *arguments: strata(*arguments, "--url", api.coordinator.http_url, cwd=tmp_path)


def last_line(api, task):
    return api.lines(task_id=task, search="seen")[-1]


def marked(api, task):
    """The markers of a task's curves, other than those of every run."""
    markers = api.get("/timeline/curves/markers", task=task)["markers"]
    others = {"checkpoint", "recovery"}
    return [(each["kind"], each["step"]) for each in markers if each["kind"] not in others]


def test_task_is_extended_and_forked_over_the_command_line(api, script, run):
    task = api.submit(script, 2, name="train", config={"epochs": 2})
    assert api.reaches(task, "completed")["committed_steps"] == 10
    shown = run("continue", task, "--workers", "1", "--epochs", "3", "--json")
    assert json.loads(shown.stdout)["changes"] == [
        {"name": "worker_count", "before": "2", "after": "1"},
        {"name": "epochs", "before": "as in the script", "after": "3"},
    ]
    assert api.reaches(task, "completed")["continuations"] == 1
    assert last_line(api, task) == "seen 3.0 to 3.0 times"

    shown = run("fork", task, "--step", "10", "--name", "hot", "--epochs", "4", "--json")
    fork = json.loads(shown.stdout)
    assert (fork["task_id"], fork["step"]) == ("hot-2", 10)
    assert api.reaches("hot-2", "completed")["parent"] == task
    assert last_line(api, "hot-2") == "seen 4.0 to 4.0 times"
    for each, steps in ((task, 15), ("hot-2", 20)):
        audit = api.get(f"/tasks/{each}/audit")
        assert (audit["verdict"], audit["committed"]) == ("proven", steps)
    assert marked(api, task) == [("config", 10), ("fork", 10)]
    assert marked(api, "hot-2") == [("fork", 10)]


def test_what_cannot_be_continued_or_forked_is_refused(api, script, run):
    task = api.submit(script, 1, name="train", config={"epochs": 50, "step_s": 0.05})
    until(lambda: api.task(task)["saved_step"], "a checkpoint")
    running = run("continue", task)
    assert (running.returncode, "is running" in running.stderr) == (REFUSED, True)
    missing = run("fork", task, "--step", "1")
    assert (missing.returncode, "no checkpoint of step 1" in missing.stderr) == (NOT_FOUND, True)
    assert "the nearest" in missing.stderr
    assert run("continue", "none-9").returncode == NOT_FOUND


def test_dry_run_shows_the_changes_and_changes_nothing(api, script, run):
    task = api.submit(script, 1, name="train", config={"epochs": 1})
    api.reaches(task, "completed")
    shown = run("continue", task, "--workers", "2", "--dry-run").stdout
    assert "continues from step 5" in shown
    assert "1 → 2" in shown
    assert api.task(task)["status"] == "completed"
