"""Retention: neither the newest checkpoint nor one that is being read is deleted."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.checkpoints.checkpoint_commits import FailCheckpoint
from strata.core.checkpoints.checkpoint_lifecycle import (
    CheckpointCommitted,
    CheckpointDeleted,
    committed_newest_first,
)
from strata.core.checkpoints.checkpoint_retention import (
    CheckpointPinned,
    CheckpointReleased,
    DeleteCheckpoint,
    PinCheckpoint,
    ReleaseCheckpoint,
)
from strata.core.rule_settings import Rules
from strata.errors import InvalidArgument, NotAllowedNow, NotFound
from tests.core.world import World


def saving(keep_count=5, **spec):
    """A task of one worker that trains."""
    world = World()
    task = world.submit(1, keep_count=keep_count, **spec)
    world.join(task, "a")
    world.sync(task)
    return world, task


def kept(task):
    return [checkpoint.step for checkpoint in committed_newest_first(task)]


def delete(world, task, checkpoint):
    world.do(DeleteCheckpoint(task=task.id, checkpoint=checkpoint.id))


def test_newest_keep_count_are_kept():
    world, task = saving(keep_count=2)
    for step in (1, 2, 3, 4):
        world.save(task, step)
    assert kept(task) == [4, 3]
    assert len(world.facts(CheckpointDeleted)) == 2


@pytest.mark.parametrize("keep_count", [-1, -3])
def test_at_least_one_must_be_kept(keep_count):
    with pytest.raises(InvalidArgument, match="keep_count"):
        saving(keep_count=keep_count)


def test_task_that_does_not_say_how_many_are_kept_follows_the_rules():
    world = World(Rules(keep_count=2))
    assert world.submit(1, keep_count=0).spec.keep_count == 2
    assert world.register("alone").task.spec.keep_count == 2


def test_of_two_at_the_same_step_the_later_is_the_newest():
    world, task = saving(keep_count=1)
    first, second = world.save(task, 1), world.save(task, 1)
    assert (first.state, second.state) == ("deleted", "committed")


def test_pinned_checkpoint_stays_until_every_reader_released_it():
    world, task = saving(keep_count=1)
    old = world.save(task, 1)
    for holder in ("r1", "r2"):
        world.do(PinCheckpoint(task=task.id, checkpoint=old.id, holder=holder))
    world.save(task, 2)
    with pytest.raises(NotAllowedNow, match="r1, r2"):
        delete(world, task, old)
    world.do(ReleaseCheckpoint(task=task.id, checkpoint=old.id, holder="r1"))
    with pytest.raises(NotAllowedNow, match="r2"):
        delete(world, task, old)
    world.do(ReleaseCheckpoint(task=task.id, checkpoint=old.id, holder="r2"))
    world.save(task, 3)
    assert kept(task) == [3]


def test_pinning_and_releasing_are_repeatable():
    world, task = saving()
    checkpoint = world.save(task, 1)
    for _ in range(2):
        world.do(PinCheckpoint(task=task.id, checkpoint=checkpoint.id, holder="r"))
    assert len(world.facts(CheckpointPinned)) == 1
    for _ in range(2):
        world.do(ReleaseCheckpoint(task=task.id, checkpoint=checkpoint.id, holder="r"))
    assert len(world.facts(CheckpointReleased)) == 1
    world.do(ReleaseCheckpoint(task=task.id, checkpoint="gone", holder="r"))
    assert world.last == []


def test_only_committed_checkpoints_can_be_pinned():
    world, task = saving()
    checkpoint = world.seal(task, 1)
    with pytest.raises(NotAllowedNow, match="sealing"):
        world.do(PinCheckpoint(task=task.id, checkpoint=checkpoint.id, holder="r"))
    with pytest.raises(NotFound):
        world.do(PinCheckpoint(task=task.id, checkpoint="none", holder="r"))


def test_newest_cannot_be_deleted_and_others_can():
    world, task = saving()
    old, new = world.save(task, 1), world.save(task, 2)
    with pytest.raises(NotAllowedNow, match="newest"):
        delete(world, task, new)
    delete(world, task, old)
    assert (old.state, kept(task)) == ("deleted", [2])
    with pytest.raises(NotAllowedNow, match="deleted"):
        delete(world, task, old)


def test_only_committed_checkpoints_can_be_deleted():
    world, task = saving()
    world.save(task, 1)
    with pytest.raises(NotAllowedNow, match="sealing"):
        delete(world, task, world.seal(task, 2))


def test_checkpoint_that_a_generation_restores_is_not_deleted():
    world, task = saving(keep_count=1)
    restored = world.save(task, 20)
    world.peers["a"].lost()
    world.peers["a"].again()
    world.sync(task)
    assert task.recovery.checkpoint == restored.id
    newer = world.save(task, 20)
    assert (restored.state, newer.state) == ("committed", "committed")
    with pytest.raises(NotAllowedNow, match=task.id):
        delete(world, task, restored)
    world.save(task, 21)
    assert kept(task) == [21]


def test_when_the_newest_is_damaged_the_next_is_the_newest():
    world, task = saving()
    old, new = world.save(task, 1), world.save(task, 2)
    damaged = {"checkpoint": new.id, "reason": "wrong checksum", "damaged": True}
    world.do(FailCheckpoint(task=task.id, **damaged))
    with pytest.raises(NotAllowedNow, match="newest"):
        delete(world, task, old)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "pin", "release", "delete", "lose"]), st.integers(0)
    ),
    max_size=25,
)


def act(world, task, what, number):
    """Random actions on checkpoints; a refusal to delete is allowed."""
    real = [c for c in task.checkpoints.values() if c.state == "committed"]
    if what == "save":
        world.save(task, task.committed + number % 2)
    elif what == "lose":
        world.peers["a"].lost()
        world.peers["a"].again()
        world.sync(task)
    elif real:
        chosen = {"task": task.id, "checkpoint": real[number % len(real)].id}
        if what == "delete":
            with suppress(NotAllowedNow):
                world.do(DeleteCheckpoint(**chosen))
        else:
            command = PinCheckpoint if what == "pin" else ReleaseCheckpoint
            world.do(command(**chosen, holder="r"))


@settings(max_examples=80, deadline=None)
@given(keep_count=st.integers(1, 3), acts=ACTS)
def test_neither_the_newest_nor_a_pinned_one_is_ever_deleted(keep_count, acts):
    world, task = saving(keep_count)
    for what, number in acts:
        pinned = [c for c in task.checkpoints.values() if c.pins]
        act(world, task, what, number)
        assert all(checkpoint.state == "committed" for checkpoint in pinned)
        order = [(fact.step, at) for at, fact in enumerate(world.facts(CheckpointCommitted))]
        if order:
            newest = world.facts(CheckpointCommitted)[max(order)[1]].checkpoint
            assert task.checkpoints[newest].state == "committed"
