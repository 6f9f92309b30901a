"""Guards how everyone comes to save the same step: a request is echoed on the beats, and the step
is set when all know of it, beyond the most advanced."""

import pytest

from strata.core.checkpoints import CheckpointRequested
from strata.core.liveness import Beat, Patience, Watch
from strata.core.save_points import (
    LEAD_STEPS,
    CheckpointScheduled,
    RequestCheckpoint,
    ScheduleCheckpoint,
)
from strata.core.standing import standing, told
from strata.errors import NotAllowedNow
from tests.core.world import World


def training(workers=2, steps=10):
    """A task whose workers a, b, c… have trained some steps."""
    world = World()
    task = world.submit(workers, policy="continue")
    peers = world.join(task, *"abcdefgh"[:workers])
    world.sync(task)
    world.train(task, steps)
    return world, task, peers


def watching(world):
    """A watch that has followed the world so far."""
    watch = Watch(Patience())
    for event in world.log:
        watch.follow(event)
    return watch


def echo(watch, peer, step, request=1):
    task = peer.task
    watch.beat(
        peer.id, peer.incarnation, Beat(task.attempt, task.generation, step, request=request), 0
    )


def schedules(world, watch):
    return [c for c in watch.overdue(world.state, 0) if isinstance(c, ScheduleCheckpoint)]


def test_requests_are_numbered_and_end_with_the_task():
    world, task, (a, b) = training()
    assert world.do(RequestCheckpoint(task=task.id)) == 1
    a.leave()
    b.leave()
    with pytest.raises(NotAllowedNow, match="completed"):
        world.do(RequestCheckpoint(task=task.id))


def test_a_second_request_while_one_is_open_means_the_same():
    world, task, _ = training()
    numbers = [world.do(RequestCheckpoint(task=task.id)) for _ in range(2)]
    assert numbers == [1, 1]
    assert len(world.facts(CheckpointRequested)) == 1


def test_the_step_is_set_when_all_know_and_lies_beyond_the_most_advanced():
    world, task, (a, b) = training()
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    echo(watch, a, step=12)
    assert (watch.pressing, schedules(world, watch)) == (True, [])
    echo(watch, b, step=11)
    (command,) = schedules(world, watch)
    world.do(command)
    assert task.save_at == 12 + LEAD_STEPS
    assert (told(world.state, world.log[-1]).workers, standing(world.state, "a").save_at) == (
        ["a", "b"],
        13,
    )
    assert not watch.pressing


def test_an_echo_of_an_older_lineage_does_not_count():
    world, task, (a, b) = training()
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    echo(watch, a, step=12)
    watch.beat(b.id, b.incarnation, Beat(task.attempt, task.generation - 1, 40, request=1), 0)
    assert schedules(world, watch) == []


def test_an_unfulfilled_request_is_agreed_upon_anew_in_the_next_generation():
    world, task, (a, b, c) = training(3)
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    for peer in (a, b, c):
        echo(watch, peer, step=10)
    world.do(*schedules(world, watch))
    c.lost()
    world.sync(task)
    assert (task.save_at, task.scheduled_request, task.checkpoint_requests) == (0, 0, 1)
    for peer in (a, b):
        echo(watch, peer, step=10)
    world.do(*schedules(world, watch))
    assert task.save_at == 11


def test_a_fulfilled_request_stays_fulfilled():
    world, task, (_a, _b, c) = training(3)
    request = world.do(RequestCheckpoint(task=task.id))
    world.do(
        ScheduleCheckpoint(
            task=task.id, generation=task.generation, request=request, furthest_step=10
        )
    )
    world.save(task, 12)
    c.lost()
    world.sync(task)
    assert (task.save_at, task.scheduled_request) == (0, 1)
    assert world.do(RequestCheckpoint(task=task.id)) == 2


@pytest.mark.parametrize(("generation", "number"), [(0, 1), (1, 2), (1, 0)])
def test_words_about_something_else_set_nothing(generation, number):
    world, task, _ = training()
    world.do(RequestCheckpoint(task=task.id))
    world.do(
        ScheduleCheckpoint(task=task.id, generation=generation, request=number, furthest_step=10)
    )
    assert world.facts(CheckpointScheduled) == []
