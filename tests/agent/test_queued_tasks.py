"""Tasks that wait, with a real coordinator, agent and workers: one of higher priority takes the
slots of another, which saves, waits, continues by itself, and ends with the same model."""

import pytest

from strata.cli.support.exit_codes import NOT_FOUND
from tests.agent.harness import Agent, Api, until
from tests.agent.test_agent import QUICK
from tests.cli.conftest import strata
from tests.coordinator.process import process

# The sums are of integers, so that the model does not depend on which worker reads a sample, only
# on the samples of each step and their order.
TRAIN = """
import time
import numpy as np, strata
with strata.join(checkpoint_every=10_000) as run:
    numbers = strata.open_arrays({"x": np.arange(640.0)}, name="numbers")
    model = run.restore({"w": np.zeros(1)})
    for batch in run.batches(numbers, global_batch=8, epochs=1):
        with run.step():
            mean = run.average(np.array([batch["x"].sum()]))
            time.sleep(run.config.get("step_s", 0.0))
            model["w"] = (31 * model["w"] + mean * run.world_size) % 1_000_003
    if run.rank == 0:
        print(f"weights {model['w'][0]:.0f} after {run.steps} steps")
"""


@pytest.fixture
def cluster(tmp_path):
    """A coordinator, and an agent with two slots; the API of both."""
    with process(tmp_path, **QUICK) as coordinator:
        agent = Agent(tmp_path, coordinator.address, 2)
        yield Api(coordinator)
        agent.close()


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN, "utf-8")
    return file


def weights(api, task):
    (line,) = api.lines(task_id=task, search="weights")
    return line


def test_preempted_task_saves_waits_and_continues_to_the_same_model(cluster, script):
    api = cluster
    low = api.submit(script, 2, name="low", preemptible=True, config={"step_s": 0.05})
    until(lambda: api.task(low)["committed_steps"] >= 5, "some steps")
    high = api.submit(script, 2, name="high", priority=1)
    last = api.submit(script, 1, name="last", after=[low])

    waiting = api.reaches(low, "queued")
    assert waiting["queue_position"] == 1
    assert waiting["reason"].startswith(f"preempted by {high}; every worker left; 1st in the queue")
    assert waiting["waiting_for"] == "1st in the queue; needs 2 slots, 0 of 2 are free"
    assert f"waits for {low}" in api.task(last)["waiting_for"]
    saved = waiting["saved_step"]
    assert saved == waiting["committed_steps"] > 0

    assert api.reaches(high, "completed")["exit_code"] == 0
    assert api.reaches(low, "completed")["exit_code"] == 0
    assert api.reaches(last, "completed")["queue_position"] is None
    chosen = [fact for fact in api.facts("RecoveryChosen") if fact["task"] == low]
    assert [(fact["source"], fact["step"]) for fact in chosen] == [
        ("fresh", 0),
        ("checkpoint", saved),
    ]
    assert weights(api, low) == weights(api, high)
    assert weights(api, low).endswith("after 80 steps")
    audit = api.get(f"/tasks/{low}/audit")
    assert (audit["verdict"], audit["voided"]) == ("proven", [])


def test_commands_show_the_queue(cluster, script):
    api, url = cluster, cluster.coordinator.http_url
    folder = script.parent

    def submit(*options):
        return strata("submit", str(script), "--url", url, *options, cwd=folder)

    running = submit("--workers", "2", "--name", "first", "--config", "step_s=0.2")
    assert (running.returncode, running.stdout) == (0, "first-1\n")
    api.reaches("first-1", "starting", "running")
    waiting = submit("--name", "second", "--after", "first-1", "--priority", "3")
    assert waiting.stdout == "second-2\n"
    assert "second-2 waits: 1st in the queue; waits for first-1, which is " in waiting.stderr
    unknown = submit("--after", "gone-9")
    assert (unknown.returncode, unknown.stdout) == (NOT_FOUND, "")
    assert "there is no task 'gone-9'" in unknown.stderr
    shown = strata("tasks", "--url", url, cwd=folder, COLUMNS="100").stdout
    assert "priority" in shown
    assert "○ second-2: 1st in the queue; waits for first-1" in shown
