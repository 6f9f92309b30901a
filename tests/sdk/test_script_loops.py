"""Scripts with several loops: epochs, alternating datasets, early stopping, replayed code.

The model counts every sample and a schedule every epoch, so they show at the end whether each was
applied exactly once, also if a worker was killed.
"""

from pathlib import Path

import pytest

from tests.sdk.harness import until

LOOPER = Path(__file__).with_name("looper.py")


@pytest.fixture
def loopers(hub, trainees):
    """Start workers of one task that run a scene: `loopers("per_epoch", "ab")`."""

    def start(scene, names, **given):
        size = {"world_size": len(names)} if "task" not in given else {}
        return [
            trainees(hub.address, scene, script=LOOPER, worker_id=name, **size, **given)
            for name in names
        ]

    return start


def test_loop_per_epoch_trains_every_epoch(loopers):
    pair = loopers("per_epoch", "ab")
    for worker in pair:
        done = worker.says("done")
        assert (done["steps"], done["schedule"]) == (15, 3)
        assert done["seen"] == [3.0] * 40
        epochs = [each for each in worker.said if each["say"] == "epoch"]
        assert [(each["number"], each["steps"], each["length"]) for each in epochs] == [
            (0, 5, 5),
            (1, 10, 5),
            (2, 15, 5),
        ]
        assert {each["score"] for each in epochs} == {4.5}


def test_loop_over_range_with_one_epoch_each_trains_every_epoch(loopers):
    done = loopers("plain_epochs", "a")[0].says("done")
    assert done["steps_after"] == [5, 10, 15]
    assert done["seen"] == [3.0] * 40


@pytest.mark.parametrize("die_at", [3, 5, 9])
def test_worker_that_joins_in_mid_training_resumes_there(hub, loopers, die_at):
    pair = loopers("per_epoch", "ab", die_at=die_at, step_s=0.02)
    for worker in pair:
        worker.says("joined")
    until(lambda: any(each.process.poll() is not None for each in pair), what="a kill")
    (heir,) = loopers("per_epoch", "c", task="default-1")
    survivor = next(each for each in pair if each.process.poll() is None)
    for worker in (survivor, heir):
        done = worker.says("done")
        assert (done["steps"], done["schedule"], done["seen"]) == (15, 3, [3.0] * 40)
    assert {each["say"] for each in survivor.said} <= {
        "joined",
        "epoch",
        "not applied",
        "done",
        "left",
    }
    assert [each["number"] for each in survivor.said if each["say"] == "not applied"] == [die_at]
    first = next(each["number"] for each in heir.said if each["say"] == "epoch")
    assert first == die_at // 5 or die_at % 5 == 0


def test_schedule_is_restored_after_all_workers_are_killed(hub, loopers):
    pair = loopers("per_epoch", "ab", save_after=1, epochs=200, step_s=0.01)
    until(lambda: hub.facts("CheckpointCommitted"), what="a checkpoint")
    for worker in pair:
        worker.kill()
    until(lambda: not hub.state.tasks["default-1"].members, what="the loss of everyone")
    heirs = loopers("per_epoch", "cd", task="default-1", epochs=4)
    for worker in heirs:
        done = worker.says("done")
        assert (done["steps"], done["schedule"], done["seen"]) == (20, 4, [4.0] * 40)


def test_peek_returns_a_batch_without_opening_a_loop(hub, loopers):
    pair = loopers("look_first", "ab", how="peek", die_at=7)
    looked = [worker.says("looked")["batches"] for worker in pair]
    until(lambda: hub.facts("WorkerLost"), what="a kill")
    (heir,) = loopers("look_first", "c", task="default-1", how="peek")
    assert heir.says("looked")["batches"] in looked, "the same in a process that resumes"
    survivor = next(each for each in pair if each.process.poll() is None)
    for worker in (survivor, heir):
        done = worker.says("done")
        assert (done["seen"], done["schedule"]) == ([3.0] * 40, 3)
    assert {fact.loop for fact in hub.facts("LoopOpened")} == {"0.0.0", "0.1.0", "0.2.0"}


def test_batch_taken_from_a_dropped_loop_is_an_error(loopers):
    """In a process that resumes the run that loop would be empty."""
    (worker,) = loopers("look_first", "a", how="next")
    refused = worker.says("refused")
    assert "after one batch, without a step" in refused["message"]
    assert "peek()" in refused["message"]


def test_loop_left_before_its_first_step_is_allowed(loopers):
    (worker,) = loopers("leave_at_once", "a")
    assert worker.says("done")["seen"] == [1.0] * 40


def test_alternating_datasets_continue_where_they_ended(loopers):
    for worker in loopers("two_phases", "ab"):
        done = worker.says("done")
        assert worker.says("first")["steps"] == 5
        assert worker.says("second")["steps"] == 15
        assert done["steps"] == 20
        assert done["seen"] == [3.0] * 40 + [1.0] * 160, "200 once, and 40 of them twice more"


@pytest.mark.parametrize("die_at", [2, 8, 17])
def test_worker_that_joins_in_any_phase_resumes_there(loopers, die_at):
    pair = loopers("two_phases", "ab", die_at=die_at, step_s=0.02)
    for worker in pair:
        worker.says("joined")
    until(lambda: any(each.process.poll() is not None for each in pair), what="a kill")
    (heir,) = loopers("two_phases", "c", task="default-1")
    survivor = next(each for each in pair if each.process.poll() is None)
    for worker in (survivor, heir):
        assert worker.says("done")["seen"] == [3.0] * 40 + [1.0] * 160


def test_workers_leave_a_loop_together(hub, loopers):
    pair = loopers("stop_early", "ab")
    done = [worker.says("done") for worker in pair]
    assert {each["steps"] for each in done} == {12}
    assert {each["total"] for each in done} == {12 * 8.0}
    assert {fact.step for fact in hub.facts("LoopLeft")} == {12}
    assert [worker.ends() for worker in pair] == [0, 0]


def test_worker_lost_after_the_loop_was_left_does_not_train_it_again(hub, loopers):
    pair = loopers("stop_early", "ab", die_after=True)
    until(lambda: any(each.process.poll() is not None for each in pair), what="a kill")
    survivor = next(each for each in pair if each.process.poll() is None)
    done = survivor.says("done")
    assert (done["steps"], done["total"], done["score"]) == (12, 12 * 8.0, 4.5)
    assert survivor.ends() == 0
    assert hub.state.tasks["default-1"].state == "completed"


def test_leaving_a_loop_on_one_worker_alone_is_an_error(hub, loopers):
    pair = loopers("stop_early", "ab", alone=True)
    until(lambda: any(each.process.poll() is not None for each in pair), what="an error")
    failed = next(each for each in pair if each.process.poll() is not None)
    assert failed.ends() == 1
    assert "different collectives" in failed.story() or "left this loop" in failed.story()


def test_stop_from_one_worker_ends_all_loops_and_nothing_after_them_runs(hub, loopers):
    pair = loopers("stop_all", "ab")
    for worker in pair:
        worker.says("left")
        assert not [each for each in worker.said if each["say"] == "after the loop"]
    changes = hub.facts("TaskStateChanged")
    assert [each.after for each in changes][-2:] == ["stopping", "stopped"]
    assert "good enough" in changes[-2].reason


def test_steps_without_an_exchange_are_an_error(loopers):
    for worker in loopers("each_alone", "ab"):
        assert worker.ends() == 1
        assert "exchanged nothing with the other 1 workers" in worker.story()


def test_loop_ended_by_an_error_is_not_reported_as_left(hub, loopers, tmp_path):
    how = {"marker": str(tmp_path / "failed"), "checkpoint_every": 2}
    (first,) = loopers("fail_once", "a", **how)
    assert first.ends() == 1
    assert not hub.facts("LoopLeft")
    (again,) = loopers("fail_once", "b", task="default-1", **how)
    assert again.says("done")["seen"] == [2.0] * 40


def test_loop_without_data_follows_the_membership(hub, loopers):
    (one,) = loopers("steps_alone", "a", steps=40)
    one.says("joined")
    (two,) = loopers("steps_alone", "b", steps=40, task="default-1")
    for worker in (one, two):
        assert worker.says("done")["total"] == 40.0


def test_repeated_code_that_changes_the_restored_state_is_an_error(hub, loopers):
    (first,) = loopers("schedule_after_restore", "a", checkpoint_every=3)
    until(lambda: hub.facts("CheckpointCommitted"), what="a checkpoint")
    first.kill()
    until(lambda: not hub.state.tasks["default-1"].members, what="its loss")
    (heir,) = loopers("schedule_after_restore", "b", task="default-1")
    refused = heir.says("refused")
    assert "state.schedule.count" in refused["message"] or "schedule.count" in refused["message"]
