"""The task of a registering worker, above all of one that names none."""

import pytest

from strata.core.tasks.placement import StopTask
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.tasks.task_queue import Queue
from strata.errors import NotAllowedNow, NotFound
from tests.core.world import World


def test_worker_that_names_no_task_joins_the_one_that_waits():
    world = World()
    task = world.submit(2)
    for name in "ab":
        assert world.register(name).worker.task == task.id
    assert (task.members, list(world.state.tasks)) == (["a", "b"], [task.id])


def test_worker_without_a_name_or_id_joins_too_and_gets_an_id():
    world = World()
    task = world.submit(2)
    ids = [world.register().id for _ in range(2)]
    assert ids == task.members == ["worker-1", "worker-2"]


def test_several_waiting_tasks_are_named_in_the_refusal():
    world = World()
    first, second = world.submit(2, name="first"), world.submit(3, name="second")
    with pytest.raises(NotAllowedNow) as refused:
        world.register("a")
    assert first.id in refused.value.message
    assert second.id in refused.value.message
    assert "STRATA_TASK" in refused.value.hint
    assert "a" not in world.state.workers


def test_many_waiting_tasks_are_not_all_named():
    world = World()
    for number in range(9):
        world.submit(2, name=f"task{number}")
    with pytest.raises(NotAllowedNow, match=r"9 tasks wait .* and 4 more"):
        world.register("a")


def test_world_size_tells_waiting_tasks_apart():
    world = World()
    world.submit(2, name="first")
    second = world.submit(3, name="second")
    assert world.register("a", world_size=3).worker.task == second.id


def test_world_size_that_no_waiting_task_has_is_refused():
    world = World()
    task = world.submit(3)
    with pytest.raises(NotAllowedNow, match="one of 2") as refused:
        world.register("a", world_size=2)
    assert task.id in refused.value.message


def test_extra_worker_waits_as_a_spare_and_replaces_a_lost_one():
    world = World()
    task = world.submit(2, policy="replace")
    a, _b = world.join(task, "a", "b")
    world.sync(task)
    spare = world.register("c")
    assert (spare.worker.task, task.members, task.waiting) == (task.id, ["a", "b"], ["c"])
    a.lost()
    assert (sorted(task.members), task.phase) == (["b", "c"], "syncing")


def test_lost_spare_does_not_fail_a_task_that_stops_after_a_loss():
    world = World()
    task = world.submit(1, policy="stop")
    world.join(task, "a")
    world.sync(task)
    world.register("b").lost()
    assert (task.state, task.members) == ("running", ["a"])


def test_spare_of_several_full_tasks_has_to_name_one():
    world = World()
    for name in ("first", "second"):
        world.join(world.submit(1, name=name), name)
    with pytest.raises(NotAllowedNow, match="2 tasks run and have all their workers"):
        world.register("a")


def test_workers_of_a_stated_number_form_a_task_of_their_own_beside_a_full_one():
    world = World()
    world.join(world.submit(2), "a", "b")
    assert world.register("c", world_size=2).worker.task == "default-2"


def test_returning_worker_belongs_to_its_task_though_other_tasks_wait():
    world = World()
    task = world.submit(2, name="first", policy="continue")
    a, _b = world.join(task, "a", "b")
    world.sync(task)
    world.submit(2, name="second")
    a.lost()
    assert world.register("a").worker.task == task.id
    assert sorted(task.members) == ["a", "b"]


def test_worker_of_a_task_that_has_ended_joins_the_one_that_waits():
    world = World()
    first = world.submit(1, name="first")
    (a,) = world.join(first, "a")
    world.sync(first)
    a.leave("done")
    assert first.ended
    second = world.submit(1, name="second")
    assert world.register("a").worker.task == second.id


def test_stopping_task_takes_no_workers():
    world = World()
    stopping = world.submit(2, name="first")
    world.join(stopping, "a")
    world.do(StopTask(task=stopping.id))
    second = world.submit(2, name="second")
    assert world.register("b").worker.task == second.id


def test_crashed_shared_task_does_not_stand_in_the_way_of_a_submitted_one():
    world = World()
    world.register("a").lost()
    task = world.submit(2)
    assert world.register("b").worker.task == task.id


def test_shared_task_that_is_still_forming_keeps_its_workers():
    world = World()
    shared = world.register("a", world_size=2).worker.task
    world.submit(3)
    assert world.register("b", world_size=2).worker.task == shared
    world.peers["b"].lost()
    with pytest.raises(NotAllowedNow, match="2 tasks wait"):
        world.register("c")


def test_named_task_has_to_exist():
    with pytest.raises(NotFound):
        World().register("a", task="nothing-1")


@pytest.mark.parametrize("syncs", [True, False])
def test_workers_of_the_other_kind_are_refused(syncs):
    """One that never enters a generation would make the others wait for ever."""
    world = World()
    task = world.submit(2)
    world.register("a", task=task.id, syncs=syncs)
    with pytest.raises(NotAllowedNow, match=r"strata\.join|TrainingOrchestrator"):
        world.register("b", task=task.id, syncs=not syncs)
    assert world.register("b", syncs=not syncs).worker.task == "default-2"


def test_kind_is_decided_again_if_the_first_worker_was_lost_before_the_start():
    world = World()
    task = world.submit(2)
    world.register("a", task=task.id, syncs=False).lost()
    for name in "bc":
        world.register(name, syncs=True)
    assert task.syncs
    world.sync(task)


def test_task_without_generations_continues_with_fewer():
    world = World()
    task = world.submit(3, policy="continue")
    a, b, _c = [world.register(name, syncs=False) for name in "abc"]
    assert (task.state, task.syncs) == ("running", False)
    b.lost()
    assert (task.phase, sorted(task.members)) == ("syncing", ["a", "c"])
    a.leave("done")
    world.peers["c"].leave("done")
    assert task.state == "completed"


@pytest.mark.parametrize("syncs", [True, False])
def test_default_task_continues_with_fewer(syncs):
    world = World()
    peers = [world.register(name, syncs=syncs) for name in "abc"]
    task = world.state.tasks["default-1"]
    peers[0].lost()
    assert (task.phase, sorted(task.members)) == ("syncing", ["b", "c"])


def test_default_task_with_a_world_size_waits_with_a_reason():
    world = World()
    peers = [world.register(name, world_size=3) for name in "abc"]
    task = world.state.tasks["default-1"]
    world.sync(task)
    peers[0].lost()
    assert (task.phase, sorted(task.members)) == ("forming", ["b", "c"])
    assert "start 1 more" in Queue(world.state).waiting_for(task)


def test_waiting_task_names_the_number_of_workers_to_start():
    world = World()
    task = world.submit(3, policy="replace")
    assert Queue(world.state).waiting_for(task) == (
        "0 of 3 workers are here: start 3 more with STRATA_TASK=demo-1"
    )
    a, _b, _c = world.join(task, "a", "b", "c")
    assert Queue(world.state).waiting_for(task) == ""
    world.sync(task)
    a.lost()
    assert Queue(world.state).waiting_for(task) == (
        "2 of 3 workers are here: start 1 more with STRATA_TASK=demo-1"
    )
    assert task.state == "recovering"


def test_task_whose_workers_never_came_can_be_stopped():
    world = World()
    task = world.submit(3)
    world.do(StopTask(task=task.id))
    assert task.state == "stopped"
    assert world.new(TaskStateChanged)[-1].reason == "asked to stop; it had no workers"
