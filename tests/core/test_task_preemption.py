"""Preemption of tasks: lower priorities save, wait in the queue, and continue by themselves."""

import pytest

from strata.core.checkpoints.checkpoint_commits import FailCheckpoint
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.invariants import broken
from strata.core.tasks.placement import StopTask
from strata.core.tasks.preemption import TaskPreempted
from strata.core.tasks.standing import affected, duties
from strata.core.tasks.task_lifecycle import TaskPlaced, TaskStateChanged
from strata.core.tasks.task_queue import Queue
from strata.errors import Fenced, NotAllowedNow
from tests.core.test_replacement import running
from tests.core.test_scheduling import hosts, placed


def low(world, workers=1, **spec):
    """A preemptible task that trains."""
    task = placed(world, workers, **{"preemptible": True, **spec})
    world.start(task)
    world.sync(task)
    return task


def high(world, workers=1, priority=1):
    return placed(world, workers, priority=priority)


def leave(world, task):
    """All workers of a task save and leave, as they do when they are told to stop."""
    for peer in world.members(task):
        peer.leave("stopped")


def preempted(world):
    return [fact.task for fact in world.new(TaskPreempted)]


def completed(world, task):
    world.start(task)
    world.sync(task)
    for peer in world.members(task):
        peer.leave("done")
    assert task.state == "completed"


def test_preempted_task_saves_waits_and_continues_by_itself():
    world, task = running(2, preemptible=True)
    world.train(task, 10)
    by = high(world, 2)
    assert (task.state, task.reason) == ("stopping", f"preempted by {by.id}")
    world.save(task, 10, final=True)
    leave(world, task)
    assert (task.state, by.state) == ("queued", "starting")
    assert task.reason == f"preempted by {by.id}; every worker left"
    completed(world, by)
    assert (task.state, sorted(task.placements)) == (
        "starting",
        [f"{task.id}-w0", f"{task.id}-w1"],
    )
    before = task.generation
    world.start(task)
    world.sync(task)
    chosen = world.facts(RecoveryChosen)[-1]
    assert (chosen.source, chosen.step) == ("checkpoint", 10)
    assert (task.state, task.committed, task.attempt) == ("running", 10, 1)
    assert task.generation > before
    world.train(task, 20)
    for peer in world.members(task):
        peer.leave("done", steps=20)
    assert (task.state, task.exit_code, broken(world.state)) == ("completed", 0, [])


def test_reason_of_the_preemption_leads_back_to_the_submission():
    world = hosts(a=1)
    task = low(world)
    by = high(world)
    fact = world.one(TaskPreempted)
    assert (fact.task, fact.preemptor, fact.reason) == (
        task.id,
        by.id,
        "priority 1 is higher than 0",
    )
    assert world.log[int(world.event(fact).cause[0][1:])].body.task == by.id


@pytest.mark.parametrize("spec", [{"preemptible": False}, {"priority": 1}, {"priority": 2}])
def test_only_preemptible_tasks_of_lower_priority_are_preempted(spec):
    world = hosts(a=1)
    task = low(world, **spec)
    by = high(world)
    assert (task.state, by.state) == ("running", "queued")


def test_no_task_is_preempted_if_that_is_not_enough():
    world = hosts(a=2)
    task, _other = low(world), low(world, preemptible=False)
    assert (high(world, 2).state, task.state) == ("queued", "running")


def test_no_task_is_preempted_if_the_slots_are_free():
    world = hosts(a=2)
    task = low(world)
    assert (high(world).state, task.state) == ("starting", "running")


def test_free_slots_are_counted_first():
    world = hosts(a=4)
    first, second = low(world), low(world)
    high(world, 3)
    assert (first.state, second.state, preempted(world)) == ("running", "stopping", [second.id])


def test_slots_of_tasks_that_are_stopping_are_counted_first():
    world = hosts(a=2)
    first, second = low(world), low(world)
    world.do(StopTask(task=first.id))
    by = high(world)
    assert (by.state, second.state) == ("queued", "running")
    leave(world, first)
    assert (first.state, by.state, second.state) == ("stopped", "starting", "running")


def test_another_task_in_line_does_not_preempt_for_slots_that_are_promised():
    world = hosts(a=2)
    first, second = low(world), low(world)
    high(world, priority=2)
    assert preempted(world) == [second.id]
    high(world, priority=3)
    assert preempted(world) == []
    leave(world, second)
    assert preempted(world) == [first.id]


def test_lowest_priority_is_preempted_first():
    world = hosts(a=2)
    lowest, lower = low(world, priority=-2), low(world, priority=-1)
    high(world)
    assert (preempted(world), lower.state) == ([lowest.id], "running")


def test_of_equal_priority_the_task_that_began_last_is_preempted():
    world = hosts(a=2)
    first, last = low(world), low(world)
    high(world)
    assert (preempted(world), first.state) == ([last.id], "running")


def test_as_few_workers_as_possible_are_preempted():
    world = hosts(a=6)
    small, _large, _medium = low(world, 1), low(world, 3), low(world, 2)
    high(world, 1)
    assert preempted(world) == [small.id]


def test_two_small_tasks_are_preempted_rather_than_a_large_one():
    world = hosts(a=5)
    one, two, _large = low(world, 1), low(world, 1), low(world, 3)
    high(world, 2)
    assert sorted(preempted(world)) == sorted([one.id, two.id])


def test_higher_of_the_lower_priorities_is_preempted_if_the_lowest_are_not_enough():
    world = hosts(a=4)
    lowest, lower = low(world, 1, priority=-2), low(world, 3, priority=-1)
    high(world, 3)
    assert (preempted(world), lowest.state) == ([lower.id], "running")


def test_preempted_task_without_workers_makes_room_at_once():
    world = hosts(a=1)
    task = placed(world, preemptible=True)
    by = high(world)
    assert (task.state, by.state, task.placements) == ("queued", "starting", {})
    assert task.reason == f"preempted by {by.id}; it had no workers"


def test_task_is_preempted_while_its_workers_register():
    world = hosts(a=2)
    task = placed(world, 2, preemptible=True)
    (peer,) = world.join(task, f"{task.id}-w0")
    by = high(world, 2)
    assert (task.state, by.state) == ("stopping", "queued")
    peer.leave("stopped")
    assert (task.state, by.state) == ("queued", "starting")


def test_task_is_preempted_while_it_recovers():
    world = hosts(a=2)
    task = low(world, 2)
    world.members(task)[0].lost()
    assert task.state == "recovering"
    by = high(world, 2)
    assert task.state == "stopping"
    leave(world, task)
    assert (task.state, by.state) == ("queued", "starting")


def test_task_that_the_user_stopped_is_not_preempted():
    world = hosts(a=1)
    task = low(world)
    world.do(StopTask(task=task.id))
    high(world)
    leave(world, task)
    assert (task.state, task.exit_code) == ("stopped", 130)


def test_user_can_stop_a_task_that_is_being_preempted():
    world = hosts(a=1)
    task = low(world)
    by = high(world)
    world.do(StopTask(task=task.id, reason="asked"))
    world.do(StopTask(task=task.id, reason="asked again"))
    assert len(world.new(TaskStateChanged)) == 0
    leave(world, task)
    assert (task.state, task.reason, task.exit_code) == (
        "stopped",
        "asked; every worker left",
        130,
    )
    assert by.state == "starting"


def test_user_can_stop_a_preempted_task_that_waits():
    world = hosts(a=1)
    task = low(world)
    high(world)
    leave(world, task)
    world.do(StopTask(task=task.id))
    assert (task.state, task.exit_code) == ("stopped", 130)


def test_worker_that_dies_during_the_last_save_does_not_end_a_preempted_task():
    world, task = running(2, preemptible=True)
    world.train(task, 5)
    world.save(task, 5)
    world.train(task, 9)
    by = high(world, 2)
    dying, other = world.members(task)
    dying.begin(9, final=True)
    dying.lost()
    assert task.state == "stopping"
    other.leave("stopped", save_failure="the checkpoint lacks a part")
    assert (task.state, task.save_failure) == ("queued", "")
    assert task.reason == (
        f"preempted by {by.id}; every worker left, "
        "final checkpoint failed: the checkpoint lacks a part"
    )
    completed(world, by)
    world.start(task)
    world.sync(task)
    rollback = world.facts(RolledBack)[-1]
    assert (rollback.origin, rollback.to, task.attempt) == (9, 5, 2)
    for peer in world.members(task):
        peer.leave("done", steps=20)
    assert (task.state, task.exit_code) == ("completed", 0)


def test_preempted_task_whose_checkpoints_are_gone_fails_instead_of_starting_at_step_0():
    world = hosts(a=1)
    task = low(world)
    world.train(task, 5)
    saved = world.save(task, 5)
    completed(world, _waited(world, task))
    world.do(FailCheckpoint(task=task.id, checkpoint=saved.id, reason="wrong", damaged=True))
    world.start(task)[0].enter()
    assert (task.state, task.exit_code) == ("failed", 1)
    assert "no checkpoint can be restored" in task.reason


@pytest.mark.parametrize("policy", ["replace", "continue", "stop"])
def test_last_worker_that_is_lost_leaves_a_preempted_task_queued(policy):
    world = hosts(a=1)
    task = low(world, policy=policy)
    by = high(world)
    world.exit(task, task.members[0], code=-9, signal=9)
    assert (task.state, by.state) == ("queued", "starting")


def test_host_that_is_lost_while_its_task_is_preempted():
    world = hosts(a=1)
    task = low(world)
    by = high(world)
    world.lose_agent("a")
    assert (task.state, by.state) == ("queued", "queued")
    world.agent("b", 2)
    assert (by.state, task.state) == ("starting", "starting")


def test_task_whose_workers_have_finished_completes_instead_of_waiting():
    world, task = running(2, preemptible=True)
    first, second = world.members(task)
    high(world, 2)
    first.leave("done", steps=5)
    second.leave("stopped")
    assert (task.state, task.exit_code, task.finished_step) == ("completed", 0, 5)


def test_task_that_has_begun_to_finish_is_not_preempted():
    world, task = running(2, preemptible=True)
    first, second = world.members(task)
    first.leave("done", steps=5)
    by = high(world, 2)
    assert (task.state, preempted(world)) == ("running", [])
    second.leave("done", steps=5)
    assert (task.state, by.state) == ("completed", "starting")


def test_preempted_task_keeps_its_place_by_its_submission():
    world = hosts(a=1)
    task = low(world)
    later = placed(world)
    by = high(world)
    leave(world, task)
    assert Queue(world.state).order == [task.id, later.id]
    completed(world, by)
    assert (task.state, later.state) == ("starting", "queued")


def test_preempted_task_does_not_wait_again_for_tasks_that_were_before_it():
    world = hosts(a=1)
    first = placed(world)
    completed(world, first)
    task = low(world, after=[first.id])
    by = high(world)
    leave(world, task)
    del world.state.tasks[first.id]  # as after many more ended tasks
    assert Queue(world.state).waiting_for(task).startswith("1st in the queue; needs 1 slot")
    assert by.state == "starting"


def test_process_of_an_earlier_start_can_neither_join_nor_end_the_next_one():
    world = hosts(a=1)
    task = low(world)
    worker = task.members[0]
    by = high(world)
    leave(world, task)
    with pytest.raises(NotAllowedNow, match="still waits for slots"):
        world.register(worker, task=task.id, start=1)
    completed(world, by)
    assert [place.start for place in task.placements.values()] == [2]
    with pytest.raises(Fenced, match="start 2 has replaced it"):
        world.register(worker, task=task.id, start=1)
    assert world.start(task)[0].worker.alive


def test_worker_that_fails_after_a_preemption_counts_from_one():
    world = hosts(a=1)
    task = low(world, max_restarts=1)
    world.train(task, 5)
    completed(world, _waited(world, task))
    world.exit(task, f"{task.id}-w0", code=1)
    assert task.state == "starting"
    (again,) = world.one(TaskPlaced).placements.values()
    assert (again.start, again.fruitless, again.causes) == (3, 1, {"not joined": 1})
    world.exit(task, f"{task.id}-w0", code=1)
    assert (task.state, task.exit_code) == ("failed", 93)


def _waited(world, task):
    """Preempt a task; the task that took its slots."""
    by = high(world)
    leave(world, task)
    assert (task.state, by.state) == ("queued", "starting")
    return by


def test_agents_learn_that_a_preempted_task_needs_no_workers():
    world = hosts(a=2, b=1)
    task, _other = low(world, 2), low(world, 1, preemptible=False)
    by = high(world, 2)
    last = world.members(task)
    last[0].leave("stopped")
    before = len(world.log)
    last[1].leave("stopped")
    assert "a" in affected(world.state, world.log[before:]).agents
    assert {duty.task for duty in duties(world.state, "a")} & {task.id} == set()
    assert by.state == "starting"


def test_task_that_preempts_says_so():
    world = hosts(a=1)
    task = low(world)
    by = high(world)
    assert Queue(world.state).waiting_for(by) == (
        f"1st in the queue, preempts {task.id}; needs 1 slot, 0 of 1 are free"
    )


def test_preempted_task_survives_a_restart_of_the_coordinator():
    world = hosts(a=1)
    task = low(world)
    by = high(world)
    world.restart()
    leave(world, task)
    tasks = world.state.tasks
    assert (tasks[task.id].state, tasks[by.id].state) == ("queued", "starting")
