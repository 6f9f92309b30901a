"""Spare workers: they wait, replace a lost worker in the same turn, and are replaced themselves."""

import pytest

from strata.core.generations.generation_members import GenerationChanged
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.tasks.task_queue import Queue
from strata.errors import InvalidArgument
from tests.core.world import World


def training(workers=2, spares=1, **spec):
    world = World()
    world.agent("a", workers + spares)
    task = world.submit(workers, external=False, spares=spares, **spec)
    world.start(task)
    world.sync(task)
    return world, task


def test_spares_join_and_wait_without_a_rank():
    world, task = training(2, 1)
    assert (len(task.members), task.waiting) == (2, ["demo-1-w2"])
    assert world.peers["demo-1-w2"].worker.rank == -1
    assert task.state == "running"


def test_task_waits_for_the_slots_of_its_spares_too():
    world = World()
    world.agent("a", 2)
    task = world.submit(2, external=False, spares=1)
    assert Queue(world.state).waiting_for(task) == (
        "1st in the queue; needs 3 slots, 2 of 2 are free"
    )


def test_spare_takes_the_rank_of_a_lost_worker_at_once():
    world, task = training(2, 1)
    victim = task.members[1]
    world.exit(task, victim, signal=9)
    changed = world.one(GenerationChanged)
    assert (changed.phase, changed.seats) == ("syncing", [(1, "demo-1-w2")])
    world.sync(task)
    assert task.state == "running"


def test_lost_one_is_started_again_and_is_the_next_spare():
    world, task = training(2, 1)
    victim = task.members[1]
    world.exit(task, victim, signal=9)
    assert list(world.one(TaskPlaced).placements) == [victim]
    world.sync(task)
    world.start(task)
    assert task.waiting == [victim]
    assert task.generation == 2


@pytest.mark.parametrize("policy", ["replace", "continue", "stop"])
def test_lost_spare_is_replaced_without_a_new_generation(policy):
    world, task = training(2, 1, policy=policy)
    (spare,) = task.waiting
    world.exit(task, spare, signal=9)
    assert (task.state, task.generation) == ("running", 1)
    assert list(world.one(TaskPlaced).placements) == [spare]
    world.start(task)
    assert task.waiting == [spare]


def test_task_that_continues_with_fewer_prefers_a_spare():
    world, task = training(2, 1, policy="continue")
    world.exit(task, task.members[0], signal=9)
    assert len(task.members) == 2


def test_spare_gets_no_rank_once_a_member_has_finished():
    world, task = training(3, 1)
    world.members(task)[0].leave("done")
    world.exit(task, task.members[1], signal=9)
    assert sorted(task.members) == ["demo-1-w2"]
    assert world.peers["demo-1-w0"].worker.done


def test_task_completes_when_its_members_have_finished():
    world, task = training(2, 2)
    for peer in world.members(task):
        peer.leave("done")
    assert (task.state, len(task.waiting)) == ("completed", 2)
    for spare in list(task.waiting):
        world.peers[spare].leave("stopped")
    assert task.state == "completed"


def test_negative_number_is_refused():
    with pytest.raises(InvalidArgument, match="spares"):
        World().submit(1, external=False, spares=-1)
