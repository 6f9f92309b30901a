"""Releases that were sent and not stored: they are recorded once, from the workers that left, and
release exactly the workers of that round."""

import msgspec
import pytest

from strata.core.barriers.barrier_rules import (
    ArriveAtBarrier,
    BarrierReleased,
    LeftBarrier,
    NoteRelease,
)
from strata.core.workers.worker_lifecycle import ReattachWorker
from strata.errors import InvalidArgument
from tests.core.world import World


class Member:
    """A worker as its session represents it: it counts arrivals and keeps the rounds it left."""

    def __init__(self, peer):
        self.peer = peer
        self.requests = 0
        self.left: dict[str, LeftBarrier] = {}

    def arrive(self, name="meet"):
        self.requests += 1
        return self.again(name)

    def again(self, name="meet"):
        """The newest arrival, sent again after a broken connection."""
        left = self.left.get(name)
        return self.peer.world.do(
            ArriveAtBarrier(
                **self.peer.me,
                barrier=name,
                request=self.requests,
                generation=self.peer.task.generation,
                after=left.round if left else 0,
            )
        )

    def leave(self, barrier):
        """Continue after a release."""
        assert barrier.state == "released"
        self.left[barrier.name] = LeftBarrier(
            barrier=barrier.name,
            round=barrier.round,
            generation=barrier.generation,
            participants=barrier.met,
        )

    def reattach(self):
        left = tuple(self.left.values())
        self.peer.world.do(ReattachWorker(**self.peer.me, left=left))


class Lost:
    """A barrier of three workers whose release reached one of them before a crash."""

    def __init__(self, rounds=2, names=("meet",)):
        self.world = World()
        self.task = self.world.submit(3, policy="continue")
        self.a, self.b, self.c = map(Member, self.world.join(self.task, *"abc"))
        self.world.sync(self.task)
        for _ in range(rounds):
            for name in names:
                self.round(name)

    def round(self, name="meet"):
        for member in (self.a, self.b, self.c):
            barrier = member.arrive(name)
        for member in (self.a, self.b, self.c):
            member.leave(barrier)

    def told_and_lost(self, name="meet", round=0):
        """All have arrived, `a` received the release and continued; nothing was stored."""
        for member in (self.a, self.b, self.c):
            member.requests += 1
        self.a.left[name] = LeftBarrier(
            barrier=name,
            round=round or self.world.state.tasks[self.task.id].last_round + 1,
            generation=self.task.generation,
            participants=3,
        )


@pytest.fixture(params=[0, 2])
def lost(request):
    return Lost(rounds=request.param)


def test_workers_that_arrive_after_the_one_that_left_are_released(lost):
    lost.told_and_lost()
    lost.a.reattach()
    assert lost.world.one(BarrierReleased).told == lost.a.left["meet"].round
    for member in (lost.b, lost.c):
        barrier = member.again()
        assert (barrier.state, barrier.met) == ("released", 3)
        assert lost.world.last == []
        member.leave(barrier)
    lost.round()


def test_workers_that_arrived_before_it_are_released_with_it(lost):
    lost.told_and_lost()
    assert lost.b.again().state == "waiting"
    lost.a.reattach()
    barrier = lost.task.barriers["meet"]
    assert barrier.state == "released"
    lost.b.leave(barrier)
    late = lost.c.again()
    assert late.round == barrier.round
    lost.c.leave(late)
    lost.round()


def test_worker_that_left_waits_for_the_others_at_its_next_arrival(lost):
    lost.told_and_lost()
    lost.a.reattach()
    assert lost.a.arrive().state == "waiting"
    for member in (lost.b, lost.c):
        member.leave(member.again())
    assert lost.b.arrive().state == "waiting"
    assert lost.c.arrive().state == "released"


def test_second_worker_that_left_changes_nothing(lost):
    lost.told_and_lost()
    lost.b.left = dict(lost.a.left)
    lost.a.reattach()
    lost.b.reattach()
    assert lost.world.new(BarrierReleased) == []
    lost.c.leave(lost.c.again())
    lost.round()


def test_number_of_a_lost_round_may_be_taken_by_another_barrier():
    lost = Lost(rounds=1, names=("meet", "other"))
    lost.told_and_lost()
    taken = lost.b.arrive("third")
    assert taken.round == lost.a.left["meet"].round
    lost.b.requests -= 1
    lost.a.reattach()
    for member in (lost.b, lost.c):
        barrier = member.again()
        assert barrier.state == "released"
        member.leave(barrier)
    assert lost.a.arrive().state == "waiting"


def test_new_member_is_not_released_by_a_round_of_the_previous_generation(lost):
    lost.told_and_lost()
    lost.a.reattach()
    lost.c.peer.lost()
    newcomer = Member(lost.world.register("d", task=lost.task.id))
    lost.world.sync(lost.task)
    assert newcomer.arrive().state == "waiting"


def test_release_that_could_not_be_stored_is_recorded_with_its_arrivals(lost):
    lost.told_and_lost()
    arrived = {m.peer.id: (m.peer.incarnation, m.requests) for m in (lost.a, lost.b, lost.c)}
    note = NoteRelease(task=lost.task.id, left=lost.a.left["meet"], arrived=arrived)
    lost.world.do(note)
    assert list(lost.task.barriers["meet"].arrived) == ["a", "b", "c"]
    lost.world.do(note)
    assert lost.world.last == []
    assert lost.b.again().state == "released"
    assert lost.world.last == []


def test_stored_release_is_not_recorded_again():
    lost = Lost(rounds=2)
    for member in (lost.a, lost.b):
        member.reattach()
        assert lost.world.new(BarrierReleased) == []


@pytest.mark.parametrize("wrong", [{"round": 0}, {"round": 2**62}, {"generation": 9}])
def test_impossible_round_is_refused(wrong):
    lost = Lost(rounds=1)
    lost.told_and_lost()
    lost.a.left["meet"] = msgspec.structs.replace(lost.a.left["meet"], **wrong)
    with pytest.raises(InvalidArgument):
        lost.a.reattach()
    assert lost.world.new(BarrierReleased) == []
