"""Scheduled checkpoints: a request is repeated in the heartbeats, its step is set ahead of the
furthest worker when all are ready, and a worker that is busy or learns of the step too late fails
the open checkpoint and gets another step scheduled."""

import pytest

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointFailed, CheckpointRequested
from strata.core.checkpoints.save_schedule import (
    LEAD_STEPS,
    CheckpointPostponed,
    CheckpointScheduled,
    Pace,
    PostponeCheckpoint,
    RequestCheckpoint,
    ScheduleCheckpoint,
    plan,
)
from strata.core.rule_settings import Timeouts
from strata.core.tasks.standing import affected, standing
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
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
    watch = Watch(Timeouts())
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


def test_second_request_while_one_is_open_means_the_same():
    world, task, _ = training()
    numbers = [world.do(RequestCheckpoint(task=task.id)) for _ in range(2)]
    assert numbers == [1, 1]
    assert len(world.facts(CheckpointRequested)) == 1


def test_step_is_set_when_all_know_and_lies_beyond_the_most_advanced():
    world, task, (a, b) = training()
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    echo(watch, a, step=12)
    assert (watch.pressing, schedules(world, watch)) == (True, [])
    echo(watch, b, step=11)
    (command,) = schedules(world, watch)
    world.do(command)
    assert task.save_at == 12 + LEAD_STEPS
    assert (affected(world.state, world.log[-1:]).workers, standing(world.state, "a").save_at) == (
        ["a", "b"],
        12 + LEAD_STEPS,
    )
    assert not watch.pressing


def test_echo_of_an_older_lineage_does_not_count():
    world, task, (a, b) = training()
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    echo(watch, a, step=12)
    watch.beat(b.id, b.incarnation, Beat(task.attempt, task.generation - 1, 40, request=1), 0)
    assert schedules(world, watch) == []


def test_open_request_is_scheduled_again_in_the_next_generation():
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
    assert task.save_at == 10 + LEAD_STEPS


def test_fulfilled_request_stays_fulfilled():
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
def test_outdated_reports_schedule_nothing(generation, number):
    world, task, _ = training()
    world.do(RequestCheckpoint(task=task.id))
    world.do(
        ScheduleCheckpoint(task=task.id, generation=generation, request=number, furthest_step=10)
    )
    assert world.facts(CheckpointScheduled) == []


def postpone(peer, step, **more):
    more = {"reason": "the save of step 10 is under way", **more}
    return peer.world.do(
        PostponeCheckpoint(**peer.me, generation=peer.task.generation, step=step, **more)
    )


def failed(world):
    return [fact.checkpoint for fact in world.facts(CheckpointFailed)]


def test_worker_with_a_save_under_way_keeps_the_step_from_being_set():
    world, task, (a, b) = training()
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    echo(watch, a, step=12)
    echo(watch, b, step=12)
    echo(watch, b, step=13, request=0)  # a save of its own began
    assert schedules(world, watch) == []
    echo(watch, a, step=14, request=0)
    echo(watch, b, step=15)
    assert schedules(world, watch) == []
    echo(watch, a, step=15)
    assert len(schedules(world, watch)) == 1


def test_lead_grows_with_the_pace_the_age_of_the_heartbeat_and_with_misses():
    _, task, _ = training()

    def ahead(*paces):
        (command,) = plan(task, paces)
        return command.furthest_step + command.lead

    assert ahead(Pace(10, 0.0, 5.0), Pace(12, 0.0, 5.0)) == 12 + LEAD_STEPS
    assert ahead(Pace(10, 1.0, 0.0)) == 10 + LEAD_STEPS
    assert ahead(Pace(10, 0.001, 0.0)) == 10 + 250
    assert ahead(Pace(10, 0.001, 2.0)) == 10 + 2_000 + 250
    task.missed_saves = 3
    assert ahead(Pace(10, 0.0, 0.0)) == 10 + 8 * LEAD_STEPS


def test_busy_worker_fails_the_open_checkpoint_and_opens_one_request():
    world, _task, (a, b, c) = training(3)
    begun = a.begin(20)
    a.ack(begun)
    assert [postpone(b, 20, busy_s=4.0), postpone(c, 20), postpone(b, 20)] == [1, 1, 1]
    assert (failed(world), len(world.facts(CheckpointRequested))) == ([begun.id], 1)
    (fact,) = world.facts(CheckpointPostponed)
    assert (fact.worker, fact.step, fact.request, fact.busy_s) == ("b", 20, 1, 4.0)
    with pytest.raises(NotAllowedNow, match="all workers save together"):
        a.begin(30)
    assert len(failed(world)) == 1


def test_postponing_leaves_alone_what_the_worker_saves_or_has_saved():
    world, _task, (a, b) = training()
    own = a.begin(10)
    later = b.begin(20)
    b.ack(later)
    postpone(b, 20)
    assert failed(world) == []
    postpone(a, 20)
    assert failed(world) == [later.id]
    b.ack(own)
    a.ack(own)
    assert own.state == "sealing"


def test_postponed_save_blocks_other_checkpoints_until_all_save_together():
    world, task, (a, b) = training()
    number = world.do(
        PostponeCheckpoint(**b.me, generation=task.generation, step=11, reason="it is busy")
    )
    with pytest.raises(NotAllowedNow, match="request 1"):
        a.begin(12)
    assert a.begin(12, final=True).final
    world.do(
        ScheduleCheckpoint(
            task=task.id, generation=task.generation, request=number, furthest_step=12
        )
    )
    with pytest.raises(NotAllowedNow, match="at step 14"):
        a.begin(13)
    assert a.begin(14) is b.begin(14)


def test_scripts_may_save_while_a_request_waits_for_its_step_or_for_the_workers():
    world, task, (a, b) = training()
    number = world.do(RequestCheckpoint(task=task.id, reason="300 s have passed"))
    assert a.begin(11) is b.begin(11)
    world.do(
        ScheduleCheckpoint(
            task=task.id, generation=task.generation, request=number, furthest_step=12
        )
    )
    assert a.begin(13) is b.begin(13)
    assert a.begin(14) is b.begin(14), "the scheduled save still comes"


def test_missed_step_fails_its_checkpoint_and_schedules_another_with_twice_the_lead():
    world, task, (a, b, c) = training(3)
    watch = watching(world)
    world.do(RequestCheckpoint(task=task.id))
    for peer in (a, b, c):
        echo(watch, peer, step=10)
    world.do(*schedules(world, watch))
    begun = a.begin(task.save_at)
    missed = task.save_at
    postpone(b, missed, missed=True)
    assert failed(world) == [begun.id]
    for peer in (a, b, c):
        echo(watch, peer, step=20, request=2)
    world.do(*schedules(world, watch))
    assert task.save_at == 20 + 2 * LEAD_STEPS
    again = a.begin(task.save_at)
    assert postpone(c, missed, missed=True) == 0, "that schedule was replaced"
    assert (again.state, len(world.facts(CheckpointRequested))) == ("in_progress", 2)


def test_postponing_in_an_older_generation_changes_nothing():
    world, task, (a, _b, c) = training(3)
    old = task.generation
    c.lost()
    world.sync(task)
    stale = PostponeCheckpoint(**a.me, generation=old, step=20, reason="busy")
    assert world.do(stale) == 0
    assert world.facts(CheckpointPostponed) == world.facts(CheckpointRequested) == []


def test_late_message_of_a_busy_worker_spares_the_step_that_was_scheduled_since():
    world, task, (a, b) = training()
    number = postpone(a, 20)
    world.do(
        ScheduleCheckpoint(
            task=task.id, generation=task.generation, request=number, furthest_step=25
        )
    )
    begun = a.begin(task.save_at)
    postpone(b, 20)
    assert (begun.state, len(world.facts(CheckpointRequested))) == ("in_progress", 1)
