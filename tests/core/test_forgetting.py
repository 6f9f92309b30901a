"""Bounds of the state: ended tasks and dead workers are removed in time, living ones never."""

import pytest

from strata.core.rule_settings import Timeouts
from strata.core.tasks import task_lifecycle
from strata.core.tasks.standing import affected
from strata.core.workers import worker_lifecycle
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
from tests.core.world import SECOND_NS, World


def test_oldest_ended_tasks_are_forgotten_and_their_workers_with_them(monkeypatch):
    monkeypatch.setattr(task_lifecycle, "MAX_ENDED_TASKS", 3)
    monkeypatch.setattr(task_lifecycle, "FORGOTTEN_AT_ONCE", 2)
    world = World()
    for number in range(6):
        (worker,) = world.join(world.submit(1), f"w{number}")
        worker.leave("stopped")
    assert len(world.state.tasks) == 4
    assert list(world.state.workers) == ["w2", "w3", "w4", "w5"]


def test_fewer_ended_tasks_are_remembered_where_they_had_many_workers(monkeypatch):
    monkeypatch.setattr(task_lifecycle, "MAX_THEIR_WORKERS", 4)
    monkeypatch.setattr(task_lifecycle, "WORKERS_AT_ONCE", 2)
    world = World()
    for number in range(4):
        for worker in world.join(world.submit(2), f"a{number}", f"b{number}"):
            worker.leave("stopped")
    assert list(world.state.workers) == ["a2", "b2", "a3", "b3"]
    large = world.join(world.submit(8), *(f"c{number}" for number in range(8)))
    for worker in large:
        worker.leave("stopped")
    assert len(world.state.tasks) == 1, "the one that has just ended is remembered, however large"
    assert len(world.state.workers) == 8


def test_dead_workers_are_forgotten_and_living_ones_are_not(monkeypatch):
    monkeypatch.setattr(worker_lifecycle, "MAX_DEAD", 3)
    monkeypatch.setattr(worker_lifecycle, "FORGOTTEN_AT_ONCE", 2)
    world = World()
    world.register("alive")
    for number in range(12):
        world.register(f"w{number}").lost()
    assert "alive" in world.state.workers
    assert len(world.state.workers) <= 1 + 3 + 2 + 1
    assert world.state.living_workers == 1


def test_forgotten_worker_returns_as_a_new_incarnation(monkeypatch):
    monkeypatch.setattr(worker_lifecycle, "MAX_DEAD", 0)
    monkeypatch.setattr(worker_lifecycle, "FORGOTTEN_AT_ONCE", 1)
    world = World()
    first = world.register("a")
    first.lost()
    for name in "bcd":
        world.register(name).lost()
    assert "a" not in world.state.workers
    assert world.register("a").incarnation > first.incarnation


@pytest.mark.parametrize("beat", [Beat(1, 1, step=5), Beat(1, 1, request=1)])
def test_watch_skips_a_worker_that_was_forgotten_since_its_last_heartbeat(monkeypatch, beat):
    world = World()
    task = world.submit(1)
    (a,) = world.join(task, "a")
    world.sync(task)
    watch = Watch(Timeouts())
    watch.adopt(world.state, 0)
    assert watch.beat(a.id, a.incarnation, beat, SECOND_NS)
    position = len(world.log)
    a.leave("done")
    monkeypatch.setattr(task_lifecycle, "MAX_ENDED_TASKS", 0)
    monkeypatch.setattr(task_lifecycle, "FORGOTTEN_AT_ONCE", 1)
    world.join(world.submit(1), "b")[0].leave("stopped")
    assert "a" not in world.state.workers
    for event in world.log[position:]:
        watch.follow(event)
    assert watch.overdue(world.state, 10 * SECOND_NS) == []


def test_task_forgotten_in_the_same_turn_informs_no_worker(monkeypatch):
    world = World()
    world.agent("host", 1)
    task = world.submit(1)
    (a,) = world.join(task, "a")
    world.sync(task)
    position = len(world.log)
    a.leave("done")
    monkeypatch.setattr(task_lifecycle, "MAX_ENDED_TASKS", 0)
    monkeypatch.setattr(task_lifecycle, "FORGOTTEN_AT_ONCE", 1)
    world.join(world.submit(1), "b")[0].leave("stopped")
    assert task.id not in world.state.tasks
    about = [affected(world.state, [e]) for e in world.log[position:] if _task_of(e) == task.id]
    assert len(about) >= 2
    assert all(not each.workers for each in about)
    whole = affected(world.state, world.log[position:])
    assert (whole.workers, whole.agents) == (["b"], ["host"])
    assert ["host"] in [each.agents for each in about], "its processes may still be there"


def _task_of(event):
    return getattr(event.body, "task", "")
