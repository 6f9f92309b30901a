"""Barriers: all expected workers arrive, then all are released; no worker is counted twice, workers
of other generations and old incarnations are not counted, and no barrier waits for a dead worker.
"""

import pytest

from strata.core.barriers.barrier_rules import (
    MAX_BARRIERS,
    BarrierArrived,
    BarrierFailed,
    BarrierOpened,
    BarrierReleased,
    FailBarrier,
)
from strata.errors import Fenced, NotAllowedNow, NotFound
from tests.core.world import World


def meeting(workers=3, **spec):
    """A task whose workers a, b, c… are members of a generation."""
    world = World()
    task = world.submit(workers, **{"policy": "continue", **spec})
    peers = world.join(task, *"abcdefgh"[:workers])
    if task.spec.syncs:
        world.sync(task)
    return world, task, peers


def test_all_are_released_when_the_last_arrives():
    world, _task, (a, b, c) = meeting()
    a.arrive()
    assert world.one(BarrierOpened).expected == 3
    b.arrive()
    assert world.new(BarrierReleased) == []
    barrier = c.arrive()
    assert world.one(BarrierReleased).participants == 3
    assert (barrier.state, list(barrier.arrived)) == ("released", ["a", "b", "c"])


def test_arrival_is_recorded_with_worker_incarnation_and_request():
    world, _task, (a, _b) = meeting(2)
    a.arrive(request=7)
    arrived = world.one(BarrierArrived)
    assert (arrived.worker, arrived.incarnation, arrived.request) == ("a", a.incarnation, 7)


def test_worker_is_counted_once_however_often_it_resends():
    world, _task, (a, _b) = meeting(2)
    for _ in range(3):
        a.arrive(request=1)
    assert len(world.facts(BarrierArrived)) == 1
    assert world.facts(BarrierReleased) == []


def test_second_request_while_waiting_is_not_a_second_arrival():
    _world, task, (a, b) = meeting(2)
    a.arrive(request=1)
    a.arrive(request=2)
    assert task.barriers["meet"].state == "waiting"
    assert b.arrive(request=1).state == "released"


def test_resend_after_the_release_is_answered_without_facts():
    world, _task, (a, b) = meeting(2)
    a.arrive(request=1)
    b.arrive(request=1)
    assert (a.arrive(request=1).state, world.last) == ("released", [])


def test_higher_request_opens_the_next_round():
    _world, _task, (a, b) = meeting(2)
    a.arrive(request=1)
    first = b.arrive(request=1).round
    again = a.arrive(request=2)
    assert (again.state, again.round) == ("waiting", first + 1)
    assert b.arrive(request=2).state == "released"


def test_resend_of_the_round_before_counts_in_no_later_round():
    """b was released but the answer was lost; a has continued. b's resend belongs to the old
    round."""
    world, task, (a, b) = meeting(2)
    a.arrive(request=1)
    first = b.arrive(request=1).round
    a.arrive(request=2)
    b.arrive(request=1)
    assert world.last == []
    assert task.barriers["meet"].state == "waiting"
    assert [fact.round for fact in world.facts(BarrierReleased)] == [first]


def test_new_incarnation_does_not_inherit_an_arrival_at_a_waiting_barrier():
    _world, task, (a, b, c) = meeting(3, policy="replace", syncs=False, external=True)
    a.arrive(request=5)
    a.lost()
    a = a.again()
    b.arrive()
    c.arrive()
    assert task.barriers["meet"].state == "waiting"
    assert a.arrive(request=1).state == "released"


def test_new_incarnation_does_not_inherit_a_release():
    """Its own request numbers start again, below those of the previous incarnation."""
    world, _task, (a, b) = meeting(2, syncs=False)
    a.arrive(request=5)
    b.arrive(request=5)
    a.lost()
    a = a.again()
    assert a.arrive(request=1).state == "waiting"
    assert world.one(BarrierArrived).incarnation == a.incarnation


def test_old_incarnation_is_not_counted():
    world, _task, (_a, b) = meeting(2)
    b.lost()
    with pytest.raises(Fenced):
        b.arrive()
    assert world.facts(BarrierArrived) == []


def test_worker_that_left_the_barrier_to_enter_a_generation_arrives_again():
    world, task, (a, b) = meeting(2, name="default")
    a.arrive(request=1)
    (c,) = world.join(task, "c")
    world.sync(task)
    b.arrive(request=1)
    assert c.arrive(request=1).state == "waiting"
    assert a.arrive(request=2).state == "released"


def test_worker_outside_the_generation_is_refused():
    world = World()
    task = world.submit(1, external=False)
    world.agent("host", slots=1)
    world.start(task)
    (spare,) = world.join(task, "spare")
    with pytest.raises(NotAllowedNow, match="spare"):
        spare.arrive()
    assert world.last == []


def test_loss_releases_workers_that_waited_only_for_the_lost_one():
    world, task, (a, b, c) = meeting()
    a.arrive()
    b.arrive()
    c.lost()
    released = world.one(BarrierReleased)
    assert (released.participants, released.generation) == (2, task.generation)
    assert "c was lost" in released.reason


def test_leave_releases_workers_that_waited_for_it():
    world, task, (a,) = meeting(1, name="default", syncs=False)
    b, c = world.join(task, "b", "c")
    a.arrive()
    b.arrive()
    c.leave("done")
    assert world.one(BarrierReleased).participants == 2


def test_barrier_does_not_wait_for_a_finished_worker():
    _world, task, (a, b, c) = meeting()
    a.arrive()
    b.arrive()
    c.leave("done")
    assert task.barriers["meet"].state != "waiting"


def test_arrival_of_a_lost_worker_is_not_counted():
    _world, task, (a, b, c) = meeting()
    a.arrive()
    a.lost()
    b.arrive()
    assert task.barriers["meet"].state == "waiting"
    assert c.arrive().state == "released"


def test_new_member_is_expected_too():
    world, task, (a, b) = meeting(2, name="default", syncs=False)
    a.arrive()
    (c,) = world.join(task, "c")
    b.arrive()
    assert task.barriers["meet"].state == "waiting"
    c.arrive()
    assert world.one(BarrierReleased).participants == 3


def test_too_few_workers_fail_the_barrier_and_the_lost_are_named():
    world, task, (a, _b, c) = meeting(min_workers=3)
    a.arrive()
    c.lost()
    failed = world.one(BarrierFailed)
    assert failed.missing == ["c", "b"]
    assert "c was lost" in failed.reason
    assert task.barriers["meet"].missing == ["c", "b"]


def test_failed_barrier_names_the_missing_by_rank():
    world, task, (_a, b, _c) = meeting()
    barrier = b.arrive()
    world.do(FailBarrier(task=task.id, barrier="meet", round=barrier.round, reason="300 s"))
    assert world.one(BarrierFailed).missing == ["a", "c"]
    assert (b.arrive().state, world.last) == ("failed", [])


def test_after_a_failure_a_higher_request_begins_again():
    world, task, (a, b) = meeting(2)
    first = a.arrive(request=1)
    world.do(FailBarrier(task=task.id, barrier="meet", round=first.round, reason="300 s"))
    assert a.arrive(request=2).state == "waiting"
    assert b.arrive(request=1).state == "released"


def test_late_failure_changes_neither_a_released_round_nor_the_next():
    world, task, (a, b) = meeting(2)
    a.arrive()
    first = b.arrive().round
    for round_, barrier in ((first, "meet"), (first, "other"), (first + 9, "meet")):
        world.do(FailBarrier(task=task.id, barrier=barrier, round=round_, reason="late"))
        assert world.last == []
    a.arrive(request=2)
    world.do(FailBarrier(task=task.id, barrier="meet", round=first, reason="late"))
    assert world.last == []
    with pytest.raises(NotFound):
        world.do(FailBarrier(task="none", barrier="meet", round=1, reason="late"))


def test_arriving_again_after_a_restart_does_not_release_twice():
    world, _task, (a, b) = meeting(2)
    a.arrive(request=1)
    world.restart()
    a.arrive(request=1)
    assert world.last == []
    b.arrive(request=1)
    world.restart()
    for peer in (a, b):
        assert peer.arrive(request=1).state == "released"
        assert world.last == []
    assert len(world.facts(BarrierReleased)) == 1


def test_rounds_are_numbered_across_barriers_and_never_repeat():
    _world, _task, (a, b) = meeting(2)
    rounds = []
    for request in range(1, 4):
        for name in ("x", "y"):
            rounds.append(a.arrive(name, request).round)
            b.arrive(name, request)
    assert rounds == list(range(1, 7))


def test_barriers_have_separate_names_and_separate_arrivals():
    world, task, (a, b) = meeting(2)
    a.arrive("x")
    b.arrive("y")
    assert world.facts(BarrierReleased) == []
    assert {name: b.state for name, b in task.barriers.items()} == {"x": "waiting", "y": "waiting"}


def test_oldest_ended_barrier_is_dropped():
    _world, task, (a,) = meeting(1)
    for index in range(MAX_BARRIERS + 10):
        a.arrive(f"b{index}")
    assert len(task.barriers) == MAX_BARRIERS
    assert ("b9" in task.barriers, "b10" in task.barriers) == (False, True)


def test_too_many_barriers_at_a_time_are_refused():
    world, _task, (a, b) = meeting(2)
    for index in range(MAX_BARRIERS):
        a.arrive(f"b{index}")
    with pytest.raises(NotAllowedNow, match=str(MAX_BARRIERS)):
        a.arrive("one too many")
    assert world.last == []
    assert b.arrive("b0").state == "released"
    assert a.arrive("one too many").state == "waiting"
