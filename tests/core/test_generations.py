"""Membership: dense and stable ranks, numbers that only grow, and when a task forms, syncs and runs
under each policy."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import GenerationEntered
from strata.errors import NotAllowedNow
from tests.core.world import World


def gathered(workers=3, **spec):
    """A task whose workers a, b, c… are in their first generation."""
    world = World()
    task = world.submit(workers, **spec)
    return world, task, world.join(task, *"abcdefgh"[:workers])


def test_workers_that_join_together_are_ranked_by_name():
    world = World()
    names = ["rank-10", "rank-2", "rank-0", "rank-1"]
    task = world.submit(4)
    world.join(task, *names)
    assert task.members == ["rank-0", "rank-1", "rank-2", "rank-10"]


def test_first_generation_waits_for_all_requested_workers():
    world = World()
    task = world.submit(3)
    world.join(task, "a", "b")
    assert (task.generation, task.members, task.waiting) == (0, [], ["a", "b"])
    world.join(task, "c")
    assert (task.generation, task.phase, task.members) == (1, "syncing", ["a", "b", "c"])
    assert task.waiting == []


def test_generation_runs_when_every_member_has_entered():
    _world, task, (a, b) = gathered(2)
    a.enter()
    assert (task.phase, task.state) == ("syncing", "starting")
    b.enter()
    assert (task.phase, task.state) == ("running", "running")


def test_entering_twice_changes_nothing():
    world, _task, (a, b) = gathered(2)
    a.enter()
    a.enter()
    assert world.last == []
    b.enter()
    assert len(world.facts(GenerationEntered)) == 2


def test_waiting_spare_takes_the_free_rank_and_no_other_rank_changes():
    world = World()
    task = world.submit(3, external=False)
    world.agent("host", slots=3)
    world.start(task)
    w0, w1, w2 = task.members
    world.join(task, "spare")
    assert task.waiting == ["spare"]
    world.peers[w1].lost()
    changed = world.one(GenerationChanged)
    assert task.members == [w0, "spare", w2]
    assert (changed.seats, changed.joined, changed.left) == ([(1, "spare")], ["spare"], [w1])
    assert task.waiting == []


def test_without_a_replacement_the_last_rank_moves_up():
    world, task, (a, b, c, d) = gathered(4, policy="continue")
    world.sync(task)
    b.lost()
    assert task.members == ["a", "d", "c"]
    assert world.one(GenerationChanged).seats == [(1, "d")]
    assert [peer.worker.rank for peer in (a, b, c, d)] == [0, -1, 2, 1]


def test_worker_that_joins_after_ranks_moved_up_gets_the_last_rank():
    world, task, (_a, b, _c) = gathered()
    b.lost()
    world.join(task, "d")
    assert task.members == ["a", "c", "d"]
    assert world.one(GenerationChanged).seats == [(2, "d")]


def test_loss_of_the_last_rank_moves_no_other():
    world, task, (_a, _b, c) = gathered(policy="continue")
    world.sync(task)
    c.lost()
    assert (task.members, world.one(GenerationChanged).seats) == (["a", "b"], [])


def test_default_task_grows_with_its_workers():
    world, task, _ = gathered(2, name="default")
    world.join(task, "x")
    assert task.members == ["a", "b", "x"]


def test_policy_continue_trains_with_fewer_workers():
    world, task, (_a, b, c) = gathered(policy="continue", min_workers=2)
    world.sync(task)
    c.lost()
    assert (task.phase, task.members) == ("syncing", ["a", "b"])
    world.sync(task)
    b.lost()
    assert (task.phase, task.members) == ("forming", ["a"])


def test_policy_continue_waits_for_all_before_the_first_step():
    _world, task, (_a, b) = gathered(2, policy="continue")
    b.lost()
    assert (task.phase, task.members) == ("forming", ["a"])


def test_policy_continue_applies_to_tasks_without_generations():
    _world, task, (_a, _b, c) = gathered(policy="continue", syncs=False)
    c.lost()
    assert task.phase != "forming"


def test_policy_replace_waits_for_the_replacement():
    world, task, (_a, b, _c) = gathered(policy="replace")
    world.sync(task)
    b.lost()
    assert (task.phase, task.state) == ("forming", "recovering")
    b.again()
    assert (task.phase, set(task.members)) == ("syncing", {"a", "b", "c"})
    world.sync(task)
    assert task.state == "running"


def test_policy_stop_ends_the_task_at_the_first_loss():
    world, task, (_a, b) = gathered(2, policy="stop")
    world.sync(task)
    b.lost()
    assert (task.state, task.exit_code) == ("failed", 1)
    assert "b" in task.reason


def test_worker_lost_while_it_waits_is_forgotten():
    world = World()
    task = world.submit(3)
    a, _b = world.join(task, "a", "b")
    a.lost()
    assert task.waiting == ["b"]
    world.join(task, "c", "d")
    assert task.members == ["b", "c", "d"]


def test_worker_that_registers_again_has_no_rank():
    world, _task, (_a, b) = gathered(2)
    b.lost()
    elsewhere = world.submit(2, name="other")
    (b,) = world.join(elsewhere, "b")
    assert b.worker.rank == -1


def test_finished_worker_cannot_register_again():
    world, task, (a, _b) = gathered(2)
    world.sync(task)
    a.leave("done")
    with pytest.raises(NotAllowedNow, match="finished"):
        a.again()
    assert task.members == ["a", "b"]


def test_finished_worker_does_not_block_a_generation():
    world, task, (a, _b, c) = gathered(3)
    world.sync(task)
    a.leave("done")
    c.lost()
    c.again()
    for peer in world.members(task):
        if peer.worker.alive:
            peer.enter()
    assert task.phase == "running"


def test_worker_that_finishes_instead_of_entering_does_not_block_a_generation():
    world, task, (a, _b, c) = gathered(3)
    world.sync(task)
    c.lost()
    c.again()
    a.leave("done")
    assert (task.phase, sorted(task.members)) == ("syncing", ["b", "c"])
    world.sync(task)
    assert task.phase == "running"


def test_leave_of_one_worker_removes_no_other():
    world, task, (_a, b, c) = gathered(3, syncs=False)
    world.peers["a"].leave("done")
    assert world.one(GenerationChanged).left == ["a"]
    assert sorted(task.members) == [b.id, c.id]


def test_generations_grow_across_a_restart():
    world, task, (_a, b) = gathered(2)
    before = task.generation
    world.restart()
    b.lost()
    assert world.state.tasks[task.id].generation == before + 1


IDS = st.sampled_from("abcdefg")
ACTS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "lost", "stopped", "failed", "done", "sync"]), IDS),
    max_size=40,
)
SPECS = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 4),
        "policy": st.sampled_from(["continue", "replace"]),
        "syncs": st.booleans(),
        "external": st.booleans(),
    }
)


def act(world, task, what, worker):
    known = world.peers.get(worker)
    alive = known is not None and known.worker.alive
    if what == "join" and not alive:
        with suppress(NotAllowedNow):
            world.join(task, worker)
    elif what == "sync" and task.spec.syncs and task.phase == "syncing":
        for peer in world.members(task):
            if peer.worker.alive:
                peer.enter()
    elif what == "lost" and alive:
        known.lost()
    elif what in ("stopped", "failed", "done") and alive:
        known.leave(what)


def check_membership(world, task):
    workers = world.state.workers
    assert len(set(task.members)) == len(task.members)
    assert [workers[member].rank for member in task.members] == list(range(len(task.members)))
    outside = [worker for worker in workers.values() if worker.id not in task.members]
    assert all(worker.rank == -1 for worker in outside)
    assert not set(task.members) & set(task.waiting)
    assert all(workers[worker].alive for worker in task.waiting)
    seated = [worker for worker in task.members if worker not in task.finished]
    assert task.ended or all(workers[worker].alive for worker in seated)


@settings(max_examples=150, deadline=None)
@given(spec=SPECS, acts=ACTS)
def test_ranks_are_dense_and_generations_grow_whatever_happens(spec, acts):
    world = World()
    world.agent("host", slots=4)
    task = world.submit(**spec)
    for what, worker in acts:
        act(world, task, what, worker)
        check_membership(world, task)
    numbers = [fact.generation for fact in world.facts(GenerationChanged)]
    assert numbers == list(range(1, len(numbers) + 1))


@settings(max_examples=300, deadline=None)
@given(spec=SPECS, acts=ACTS)
def test_generation_trains_once_all_living_members_have_entered(spec, acts):
    world = World()
    world.agent("host", slots=4)
    task = world.submit(**spec)
    for what, worker in acts:
        act(world, task, what, worker)
    act(world, task, "sync", "")
    assert task.ended or not task.spec.syncs or task.phase != "syncing"
