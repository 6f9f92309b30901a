"""The end of a task: completed when all workers have finished, stopped on request, and never stuck
because a worker is gone."""

import pytest

from strata.core.generations.recovery import RecoveryChosen, StepsCommitted
from strata.core.generations.recovery_failures import RefuseRecovery
from strata.core.tasks.placement import StopTask
from strata.core.tasks.standing import affected, standing
from strata.core.tasks.task_lifecycle import UNSAVED_EXIT_CODE, TaskPlaced, TaskStateChanged
from strata.core.workers.worker_lifecycle import DeregisterWorker, WorkerStateChanged
from strata.errors import NotAllowedNow, NotFound, TaskEnded
from tests.core.world import World


def running(workers=2, **spec):
    """A task whose workers a, b, c… train."""
    world = World()
    task = world.submit(workers, **spec)
    peers = world.join(task, *"abcdefgh"[:workers])
    if task.spec.syncs:
        world.sync(task)
        world.train(task, 10)
    return world, task, peers


def test_task_is_completed_when_the_last_worker_has_finished():
    _world, task, (a, b) = running()
    a.leave("done", steps=12)
    assert task.state == "running"
    b.leave("done", steps=12)
    assert (task.state, task.exit_code) == ("completed", 0)
    assert task.ended_ns > task.started_ns > 0


def test_refused_script_fails_its_task_at_once_unless_others_train():
    world = World()
    world.agent("host", slots=2)
    task = world.submit(2, external=False)
    a, _ = world.start(task)
    world.sync(task)
    a.leave("failed", reason="InvalidArgument: 2 tensors do not fit", refused=True)
    assert (task.state, task.exit_code) == ("failed", 1)
    assert task.reason.endswith("cannot train: InvalidArgument: 2 tensors do not fit")


def test_refused_replacement_is_started_again_while_others_hold_the_model():
    world = World()
    world.agent("host", slots=2)
    task = world.submit(2, external=False)
    a, _ = world.start(task)
    world.sync(task)
    world.train(task, 5)
    a.leave("failed", reason="InvalidArgument: 2 tensors do not fit", refused=True)
    assert not task.ended
    assert world.one(TaskPlaced).placements.keys() == {a.worker.id}


def test_failed_final_save_is_in_the_reason_and_the_exit_code_of_a_completed_task():
    _world, task, (a, b) = running()
    a.leave("done", steps=12, save_failure="no room on the disk")
    b.leave("done", steps=12, save_failure="rank 0 wrote no part")
    assert (task.state, task.exit_code) == ("completed", UNSAVED_EXIT_CODE)
    assert task.reason.endswith("final checkpoint failed: no room on the disk")


def test_failed_final_save_is_in_the_reason_of_a_stopped_task():
    world, task, (a, b) = running()
    world.do(StopTask(task=task.id))
    a.leave("stopped", save_failure="no room on the disk")
    b.leave("stopped")
    assert (task.state, "no room on the disk" in task.reason) == ("stopped", True)


def test_failed_save_of_a_preempted_worker_does_not_count_for_the_task():
    _world, task, (a, b) = running(policy="continue")
    a.leave("stopped", save_failure="no room on the disk")
    b.leave("done", steps=12)
    assert (task.state, task.exit_code) == ("completed", 0)


def test_later_checkpoint_makes_up_for_a_failed_final_save():
    world, task, (a, b, c) = running(3, policy="continue")
    a.leave("done", steps=12, save_failure="no room on the disk")
    c.lost()
    world.sync(task)
    world.save(task, 14)
    b.leave("done", steps=14)
    assert (task.state, task.exit_code) == ("completed", 0)


def test_finishing_worker_commits_the_last_steps():
    world, task, (a, b) = running()
    a.leave("done", steps=12)
    assert (world.one(StepsCommitted).first, task.committed) == (10, 12)
    b.leave("done", steps=12)
    assert world.new(StepsCommitted) == []


def test_worker_lost_after_the_others_finished_does_not_fail_the_task():
    _world, task, (a, b) = running()
    a.leave("done", steps=12)
    b.lost()
    assert (task.state, task.committed) == ("completed", 12)


def test_loss_while_others_still_train_is_not_the_end():
    _world, task, (a, b, c) = running(3, policy="continue")
    a.leave("done", steps=12)
    c.lost()
    assert not task.ended
    b.leave("done", steps=12)
    assert task.state == "completed"


def test_worker_that_joins_at_the_end_does_not_restart_the_training():
    world, task, (a, b) = running(policy="continue")
    a.leave("done", steps=12)
    world.join(task, "late")
    assert (task.waiting, task.phase) == (["late"], "running")
    b.leave("done", steps=12)
    assert (task.state, task.committed) == ("completed", 12)


def test_worker_joins_at_the_end_if_a_sharded_model_needs_it():
    world, task, (a, b, _c) = running(3, policy="replace", model_state="sharded")
    a.leave("done", steps=12)
    b.lost()
    assert task.phase == "forming"
    world.join(task, "instead")
    assert "instead" in task.members


@pytest.mark.parametrize("policy", ["replace", "continue"])
def test_survivor_trains_the_last_steps_without_a_replacement(policy):
    world, task, (a, b, c) = running(3, policy=policy)
    a.leave("done", steps=12)
    b.lost()
    (late,) = world.join(task, "late")
    world.sync(task)
    assert (task.members, task.waiting) == (["c"], ["late"])
    c.leave("done", steps=12)
    assert (task.state, task.committed) == ("completed", 12)
    assert late.worker.rank == -1


def test_lost_worker_is_not_placed_again_once_another_has_finished():
    world = World()
    world.agent("host", 3)
    task = world.submit(3, external=False)
    a, b, _c = world.start(task)
    world.sync(task)
    world.train(task, 10)
    a.leave("done", steps=12)
    world.exit(task, b.id, code=137, signal=9)
    assert world.new(TaskPlaced) == []


@pytest.mark.parametrize("saved", [0, 10])
def test_replacement_that_joined_late_does_not_train_again_what_was_finished(saved):
    """The other worker has ended its loop and never enters the generation of the newcomer."""
    world, task, (a, b) = running(min_workers=1)
    if saved:
        world.save(task, saved)
    b.lost()
    world.sync(task)
    world.train(task, 11)
    again = b.again()
    again.enter()
    assert (task.phase, set(task.members)) == ("syncing", {"a", "b"})
    a.leave("done", steps=12)
    assert (task.state, task.committed, task.attempt) == ("completed", 12, 1)
    assert len(world.facts(RecoveryChosen)) == 2


def test_spare_does_not_train_again_what_was_finished():
    world = World()
    world.agent("host", 3)
    task = world.submit(2, external=False, spares=1)
    a, b, _spare = world.start(task)
    world.sync(task)
    world.train(task, 10)
    a.leave("done", steps=12)
    b.lost()
    assert (task.state, task.committed) == ("completed", 12)


def test_worker_whose_model_source_finished_does_not_start_again():
    world, task, (a, b) = running(min_workers=1)
    world.save(task, 10)
    b.lost()
    b = b.again()
    world.sync(task)
    assert task.recovery.worker == "a"
    a.leave("done", steps=12)
    assert not task.ended, "the newcomer may have fetched the model"
    world.do(
        RefuseRecovery(**b.me, generation=task.generation, reason="a cannot be reached: it left")
    )
    assert (task.state, task.committed) == ("completed", 12)


def test_worker_that_fails_after_the_others_finished_fails_the_task():
    _world, task, (a, b) = running()
    a.leave("done", steps=12)
    b.leave("failed", steps=12)
    assert (task.state, task.exit_code) == ("failed", 1)
    assert "worker b failed after a had finished" in task.reason


def test_worker_that_finishes_without_training_does_not_complete_the_task():
    _world, task, (a, b) = running(min_workers=1)
    a.lost()
    again = a.again()
    again.leave("done", steps=0)
    assert not task.ended
    b.enter()
    assert (task.recovery.source, task.recovery.step) == ("peer", 10)


def test_standing_names_the_step_at_which_members_finished():
    world, _task, (a, _b) = running()
    assert standing(world.state, "b").finished_step == -1
    a.leave("done", steps=12)
    assert standing(world.state, "b").finished_step == 12
    (left,) = [event for event in world.log if event.body is world.new(WorkerStateChanged)[0]]
    assert affected(world.state, [left]).workers == ["a", "b"]


def test_worker_that_leaves_before_the_start_does_not_complete_the_task():
    world = World()
    task = world.submit(3)
    a, _b = world.join(task, "a", "b")
    a.leave("done")
    assert not task.ended
    assert task.waiting == ["b"]


def test_spare_that_leaves_does_not_count_as_finished():
    world = World()
    world.agent("host", 1)
    task = world.submit(1, external=False)
    (w0,) = world.start(task)
    world.sync(task)
    (spare,) = world.join(task, "spare")
    spare.leave("done")
    w0.lost()
    assert task.state == "recovering"


def test_spare_that_leaves_commits_nothing():
    world = World()
    world.agent("host", 1)
    task = world.submit(1, external=False)
    world.start(task)
    world.sync(task)
    (spare,) = world.join(task, "spare")
    spare.leave("done", steps=99)
    assert task.committed == 0


def test_placed_task_without_generations_is_completed_too():
    world = World()
    world.agent("host", 2)
    task = world.submit(2, external=False, syncs=False)
    for peer in world.start(task):
        peer.leave("done")
    assert task.state == "completed"


def test_stopping_waits_for_the_workers_to_leave():
    world, task, (a, b) = running()
    world.do(StopTask(task=task.id, reason="enough"))
    assert (task.state, task.reason) == ("stopping", "enough")
    world.save(task, 10)
    a.leave("stopped")
    assert task.state == "stopping"
    b.leave("stopped")
    assert task.state == "stopped"


def test_stopping_twice_changes_nothing():
    world, task, (a, b) = running()
    for _ in range(2):
        world.do(StopTask(task=task.id))
    assert world.last == []
    a.leave("stopped")
    b.leave("stopped")
    world.do(StopTask(task=task.id))
    assert (world.last, task.state) == ([], "stopped")


def test_queued_task_and_one_without_workers_stop_at_once():
    world = World()
    queued, empty = world.submit(1, external=False), world.submit(1)
    for task in (queued, empty):
        assert world.do(StopTask(task=task.id)).state == "stopped"
    with pytest.raises(NotFound):
        world.do(StopTask(task="none"))


def test_workers_that_still_wait_leave_a_task_that_stops():
    world = World()
    task = world.submit(2)
    (a,) = world.join(task, "a")
    world.do(StopTask(task=task.id))
    assert task.state == "stopping"
    a.leave("stopped")
    assert task.state == "stopped"


def test_stopping_task_does_not_wait_for_a_lost_worker():
    world, task, (a, b) = running()
    world.do(StopTask(task=task.id))
    a.leave("stopped")
    b.lost()
    assert task.state == "stopped"


def test_others_recover_while_the_task_stops():
    """A save on the way out needs a generation that trains."""
    world, task, (a, _b) = running(policy="continue")
    world.do(StopTask(task=task.id))
    a.lost()
    world.sync(task)
    assert world.new(RecoveryChosen)
    assert task.state == "stopping"


def test_task_stops_when_some_finished_and_the_rest_were_told_to():
    world, task, (a, b) = running()
    a.leave("done", steps=12)
    world.do(StopTask(task=task.id))
    b.leave("stopped")
    assert task.state == "stopped"


def test_worker_that_finishes_while_the_task_stops_ends_it_as_stopped():
    world, task, (a, b) = running()
    world.do(StopTask(task=task.id))
    a.leave("done", steps=11)
    b.leave("done", steps=11)
    assert task.state == "stopped"


def test_task_ends_once():
    world, task, (a, b) = running(policy="stop")
    a.lost()
    assert task.state == "failed"
    b.leave("done")
    ends = [fact.after for fact in world.facts(TaskStateChanged)]
    assert ends == ["starting", "running", "recovering", "failed"]


def test_task_that_ended_holds_no_slots():
    world = World()
    world.agent("host", 2)
    task = world.submit(2, external=False, policy="stop")
    waiting = world.submit(2, external=False)
    world.start(task)
    world.sync(task)
    world.exit(task, task.members[0])
    assert (task.state, task.placements, task.vacant) == ("failed", {}, [])
    assert waiting.state == "starting"


def test_process_that_joins_a_completed_task_is_told_that_it_ended():
    world, task, (a, b) = running()
    for peer in (a, b):
        peer.leave("done", steps=12)
    with pytest.raises(TaskEnded, match="is completed"):
        world.join(task, "late")


def test_process_that_joins_a_failed_task_is_refused():
    world, task, (a, _b) = running(policy="stop")
    a.lost()
    with pytest.raises(NotAllowedNow, match="is failed") as refused:
        world.join(task, "late")
    assert not isinstance(refused.value, TaskEnded)


def test_task_whose_only_worker_was_interrupted_is_stopped_not_completed():
    world, task, (a,) = running(1)
    world.do(DeregisterWorker(**a.me, outcome="stopped", reason="interrupted"))
    assert (task.state, task.reason) == ("stopped", "every worker left: interrupted")


@pytest.mark.parametrize("syncs", [True, False])
def test_task_whose_workers_were_all_told_to_stop_is_stopped_and_not_completed(syncs):
    world = World()
    task = world.submit(2)
    peers = [world.register(name, syncs=syncs) for name in "ab"]
    if syncs:
        world.sync(task)
    for peer in peers:
        peer.leave("stopped")
    assert (task.state, task.reason) == ("stopped", "every worker left: it was told to stop")
