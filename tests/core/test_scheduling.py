"""Placement: tasks in order of submission, all workers of a task at once, and why a task waits."""

import pytest

from strata.core.rule_settings import Rules
from strata.core.task_spec import TaskSpec
from strata.core.tasks.host_slots import free_slots
from strata.core.tasks.placement import (
    FailStart,
    StopTask,
    SubmitTask,
    unstarted,
)
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.tasks.task_queue import Queue
from strata.core.workers.host_agents import AgentLost, AgentRegistered, AgentSlotsChanged
from strata.errors import AlreadyExists, InvalidArgument, LimitExceeded, NotFound
from tests.core.world import World


def hosts(**slots):
    """A cluster of agents with that many slots."""
    world = World()
    for agent, count in slots.items():
        world.agent(agent, count)
    return world


def placed(world, workers=1, **spec):
    return world.submit(workers, external=False, **spec)


def agents_of(task):
    return sorted(placement.agent for placement in task.placements.values())


def test_task_that_fits_starts_at_once():
    world = hosts(a=2, b=2)
    task = placed(world, 3)
    assert task.state == "starting"
    assert len(task.placements) == 3
    assert agents_of(task) in (["a", "a", "b"], ["a", "b", "b"])
    assert all(placement.start == 1 for placement in task.placements.values())


def test_host_that_returns_with_more_slots_starts_waiting_workers():
    world = World()
    world.agent("a", 1, nonce="same")
    task = placed(world, 2)
    world.agent("a", 2, nonce="same")
    assert world.facts(AgentSlotsChanged) == [AgentSlotsChanged(agent="a", before=1, after=2)]
    assert (task.state, agents_of(task)) == ("starting", ["a", "a"])


def test_task_starts_as_a_gang_or_not_at_all():
    world = hosts(a=2)
    task = placed(world, 3)
    assert (task.state, task.placements) == ("queued", {})
    world.agent("b", 1)
    assert (task.state, agents_of(task)) == ("starting", ["a", "a", "b"])


def test_first_come_first_served_and_a_large_one_is_not_starved():
    world = hosts(a=2)
    large, small = placed(world, 3), placed(world, 1)
    assert (large.state, small.state) == ("queued", "queued")
    world.agent("b", 2)
    assert (large.state, small.state) == ("starting", "starting")


def test_lost_workers_that_wait_for_slots_say_so_too():
    world = hosts(a=2)
    task = placed(world, 2)
    world.start(task)
    assert Queue(world.state).waiting_for(task) == ""
    world.lose_agent("a")
    assert Queue(world.state).waiting_for(task) == ("its lost workers need 2 slots, no agent is up")
    world.agent("b", 1)
    assert Queue(world.state).waiting_for(task) == ("its lost workers need 1 slot, 0 of 1 are free")


def test_agent_that_returns_may_offer_another_number_of_slots():
    world = World()
    first = world.agent("a", 1, nonce="n")
    task = placed(world, 1)
    waiting = placed(world, 1)
    assert world.agent("a", 2, nonce="n").incarnation == first.incarnation
    assert (task.state, waiting.state) == ("starting", "starting")
    world.agent("a", 1, nonce="n")
    assert free_slots(world.state) == {"a": 0}
    assert len(waiting.placements) == 1


def test_next_starts_when_one_ends():
    world = hosts(a=1)
    first, second = placed(world), placed(world)
    (peer,) = world.start(first)
    world.sync(first)
    peer.leave("done")
    assert (first.state, second.state) == ("completed", "starting")


def test_stopping_the_first_queued_task_starts_the_next():
    world = hosts(a=1)
    large, small = placed(world, 2), placed(world, 1)
    world.do(StopTask(task=large.id))
    assert (large.state, small.state) == ("stopped", "starting")


def test_ids_of_tasks_are_never_repeated():
    world = World()
    ids = []
    for name in ("demo", "demo", "Demo 2", "demo/../x", "demo"):
        ids.append(world.submit(1, name=name).id)
        world.restart()
    assert len(set(ids)) == len(ids)
    assert all("/" not in task and " " not in task for task in ids)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"name": "  "}, "name"),
        ({"worker_count": 0}, "worker_count"),
        ({"worker_count": 11}, "worker_count"),
        ({"min_workers": -1}, "min_workers"),
        ({"min_workers": 3, "worker_count": 2}, "min_workers"),
    ],
)
def test_task_that_makes_no_sense_is_refused_by_name(wrong, named):
    world = World(Rules(max_workers=10))
    with pytest.raises(InvalidArgument, match=named):
        world.do(SubmitTask(spec=TaskSpec(**{"name": "demo", **wrong})))
    assert world.state.tasks == {}


def test_task_names_a_dataset_that_exists():
    with pytest.raises(NotFound, match="'d'"):
        World().submit(1, dataset_id="d")


def test_tasks_above_the_limit_are_refused():
    world = World(Rules(max_tasks=1))
    task = world.submit(1)
    with pytest.raises(LimitExceeded):
        world.submit(1)
    world.do(StopTask(task=task.id))
    assert world.submit(1).state == "starting"


def test_agent_names_itself_and_offers_something():
    world = World()
    for agent, slots in (("", 1), ("a", 0), ("a", -1)):
        with pytest.raises(InvalidArgument):
            world.agent(agent, slots)
    assert world.state.agents == {}


def test_name_of_a_living_agent_cannot_be_taken():
    world = World()
    first = world.agent("a", 1, nonce="n1")
    with pytest.raises(AlreadyExists):
        world.agent("a", 1, nonce="n2")
    assert world.agent("a", 1, nonce="n1").incarnation == first.incarnation
    assert len(world.facts(AgentRegistered)) == 1


def test_lost_agent_returns_as_a_higher_incarnation():
    world = World()
    first = world.agent("a", 1)
    world.lose_agent("a")
    assert (first.up, first.reason) == (False, "out of reach")
    assert world.agent("a", 1).incarnation > first.incarnation


def test_agent_is_lost_once():
    world = hosts(a=1)
    world.lose_agent("a")
    world.lose_agent("a")
    assert len(world.facts(AgentLost)) == 1


def test_nothing_is_placed_on_an_agent_that_is_gone():
    world = hosts(a=1)
    world.lose_agent("a")
    assert placed(world).state == "queued"


def test_external_tasks_take_no_slots():
    world = hosts(a=1)
    assert world.submit(5).state == "starting"
    assert world.facts(TaskPlaced) == []
    assert placed(world).state == "starting"


@pytest.mark.parametrize(
    ("name", "task_id"),
    [("--workers", "workers-1"), ("-", "task-1"), ("..", "task-1"), ("a-b", "a-b-1")],
)
def test_task_id_begins_with_no_dash_or_dot(name, task_id):
    assert World().submit(1, name=name).id == task_id


def test_task_whose_workers_cannot_be_started_fails_and_frees_its_slots():
    world = hosts(a=2)
    task, other = placed(world, 2), placed(world, 2)
    assert unstarted(world.state, task) == {f"{task.id}-w0": 1, f"{task.id}-w1": 1}
    world.do(FailStart(task=task.id, reason="no environment"))
    assert (task.state, task.reason, task.exit_code) == ("failed", "no environment", 1)
    assert other.state == "starting"


def test_task_that_has_not_been_placed_does_not_fail_for_its_start():
    world = World()
    task = placed(world, 1)
    world.do(FailStart(task=task.id, reason="no environment"))
    assert task.state == "queued"


def test_task_whose_workers_all_run_does_not_fail_for_its_start():
    world = hosts(a=2)
    task = placed(world, 2)
    world.start(task)
    world.do(FailStart(task=task.id, reason="no environment"))
    assert unstarted(world.state, task) == {}
    assert task.state != "failed"


def test_task_that_trains_without_a_lost_worker_does_not_fail_for_its_start():
    world = hosts(a=3)
    task = placed(world, 3, min_workers=2)
    peers = world.start(task)
    world.sync(task)
    peers[2].lost()
    assert unstarted(world.state, task) == {f"{task.id}-w2": 2}
    world.do(FailStart(task=task.id, reason="no environment"))
    assert task.state != "failed"
    world.sync(task)
    peers[1].lost()
    world.do(FailStart(task=task.id, reason="no environment"))
    assert task.state == "failed"
