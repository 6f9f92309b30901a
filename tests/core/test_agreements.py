"""Shared decisions of workers: every member gets one value, and all leave a loop at one step."""

import pytest

from strata.core.barriers.agreements import AgreeOnValue, LeaveLoop, LoopLeft, ValueAgreed
from strata.core.tasks.placement import StopRun, StopTask
from strata.core.tasks.standing import standing
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.errors import Conflict, Fenced, InvalidArgument, NotAllowedNow
from tests.core.world import World


def running(workers="ab", **spec):
    world = World()
    task = world.submit(len(workers), policy="continue", **spec)
    world.join(task, *workers)
    world.sync(task)
    return world, task


def test_every_member_gets_the_value_of_rank_0():
    world, task = running()
    a, b = world.members(task)
    with pytest.raises(NotAllowedNow, match="has not sent the value"):
        world.do(AgreeOnValue(**b.me, key="k", step=3, value="2"))
    assert world.do(AgreeOnValue(**a.me, key="k", step=3, value="1")) == "1"
    assert world.do(AgreeOnValue(**b.me, key="k", step=3, value="2")) == "1"
    assert len(world.facts(ValueAgreed)) == 1
    assert standing(world.state, "b").agreed == 1


def test_value_survives_the_loss_of_rank_0():
    world, task = running()
    a, b = world.members(task)
    world.do(AgreeOnValue(**a.me, key="k", step=3, value="1"))
    a.lost()
    world.sync(task)
    assert world.do(AgreeOnValue(**b.me, key="k", step=3, value="2")) == "1"


def test_survivor_sets_the_value_while_the_membership_changes():
    """The new rank 0 may be a replacement that waits for the survivors."""
    world, task = running("abc")
    a, b, c = world.members(task)
    a.lost()
    assert world.do(AgreeOnValue(**c.me, key="k", step=3, value="2")) == "2"
    assert world.do(AgreeOnValue(**b.me, key="k", step=3, value="3")) == "2"


def test_values_of_rolled_back_steps_are_dropped():
    world, task = running()
    a, _ = world.members(task)
    world.save(task, 2)
    world.do(AgreeOnValue(**a.me, key="before", step=2, value="1"))
    world.do(AgreeOnValue(**a.me, key="after", step=5, value="1"))
    world.do(LeaveLoop(**a.me, loop="0", step=5))
    world.train(task, 5)
    for worker in "ab":
        world.peers[worker].lost()
    world.join(task, "c", "d")
    world.sync(task)
    again = world.state.tasks[task.id]
    assert (list(again.agreements), again.loop_exit) == (["before"], None)


def test_empty_and_huge_values_are_refused():
    world, task = running()
    a, _ = world.members(task)
    for value in ("", "x" * 100_000):
        with pytest.raises(InvalidArgument, match="characters"):
            world.do(AgreeOnValue(**a.me, key="k", step=0, value=value))


def test_loop_is_left_by_all_at_the_same_step():
    world, task = running()
    a, b = world.members(task)
    world.do(LeaveLoop(**a.me, loop="0", step=30))
    world.do(LeaveLoop(**b.me, loop="0", step=30))
    assert len(world.facts(LoopLeft)) == 1
    assert standing(world.state, "b").loop_exit.step == 30
    world.do(LeaveLoop(**a.me, loop="1", step=40))
    with pytest.raises(Conflict, match=r"after step 40, and worker 'b' after step 41"):
        world.do(LeaveLoop(**b.me, loop="1", step=41))


def test_script_stops_its_task_and_a_lost_worker_cannot():
    world, task = running()
    a, b = world.members(task)
    a.lost()
    with pytest.raises(Fenced):
        world.do(StopRun(**a.me, reason="the loss is small enough"))
    world.do(StopRun(**b.me, reason="the loss is small enough"))
    (changed,) = world.new(TaskStateChanged)
    assert (changed.after, changed.reason) == ("stopping", "worker b: the loss is small enough")


def test_task_that_its_script_stopped_ends_cleanly_with_the_reason_of_the_stop():
    world, task = running()
    a, b = world.members(task)
    world.do(StopRun(**b.me, reason="the loss is small enough"))
    a.leave("stopped")
    b.leave("stopped")
    assert (task.state, task.exit_code) == ("stopped", 0)
    assert task.reason.startswith("worker b: the loss is small enough")


def test_task_that_was_stopped_from_outside_is_interrupted():
    world, task = running()
    a, b = world.members(task)
    world.do(StopTask(task=task.id, reason="asked to stop through the API"))
    a.leave("stopped")
    b.leave("stopped")
    assert (task.state, task.exit_code) == ("stopped", 130)
    assert task.reason.startswith("asked to stop through the API")
