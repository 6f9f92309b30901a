"""The state of a run survives killed workers, with and without replacement, and every step counts
exactly once."""

import random

import httpx
import numpy as np
import pytest

from strata.core.workers.worker_operations import BlobUploadCompleted
from tests.sdk.harness import until
from tests.sdk.test_saving import TASK, folder, listed, states


def submit(hub, **spec):
    answer = httpx.post(f"{hub.running.http_url}/api/tasks", json={"name": "kept", **spec})
    answer.raise_for_status()
    return answer.json()["task_id"]


def test_replacement_gets_the_model_from_a_live_worker(hub, trainees):
    given = {"world_size": 2, "steps": 60, "step_s": 0.02, "size": 300_000}
    first, second = (trainees(hub.address, "keep", worker_id=name, **given) for name in "ab")
    second.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 10)
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    third = trainees(hub.address, "keep", worker_id="b", **given)
    restored = third.says("restored")
    assert (restored["source"], restored["applied"]) == ("peer", restored["steps"])
    assert restored["steps"] > 10
    for worker in (first, third):
        assert worker.says("ended", timeout_s=60)["exact"]
        assert worker.ends() == 0
    kinds = [type(fact).__name__ for fact in hub.recorded_facts("a")]
    assert kinds.count("BlobAdded") >= 2
    assert kinds.count("BlobUploadStarted") == kinds.count("BlobUploadCompleted") >= 2
    uploads = [fact for fact in hub.recorded_facts("a") if isinstance(fact, BlobUploadCompleted)]
    assert {(fact.ok, fact.to, fact.error) for fact in uploads} == {(True, "b", "")}
    assert max(fact.sent_bytes for fact in uploads) >= 3 * 300_000 * 8
    assert all(fact.took_s > 0 for fact in uploads)
    fetched = [fact for fact in hub.recorded_facts("b") if "Download" in type(fact).__name__]
    assert [fact.ok for fact in fetched if hasattr(fact, "ok")] == [True]
    assert fetched[0].size_bytes > 3 * 300_000 * 8
    assert fetched[-1].received_bytes >= 3 * 300_000 * 8


def test_worker_that_has_not_restored_a_state_offers_no_model_to_a_replacement(
    hub, trainees, tmp_path
):
    given = {"world_size": 2, "gate": str(tmp_path / "gate")}
    first, second = (trainees(hub.address, "frame", worker_id=name, **given) for name in "ab")
    for worker in (first, second):
        worker.says("joined")
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    third = trainees(hub.address, "frame", worker_id="b", **given)
    until(lambda: hub.state.workers["b"].alive)
    (tmp_path / "gate").touch()
    for worker in (first, third):
        assert worker.says("restored")["source"] == "fresh"
        assert worker.ends() == 0


def test_slow_model_offer_is_waited_for(hub, trainees):
    given = {"world_size": 2, "steps": 300, "step_s": 0.02, "dawdle_s": 1.5}
    first, second = (trainees(hub.address, "keep", worker_id=name, **given) for name in "ab")
    second.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 5)
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    third = trainees(hub.address, "keep", worker_id="b", **given)
    assert third.says("restored")["source"] == "peer"
    for worker in (first, third):
        assert worker.says("ended")["exact"]


def alive(hub, worker):
    return worker in hub.state.workers and hub.state.workers[worker].alive


def killed_after_two_commits(hub, trainees, **given):
    """Kill both workers after two commits; returns the step of the newest checkpoint."""
    workers = [trainees(hub.address, "keep", worker_id=name, steps=10**6, **given) for name in "ab"]
    until(lambda: list(states(hub).values()).count("committed") >= 2, what="two commits")
    for worker in workers:
        worker.kill()
    until(lambda: not hub.state.tasks[TASK].members)
    until(lambda: "sealing" not in states(hub).values())
    return max(c.step for c in hub.state.tasks[TASK].checkpoints.values() if c.state == "committed")


@pytest.mark.parametrize("functional", [False, True])
def test_newest_checkpoint_is_restored_after_all_workers_are_killed(hub, trainees, functional):
    given = {"world_size": 2, "step_s": 0.01, "checkpoint_every": 10, "functional": functional}
    newest = killed_after_two_commits(hub, trainees, **given)
    again = [
        trainees(hub.address, "keep", worker_id=name, steps=newest + 30, **given) for name in "ab"
    ]
    for worker in again:
        restored = worker.says("restored")
        assert (restored["source"], restored["applied"]) == ("checkpoint", newest)
        assert worker.says("ended")["exact"]
        assert worker.ends() == 0


def test_damaged_part_is_named_and_the_previous_checkpoint_restored(hub, trainees, tmp_path):
    given = {"world_size": 2, "step_s": 0.01, "checkpoint_every": 10, "size": 40_000}
    newest = killed_after_two_commits(hub, trainees, **given)
    (part,) = folder(hub, tmp_path).glob(f"step-{newest:08d}-*/part-00001.safetensors")
    image = bytearray(part.read_bytes())
    image[5_000] ^= 1  # of a tensor that every rank needs
    part.write_bytes(image)
    again = [
        trainees(hub.address, "keep", worker_id=name, steps=newest + 5, **given) for name in "ab"
    ]
    for worker in again:
        restored = worker.says("restored")
        assert (restored["source"], restored["applied"]) == ("checkpoint", newest - 10)
        assert worker.says("ended")["exact"]
    (failed,) = [each for each in listed(hub) if each["status"] == "failed"]
    assert (failed["step"], "part-00001.safetensors" in failed["reason"]) == (newest, True)
    assert part.exists(), "the files of a damaged checkpoint are kept for inspection"


@pytest.mark.parametrize("policy", ["replace", "continue"])
@pytest.mark.timeout(240)
def test_every_step_counts_once_when_workers_are_killed_at_random(hub, trainees, policy):
    chance = random.Random(7)
    task = submit(hub, worker_count=3, policy=policy)
    given = {"task": task, "steps": 150, "step_s": 0.02, "checkpoint_every": 7, "size": 50_000}
    workers = {
        name: trainees(hub.address, "keep", worker_id=name, **given) for name in ("a", "b", "c")
    }
    for round in range(6):
        goal = 15 * round
        until(lambda: hub.state.tasks[task].committed > goal, 60, f"round {round}")  # noqa: B023
        name = chance.choice([*workers])
        until(lambda: chance.random() < 0.02, what="a moment")
        workers[name].kill()
        until(lambda: not alive(hub, name))  # noqa: B023
        if policy == "replace" or round % 2:
            workers[name] = trainees(hub.address, "keep", worker_id=name, **given)
        else:
            del workers[name]
            if len(workers) < 2:
                name = f"late-{round}"
                workers[name] = trainees(hub.address, "keep", worker_id=name, **given)
    for worker in workers.values():
        ended = worker.says("ended", timeout_s=60)
        assert (ended["exact"], ended["steps"]) == (True, 150), worker.story()
        assert worker.ends() == 0
    assert hub.state.tasks[task].state == "completed"


@pytest.mark.parametrize("every", [0, 7])
def test_replacement_that_joins_after_the_others_ended_their_loop_trains_nothing(
    hub, trainees, tmp_path, every
):
    task = submit(hub, worker_count=2, min_workers=1)
    given = {"task": task, "steps": 150, "step_s": 0.02, "checkpoint_every": every}
    gate = tmp_path / "gate"
    first = trainees(hub.address, "keep", worker_id="a", linger=str(gate), **given)
    second = trainees(hub.address, "keep", worker_id="b", **given)
    second.says("restored")
    until(lambda: hub.state.tasks[task].committed > 10)
    second.kill()
    until(lambda: not alive(hub, "b"))
    first.says("looped")
    third = trainees(hub.address, "keep", worker_id="b", **given)
    until(lambda: "b" in hub.state.tasks[task].entered, what="the newcomer's entry")
    gate.touch()
    assert first.says("ended")["exact"]
    assert first.ends() == 0
    third.ends()
    assert not [each for each in third.said if each["say"] == "restored"]
    ended = hub.state.tasks[task]
    assert (ended.state, ended.committed, ended.attempt) == ("completed", 150, 1)


def test_survivor_one_step_behind_a_finished_worker_keeps_its_model(hub, trainees, tmp_path):
    """The workers do not synchronize in each step, and there is no checkpoint."""
    task = submit(hub, worker_count=3, min_workers=1)
    given = {"task": task, "meet": False, "steps": 60}
    slow = trainees(hub.address, "keep", worker_id="c", step_s=0.2, **given)
    lost = trainees(hub.address, "keep", worker_id="a", step_s=0.2, **given)
    done = trainees(hub.address, "keep", worker_id="b", step_s=0.001, **given)
    assert done.ends() == 0
    assert hub.state.tasks[task].finished_step == 60
    lost.kill()
    recovered = slow.says("recovered")
    assert (recovered["source"], recovered["in_place"]) == ("peer", True)
    assert slow.says("ended")["exact"]
    assert slow.ends() == 0
    ended = hub.state.tasks[task]
    assert (ended.state, ended.committed, ended.attempt) == ("completed", 60, 2)
    (rolled,) = hub.facts("RolledBack")
    assert (rolled.origin, rolled.to) == (60, recovered["steps"])


def test_offered_model_needs_the_generations_token(hub, trainees):
    given = {"world_size": 2, "steps": 10**6, "step_s": 0.02}
    first, second = (trainees(hub.address, "keep", worker_id=name, **given) for name in "ab")
    second.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 5)
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    trainees(hub.address, "keep", worker_id="b", **given)
    offered = until(
        lambda: [e.address for e in hub.state.tasks[TASK].entered.values() if e.address]
    )
    answer = httpx.get(f"http://{offered[0]}/model-3.json")
    assert answer.status_code == 403
    assert not answer.content
    assert first.process.poll() is None


def test_task_resumes_from_another_task_only_on_request(hub, trainees, tmp_path):
    given = {"world_size": 1, "checkpoint_every": 10}
    assert trainees(hub.address, "keep", worker_id="a", steps=20, **given).ends() == 0
    other = submit(hub, worker_count=1)
    plain = trainees(hub.address, "keep", worker_id="b", task=other, steps=5)
    assert plain.says("restored")["applied"] == 0
    third = submit(hub, worker_count=1)
    resumed = trainees(hub.address, "keep", worker_id="c", task=third, steps=5, from_=TASK)
    assert resumed.says("restored")["applied"] == 20
    fourth = submit(hub, worker_count=1)
    where = folder(hub, tmp_path) / "step-00000010-1"
    named = trainees(hub.address, "keep", worker_id="d", task=fourth, steps=5, from_=str(where))
    assert named.says("restored")["applied"] == 10
    assert len(listed(hub)) == 2


def test_resuming_another_tasks_checkpoint_keeps_the_scripts_own_seed(hub, trainees):
    saved = trainees(hub.address, "seeded", worker_id="a", seed=1, checkpoint_every=10)
    assert saved.ends() == 0
    other = submit(hub, worker_count=1)
    resumed = trainees(hub.address, "seeded", worker_id="b", task=other, seed=5, from_=TASK)
    expected = [random.Random(5).random(), np.random.RandomState(5).random_sample()]
    assert resumed.says("drew")["numbers"] == expected
    assert resumed.ends() == 0


def test_m_workers_restore_the_shards_of_n_workers(hub, trainees, tmp_path):
    task = submit(hub, worker_count=3, policy="continue", min_workers=2, model_state="sharded")
    given = {"task": task, "checkpoint_every": 5}
    saved = [
        trainees(hub.address, "shards", worker_id=name, steps=10**6, **given) for name in "abc"
    ]
    assert all(worker.says("restored")["exact"] for worker in saved)
    until(lambda: hub.state.tasks[task].committed > 12)
    for worker in saved:
        worker.kill()
    until(lambda: not hub.state.tasks[task].members)
    fewer = [
        trainees(hub.address, "shards", worker_id=name, steps=30, **given) for name in ("d", "e")
    ]
    for worker in fewer:
        restored = worker.says("restored")
        assert (restored["exact"], restored["bytes"], restored["world_size"]) == (True, 6_000, 2)
        assert restored["steps"] >= 10
        assert worker.ends() == 0
