"""The queue: priorities, tasks that come after others, and what a waiting task says."""

import pytest

from strata.core.rule_settings import Rules
from strata.core.tasks import task_lifecycle
from strata.core.tasks.placement import MAX_AFTER, MAX_PRIORITY, StopTask
from strata.core.tasks.task_queue import Queue, ordinal
from strata.errors import InvalidArgument, NotFound
from tests.core.test_scheduling import hosts, placed
from tests.core.world import World


def trained(world, task):
    """Let a placed task train and complete."""
    world.start(task)
    world.sync(task)
    for peer in world.members(task):
        peer.leave("done")


def failed(world, task):
    """Let a placed task of the policy stop lose a worker."""
    world.start(task)[0].lost()


def order(world):
    return Queue(world.state).order


def says(world, task):
    return Queue(world.state).waiting_for(task)


def test_higher_priority_starts_first():
    world = hosts(a=1)
    first = placed(world)
    low, high, medium = (placed(world, priority=each) for each in (-5, 5, 0))
    assert order(world) == [high.id, medium.id, low.id]
    trained(world, first)
    assert (low.state, high.state, medium.state) == ("queued", "starting", "queued")


def test_equal_priority_starts_in_the_order_of_submission():
    world = hosts(a=1)
    first = placed(world, priority=1)
    second, third = placed(world, priority=1), placed(world, priority=1)
    trained(world, first)
    assert (second.state, third.state) == ("starting", "queued")


def test_large_task_of_high_priority_blocks_small_ones():
    world = hosts(a=2)
    large, small = placed(world, 3, priority=1), placed(world, 1)
    assert (large.state, small.state) == ("queued", "queued")
    world.agent("b", 1)
    assert (large.state, small.state) == ("starting", "queued")


def test_higher_priority_alone_stops_no_running_task():
    world = hosts(a=1)
    running, high = placed(world), placed(world, priority=5)
    assert (running.state, high.state) == ("starting", "queued")


def test_task_after_another_waits_until_that_has_completed():
    world = hosts(a=2)
    first = placed(world)
    second = placed(world, after=[first.id])
    assert (second.state, says(world, second)) == (
        "queued",
        f"1st in the queue; waits for {first.id}, which is starting",
    )
    trained(world, first)
    assert (first.state, second.state) == ("completed", "starting")


def test_task_after_a_completed_one_starts_at_once():
    world = hosts(a=1)
    first = placed(world)
    trained(world, first)
    assert placed(world, after=[first.id]).state == "starting"


def test_task_after_a_task_of_user_started_workers_waits_for_it():
    world = hosts(a=1)
    first = world.submit(1)
    second = placed(world, after=[first.id])
    assert second.state == "queued"
    (peer,) = world.join(first, "w")
    world.sync(first)
    peer.leave("done")
    assert second.state == "starting"


def test_task_that_waits_for_another_blocks_nobody():
    world = hosts(a=2)
    first = placed(world)
    waiting = placed(world, 1, after=[first.id], priority=9)
    other = placed(world)
    assert (waiting.state, other.state) == ("queued", "starting")


def test_task_after_a_failed_one_stays_queued_and_says_so():
    world = hosts(a=2)
    first, other = placed(world, policy="stop"), placed(world)
    second = placed(world, after=[other.id, first.id])
    failed(world, first)
    assert second.state == "queued"
    assert says(world, second) == (
        f"1st in the queue; waits for {first.id}, which failed, and 1 more; "
        "continue that task or stop this one"
    )


def test_task_after_a_stopped_one_stays_queued_until_it_is_stopped_too():
    world = hosts(a=1)
    first = placed(world)
    second = placed(world, after=[first.id])
    world.do(StopTask(task=first.id))
    assert (first.state, second.state) == ("stopped", "queued")
    assert "which was stopped; continue that task or stop this one" in says(world, second)
    world.do(StopTask(task=second.id))
    assert second.state == "stopped"


def test_task_after_an_unknown_one_is_refused():
    world = hosts(a=1)
    with pytest.raises(NotFound, match="'gone-9'"):
        placed(world, after=["gone-9"])
    assert world.state.tasks == {}


@pytest.mark.parametrize("spec", [{"priority": 1}, {"after": ["x"]}, {"preemptible": True}])
def test_task_of_user_started_workers_is_not_queued_so_cannot_ask_for_a_place(spec):
    with pytest.raises(InvalidArgument, match="starts the workers of this one"):
        World().submit(1, **spec)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"priority": MAX_PRIORITY + 1}, "priority"),
        ({"priority": -MAX_PRIORITY - 1}, "priority"),
        ({"after": ["x"] * (MAX_AFTER + 1)}, "after"),
    ],
)
def test_values_beyond_the_limits_are_refused_by_name(spec, named):
    with pytest.raises(InvalidArgument, match=named):
        placed(World(), **spec)


def test_task_that_another_one_waits_for_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(task_lifecycle, "MAX_ENDED_TASKS", 0)
    monkeypatch.setattr(task_lifecycle, "FORGOTTEN_AT_ONCE", 1)
    world = World(Rules(max_tasks=10))
    world.agent("a", 1)
    first, forgotten = placed(world, policy="stop"), placed(world)
    second = placed(world, after=[first.id])
    failed(world, first)
    for task in (forgotten, placed(world)):
        trained(world, task)
    assert set(world.state.tasks) & {first.id, forgotten.id} == {first.id}
    assert "which failed" in says(world, second)


def test_waiting_task_says_its_place_and_what_it_needs():
    world = hosts(a=2)
    large, small, last = placed(world, 3), placed(world, 1), placed(world, 4)
    assert says(world, large) == "1st in the queue; needs 3 slots, 2 of 2 are free"
    assert says(world, small) == (
        f"2nd in the queue, behind {large.id}; needs 1 slot, 2 of 2 are free"
    )
    assert says(world, last).startswith(f"3rd in the queue, behind {small.id}; needs 4 slots")
    world.lose_agent("a")
    assert says(world, large) == "1st in the queue; needs 3 slots, no agent is up"


def test_one_free_slot_is_one():
    world = hosts(a=2)
    placed(world)
    assert says(world, placed(world, 2)) == "1st in the queue; needs 2 slots, 1 of 2 is free"


def test_place_in_the_queue_is_given_only_to_queued_tasks():
    world = hosts(a=1)
    running, waiting = placed(world), placed(world)
    after = placed(world, after=[running.id], priority=7)
    last = placed(world)
    assert Queue(world.state).positions == {waiting.id: 1, last.id: 2, after.id: 3}
    assert says(world, running) == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th"), (22, "22nd")],
)
def test_ordinal_of_a_number(number, text):
    assert ordinal(number) == text
