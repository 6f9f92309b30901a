"""A fork trains the same samples as its parent from the fork on, and its audit spans both."""

import httpx
import numpy as np
import pytest

from tests.sdk.harness import until
from tests.sdk.test_continued_runs import LOOPER

PARENT = "default-1"


@pytest.fixture
def api(hub):
    with httpx.Client(base_url=f"{hub.running.http_url}/api", timeout=30) as client:
        yield client


def test_fork_of_a_completed_run_trains_on_from_a_checkpoint(hub, api, trainees):
    def start(names, **given):
        return [
            trainees(hub.address, "per_epoch", script=LOOPER, worker_id=name, **given)
            for name in names
        ]

    parents = start("ab", world_size=2, epochs=4, checkpoint_every=5)
    for worker in parents:
        assert worker.says("done")["seen"] == [4.0] * 40
        assert worker.ends() == 0
    until(lambda: hub.state.tasks[PARENT].state == "completed", what="the end of the parent")
    steps = [
        each["step"] for each in api.get("/checkpoints").json() if each["status"] == "completed"
    ]
    step = sorted(steps)[0]
    answer = api.post(
        f"/tasks/{PARENT}/fork", json={"step": step, "name": "fork", "worker_count": 3}
    )
    assert answer.status_code == 201, answer.text
    fork = answer.json()["task_id"]
    for worker in start("cde", epochs=5, task=fork):
        done = worker.says("done")
        assert np.array_equal(done["seen"], [5.0] * 40)
        assert (done["schedule"], done["steps"]) == (5, 25)
        assert worker.ends() == 0
    found = until(
        lambda: (each := api.get(f"/tasks/{fork}/audit").json())["verdict"] == "proven" and each,
        what="a proven audit of the fork",
    )
    assert found["committed"] == 25
    assert api.get(f"/tasks/{PARENT}/audit").json()["committed"] == 20
    shown = api.get(f"/tasks/{fork}").json()
    assert (shown["parent"], shown["forked_at"]) == (PARENT, step)
    for task, counted in ((PARENT, 2 * 20), (fork, 2 * step + 3 * (25 - step))):
        asked = {"task": task, "name": "step_s"}
        curve = api.get("/timeline/curves/points", params=asked).json()["curves"][0]
        assert curve["step"] == list(range(20 if task == PARENT else 25))
        assert curve["count"] == counted
        listed = api.get("/timeline/curves", params={"task": task}).json()
        assert listed["undone_steps"] == 0
    settings = api.get("/timeline/curves/settings", params={"task": fork}).json()
    assert (settings["parent"], settings["forked_step"], settings["name"]) == (PARENT, step, "fork")
    markers = api.get("/timeline/curves/markers", params={"task": fork}).json()["markers"]
    assert [each["step"] for each in markers if each["kind"] == "fork"] == [step]
