"""The room for images, texts and histograms of a task: shared by its workers, never exceeded."""

from strata.core.limits import LimitHit
from strata.core.rule_settings import Rules
from strata.core.tasks.media_room import AskForMediaRoom, MediaRoomGranted
from tests.core.world import World


def running(limit):
    world = World(Rules(max_media_bytes=limit))
    task = world.submit(2, policy="continue")
    world.join(task, "a", "b")
    world.sync(task)
    return world, task


def test_repeated_request_grants_nothing_twice():
    world, task = running(1_000)
    a, _ = world.members(task)
    assert world.do(AskForMediaRoom(**a.me, total_bytes=300)) == 300
    assert world.do(AskForMediaRoom(**a.me, total_bytes=300)) == 300
    assert world.do(AskForMediaRoom(**a.me, total_bytes=200)) == 300
    assert task.media_bytes == 300
    assert len(world.facts(MediaRoomGranted)) == 1


def test_workers_together_get_no_more_than_the_limit_which_is_recorded_once():
    world, task = running(1_000)
    a, b = world.members(task)
    assert world.do(AskForMediaRoom(**a.me, total_bytes=700)) == 700
    assert not world.facts(LimitHit)
    assert world.do(AskForMediaRoom(**b.me, total_bytes=700)) == 300
    assert world.do(AskForMediaRoom(**a.me, total_bytes=800)) == 700
    (hit,) = world.facts(LimitHit)
    assert (hit.limit, hit.value) == ("max_media_bytes", 1_000)
    assert sum(fact.size_bytes for fact in world.facts(MediaRoomGranted)) == 1_000


def test_worker_that_registers_again_starts_with_no_room():
    world, task = running(1_000)
    a, _ = world.members(task)
    world.do(AskForMediaRoom(**a.me, total_bytes=700))
    a.lost()
    world.join(task, "a")
    again = world.state.workers["a"]
    assert again.media_bytes == 0
    assert world.do(AskForMediaRoom(worker="a", incarnation=again.incarnation, total_bytes=5)) == 5
    assert task.media_bytes == 705
