"""A task that was stopped or has completed continues: the same samples, state and script position.

The model counts every sample and a schedule every epoch, so they show at the end whether each was
applied exactly once over all lives of the task.
"""

from pathlib import Path

import httpx
import pytest

from tests.sdk.harness import until

LOOPER = Path(__file__).with_name("looper.py")
TASK = "default-1"


@pytest.fixture
def api(hub):
    with httpx.Client(base_url=f"{hub.running.http_url}/api", timeout=30) as client:
        yield client


@pytest.fixture
def loopers(hub, trainees):
    """Start workers that run a scene: `loopers("per_epoch", "ab", epochs=3)`."""

    def start(scene, names, **given):
        return [
            trainees(hub.address, scene, script=LOOPER, worker_id=name, **given) for name in names
        ]

    return start


def continue_task(hub, api, **changes):
    """Continue the task once its workers are gone; returns the answer."""
    until(lambda: not any(each.alive for each in hub.state.workers.values()), what="no workers")
    answer = api.post(f"/tasks/{TASK}/continue", json=changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def audit(api):
    found = until(
        lambda: (each := api.get(f"/tasks/{TASK}/audit").json())["verdict"] == "proven" and each,
        what="a proven audit",
    )
    (feed,) = found["feeds"]
    return feed


def test_completed_run_is_extended_by_more_epochs(hub, api, loopers):
    for worker in loopers("per_epoch", "ab", world_size=2, epochs=2):
        assert worker.says("done")["seen"] == [2.0] * 40
        assert worker.ends() == 0
    assert continue_task(hub, api)["step"] == 10
    for worker in loopers("per_epoch", "ab", epochs=5, task=TASK):
        done = worker.says("done")
        assert (done["seen"], done["schedule"], done["steps"]) == ([5.0] * 40, 5, 25)
        epochs = [each["number"] for each in worker.said if each["say"] == "epoch"]
        assert epochs == [2, 3, 4]
        assert worker.ends() == 0
    assert audit(api)["verdict"] == "proven"


def test_run_that_ended_inside_an_epoch_is_extended_there(hub, api, loopers):
    workers = loopers("limited", "ab", world_size=2, max_steps=7, die_at=6)
    until(lambda: any(each.process.poll() for each in workers), what="a killed worker")
    workers += loopers("limited", "b", max_steps=7, task=TASK)
    assert sorted(each.ends() for each in workers) == [-9, 0, 0]
    continue_task(hub, api, max_steps=14)
    for worker in loopers("limited", "ab", max_steps=7, task=TASK):
        done = worker.says("done")
        assert (done["seen"], done["steps"]) == ([2.0] * 8 + [3.0] * 32, 14)
        assert worker.ends() == 0


def test_limit_of_steps_holds_for_a_second_loop_of_the_epoch(loopers):
    (worker,) = loopers("limited", "a", max_steps=3, loops=2)
    assert (worker.says("done")["steps"], worker.ends()) == (3, 0)


def test_run_that_ended_inside_an_epoch_which_it_counted_is_not_extended(hub, api, loopers):
    (worker,) = loopers("limited", "a", max_steps=7, scheduled=True)
    assert worker.ends() == 0
    continue_task(hub, api)
    (worker,) = loopers("limited", "a", max_steps=12, scheduled=True, task=TASK)
    assert worker.ends() == 1
    assert "ended inside an epoch, at max_steps=7" in worker.story()


def test_stopped_run_continues_on_another_number_of_workers(hub, api, loopers):
    workers = loopers("per_epoch", "ab", world_size=2, epochs=8, step_s=0.02)
    until(lambda: hub.state.tasks and hub.state.tasks[TASK].committed >= 7, what="seven steps")
    api.post(f"/tasks/{TASK}/stop")
    assert [each.ends() for each in workers] == [0, 0]
    until(lambda: hub.state.tasks[TASK].state == "stopped", what="a stopped task")
    stopped_at = hub.state.tasks[TASK].committed
    answer = continue_task(hub, api, worker_count=3)
    assert (answer["step"], answer["changes"]) == (
        stopped_at,
        [{"name": "worker_count", "before": "2", "after": "3"}],
    )
    for worker in loopers("per_epoch", "abc", epochs=8, task=TASK):
        done = worker.says("done")
        assert (done["seen"], done["schedule"], done["steps"]) == ([8.0] * 40, 8, 40)
    assert not hub.facts("RolledBack")
    assert audit(api)["verdict"] == "proven"


def test_continued_run_cannot_train_with_another_global_batch(hub, api, loopers):
    (worker,) = loopers("plain_epochs", "a", epochs=1)
    assert worker.ends() == 0
    continue_task(hub, api)
    (worker,) = loopers("plain_epochs", "a", epochs=2, task=TASK, global_batch=10)
    assert worker.ends() == 1
    assert "global batch of 8" in worker.story()


@pytest.mark.parametrize("where", ["loop", "between"])
def test_script_that_leaves_at_a_stop_continues_where_it_left(hub, api, loopers, where):
    workers = loopers("leave_on_stop", "ab", world_size=2, where=where)
    until(lambda: hub.state.tasks and hub.state.tasks[TASK].committed >= 7, what="seven steps")
    api.post(f"/tasks/{TASK}/stop")
    assert [each.ends() for each in workers] == [0, 0]
    until(lambda: hub.state.tasks[TASK].state == "stopped", what="a stopped task")
    continue_task(hub, api)
    for worker in loopers("leave_on_stop", "ab", task=TASK, where=where):
        done = worker.says("done")
        assert (done["seen"], done["schedule"], done["steps"]) == ([8.0] * 40, 8, 40)
    assert audit(api)["verdict"] == "proven"
