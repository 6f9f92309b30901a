"""Guards `strata resize` and ranges of workers: no loss, no rollback, and the same result as one
process that trains the same global batch."""

import json
from itertools import pairwise

import httpx
import pytest

from strata.cli.support.exit_codes import REFUSED, USAGE
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from tests.agent.harness import until, worker_pids
from tests.cli.conftest import strata
from tests.cli.runs import run, script, seen, url_of

WAIT_S = 60.0

TRAINING = """
import json
import time
from pathlib import Path
import numpy as np
import strata

numbers = strata.open_arrays({"x": np.arange(1000, dtype=np.float64)}, name="numbers")

with strata.join(checkpoint_every=0) as run:
    state = run.restore({"w": np.zeros(1)})
    for batch in run.batches(numbers, batch_size=run.config["batch_size"]):
        with run.step():
            mean = run.average(np.array([batch["x"].sum()]), weight=1.0)
            # Whole numbers, so the result does not depend on the order of the sum.
            total = np.rint(mean * run.world_size)
            state["w"][:] = (state["w"] * 31 + total) % 1_000_003
            # The state has changed: an interruption from here on could not be undone.
            time.sleep(0.02)
            run.average(state["w"])
        steps = run.config.get("steps")
        if run.agree(run.steps >= steps if steps else Path("finish").exists()):
            break
    Path(f"{run.worker_id}.json").write_text(json.dumps([run.steps, state["w"].tolist()]))
"""


def resized(folder, url, task, workers):
    ended = strata("resize", task, "--workers", workers, "--url", url, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def trains_with(url, task, workers):
    """Wait until a task trains with this number of workers, and has advanced with them; returns
    the committed steps."""

    def task_now():
        return httpx.get(f"{url}/api/tasks/{task}").raise_for_status().json()

    def running():
        now = task_now()
        return now["status"] == "running" and now["worker_ids_total"] == workers and now

    before = until(running, f"{workers} workers of {task}", WAIT_S)["committed_steps"]
    advanced = until(
        lambda: (now := running()) and now["committed_steps"] > before and now, "a step", WAIT_S
    )
    return advanced["committed_steps"]


def results(folder):
    """What each worker wrote after its loop."""
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*-w*.json")}


def test_resized_task_ends_with_the_weights_of_one_process(folder, started):
    name = script(folder, TRAINING, "count.py")
    arguments = ["--workers", "2", "--slots", "4", "--config", "batch_size=8"]
    running = started(name, *arguments, "--data-dir", "data")
    running.wait_for(seen("generation 1 trains"), "training", WAIT_S)
    url = url_of(running)
    said = []
    steps_done = [trains_with(url, "count-1", 2)]
    for workers in (4, 1, 3):
        said.append(resized(folder, url, "count-1", str(workers)))
        steps_done.append(trains_with(url, "count-1", workers))
        until(lambda count=workers: len(worker_pids(folder)) == count, "the end of others", WAIT_S)
    said.append(resized(folder, url, "count-1", "3"))
    assert said == [
        "count-1 was resized from 2 workers to 4: 4 of 4 workers",
        "count-1 was resized from 4 workers to 1: 1 of 1 workers",
        "count-1 was resized from 1 worker to 3: 3 of 3 workers",
        "count-1 is already resized to 3; nothing changed",
    ]
    (folder / "finish").touch()
    assert running.ended() == 0, running.out
    output = "".join(running.out)
    assert "audit proven" in output
    assert "3 workers, 0 losses" in output
    assert "rolled back" not in output
    with open_timeline(folder / "data") as timeline:
        markers = TimelineQueries(timeline).curves.markers("count-1").markers
    marked = [each.step for each in markers if each.kind == "resize"]
    assert len(marked) == 3
    for step, (before, after) in zip(marked, pairwise(steps_done), strict=True):
        assert before <= step <= after
    found = results(folder)
    assert len(found) == 3, "released workers do not run the code after the loop"
    ((steps, weights),) = {(steps, *w) for steps, w in found.values()}
    alone = folder / "alone"
    alone.mkdir()
    script(alone, TRAINING, "count.py")
    code, out = run(alone, "count.py", "--config", "batch_size=16", "--config", f"steps={steps}")
    assert code == 0, out
    assert results(alone) == {"count-1-w0": [steps, [weights]]}


def test_elastic_task_gives_slots_to_another_task_and_takes_them_again(folder, started):
    name = script(folder, TRAINING, "count.py")
    running = started(name, "--workers", "1:3", "--config", "batch_size=16")
    running.wait_for(seen(" trains"), "training", WAIT_S)
    url = url_of(running)
    trains_with(url, "count-1", 3)
    other = ["--workers", "2", "--name", "other", "--config", "batch_size=8", "--config"]
    ended = strata("submit", name, *other, "steps=40", "--url", url, cwd=folder)
    assert ended.stdout.strip() == "other-2", ended.stderr
    trains_with(url, "count-1", 1)
    until(
        lambda: httpx.get(f"{url}/api/tasks/other-2").json()["status"] == "completed",
        "the end of the other task",
        WAIT_S,
    )
    trains_with(url, "count-1", 3)
    (folder / "finish").touch()
    assert running.ended() == 0, running.out
    output = "".join(running.out)
    assert "audit proven" in output
    assert ": other-2 needs 2 more slots" in output
    assert "0 losses" in output
    assert "rolled back" not in output


def test_resize_says_what_the_task_waits_for(cluster):
    body = {"name": "wait", "worker_count": 2}
    task = cluster.http.post("/api/tasks", json=body).json()["task_id"]
    ended = cluster.run("resize", task, "--workers", "6")
    missing = f"0 of 6 workers are here: start 6 more with STRATA_TASK={task}"
    assert ended.stdout.strip() == f"{task} was resized from 2 workers to 6: {missing}"
    answer = cluster.run("resize", task, "--workers", "2:4", "--json")
    assert json.loads(answer.stdout) == {
        "task_id": task,
        "before": 6,
        "after": 4,
        "placed": 0,
        "waiting": 2,
        "waiting_for": f"0 of 2 workers are here: start 2 more with STRATA_TASK={task}",
        "changed": True,
        "min_workers": 2,
    }


@pytest.mark.parametrize("workers", ["0", "-1", "two", "3:2", "0:2", "1:2:3", ""])
def test_bad_number_of_workers_is_refused(cluster, workers):
    ended = cluster.run("resize", "some-1", f"--workers={workers}")
    assert ended.returncode == USAGE
    assert "--workers" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_number_above_the_slots_is_refused(cluster):
    body = {"name": "wait", "entry": "train.py"}
    task = cluster.http.post("/api/tasks", json=body).json()["task_id"]
    ended = cluster.run("resize", task, "--workers", "3")
    assert ended.returncode == USAGE
    assert "would need 3 slots, and the agents offer 0" in ended.stderr


def test_ended_task_is_refused(cluster):
    body = {"name": "wait", "worker_count": 2}
    task = cluster.http.post("/api/tasks", json=body).json()["task_id"]
    cluster.http.post(f"/api/tasks/{task}/stop")
    ended = cluster.run("resize", task, "--workers", "3")
    assert ended.returncode == REFUSED
    assert f"strata continue {task} --workers 3" in ended.stderr
