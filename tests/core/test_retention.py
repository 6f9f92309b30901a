"""Retention: a checkpoint is deleted if and only if no rule keeps it, and the rules that keep it
are named."""

import math
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
    RetentionChanged,
)
from strata.core.checkpoints.keep_reasons import keep_reasons, kept_because
from strata.core.limits import LimitHit
from strata.core.rule_settings import Rules
from strata.core.task_spec import RetentionRequest
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


def pin(world, task, checkpoint, holder="user", note=""):
    world.do(PinCheckpoint(task=task.id, checkpoint=checkpoint.id, holder=holder, note=note))


def release(world, task, checkpoint, holder="user"):
    world.do(ReleaseCheckpoint(task=task.id, checkpoint=checkpoint.id, holder=holder))


def reasons(task):
    return {task.checkpoints[id].step: why for id, why in keep_reasons(task).items()}


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


def test_pinned_checkpoint_stays_until_every_holder_released_it():
    world, task = saving(keep_count=1)
    old = world.save(task, 1)
    for holder in ("user", "fork-2"):
        pin(world, task, old, holder)
    world.save(task, 2)
    with pytest.raises(NotAllowedNow, match="pinned, pinned by fork-2"):
        delete(world, task, old)
    release(world, task, old, "user")
    with pytest.raises(NotAllowedNow, match="pinned by fork-2"):
        delete(world, task, old)
    release(world, task, old, "fork-2")
    assert kept(task) == [2], "the last release applies retention"


def test_note_of_a_pin_is_shown_and_can_be_replaced():
    world, task = saving()
    newest = world.save(task, 1)
    pin(world, task, newest, note="for the paper")
    assert kept_because(task, newest) == ["newest", "pinned: for the paper"]
    pin(world, task, newest, note="for the talk")
    assert kept_because(task, newest) == ["newest", "pinned: for the talk"]
    pin(world, task, newest)
    assert kept_because(task, newest) == ["newest", "pinned"]
    release(world, task, newest)
    assert kept_because(task, newest) == ["newest"]


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


def test_newest_ones_are_numbered():
    world, task = saving(keep_count=3)
    for step in (1, 2, 3, 4):
        world.save(task, step)
    assert reasons(task) == {4: ["newest"], 3: ["2 of 3 newest"], 2: ["3 of 3 newest"]}


def test_best_by_metric_is_kept_and_the_one_before_it_is_not():
    world, task = saving(keep_count=1, keep_best="val_loss")
    for step, loss in ((1, 0.5), (2, 0.125), (3, 0.25)):
        world.save(task, step, metrics={"val_loss": loss})
    assert reasons(task) == {3: ["newest"], 2: ["best val_loss 0.125"]}
    world.save(task, 4, metrics={"val_loss": 0.1})
    assert reasons(task) == {4: ["newest", "best val_loss 0.1"]}


def test_highest_value_is_the_best_of_a_metric_with_max():
    world, task = saving(keep_count=1, keep_best="max:accuracy", keep_best_count=2)
    for step, value in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.1)):
        world.save(task, step, metrics={"accuracy": value})
    best = {3: ["2 of 2 best accuracy 0.7"], 2: ["1 of 2 best accuracy 0.9"]}
    assert reasons(task) == {4: ["newest"], **best}


def test_of_equal_values_the_lowest_step_is_the_best():
    world, task = saving(keep_count=1, keep_best="val_loss")
    for step in (1, 2, 3):
        world.save(task, step, metrics={"val_loss": 0.5})
    assert kept(task) == [3, 1]


def test_checkpoint_without_the_metric_is_never_the_best():
    world, task = saving(keep_count=1, keep_best="val_loss")
    world.save(task, 1, metrics={"loss": 0.0})
    world.save(task, 2, metrics={"val_loss": 9.0})
    world.save(task, 3)
    assert reasons(task) == {3: ["newest"], 2: ["best val_loss 9"]}


def test_metrics_of_rank_0_count():
    world = World()
    task = world.submit(2)
    world.join(task, "a", "b")
    world.sync(task)
    first, second = world.members(task)
    checkpoint = first.begin(1)
    first.ack(checkpoint, metrics={"val_loss": 1.0})
    second.ack(checkpoint, metrics={"val_loss": 2.0})
    assert checkpoint.metrics == {"val_loss": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_metric_that_is_not_finite_is_refused(value):
    world, task = saving()
    with pytest.raises(InvalidArgument, match="val_loss"):
        world.save(task, 1, metrics={"val_loss": value})


def test_first_checkpoint_at_or_after_each_multiple_is_kept():
    world, task = saving(keep_count=1, keep_every=100)
    for step in (0, 90, 105, 150, 199, 200, 290, 410, 420):
        world.save(task, step)
    every = ["every 100 steps"]
    assert reasons(task) == {420: ["newest"], 410: every, 200: every, 105: every}


def test_every_rule_that_keeps_a_checkpoint_is_named():
    world, task = saving(keep_count=2, keep_every=10, keep_best="loss")
    checkpoint = world.save(task, 10, metrics={"loss": 0.5})
    pin(world, task, checkpoint)
    found = ["newest", "best loss 0.5", "every 10 steps", "pinned"]
    assert kept_because(task, checkpoint) == found


def test_checkpoint_in_progress_has_no_reason():
    world, task = saving()
    assert kept_because(task, world.seal(task, 1)) == []


def test_script_overrides_the_retention_of_the_task():
    world, task = saving(keep_count=3)
    for step in (1, 2, 3):
        world.save(task, step, metrics={"loss": float(step)})
    world.peers["a"].lost()
    asked = RetentionRequest(keep_count=1, keep_best="loss")
    world.peers["a"].again(retention=asked)
    changed = world.one(RetentionChanged)
    assert changed.keeps == "the newest, the best by loss"
    assert kept(task) == [3, 1], "retention is applied at once"
    world.sync(task)
    world.peers["a"].lost()
    world.peers["a"].again(retention=asked)
    assert world.new(RetentionChanged) == [], "the same again changes nothing"
    world.sync(task)
    world.peers["a"].lost()
    world.peers["a"].again()
    assert task.retention == asked.over(task.spec.retention), "nothing asked leaves it"


BAD = [
    {"keep_every": -1},
    {"keep_best": "max:"},
    {"keep_best": "a\nb"},
    {"keep_best": "loss", "keep_best_count": 0},
]


@pytest.mark.parametrize("bad", BAD)
def test_invalid_retention_is_refused(bad):
    with pytest.raises(InvalidArgument):
        saving(**bad)
    with pytest.raises(InvalidArgument):
        World().register("alone", retention=RetentionRequest(**bad))


def test_more_checkpoints_than_the_limit_are_recorded_once():
    world = World(Rules(max_checkpoints=3))
    task = world.submit(1, keep_count=1, keep_every=1)
    world.join(task, "a")
    world.sync(task)
    for step in range(1, 7):
        world.save(task, step)
    assert kept(task) == [6, 5, 4, 3, 2, 1]
    (hit,) = world.facts(LimitHit)
    assert (hit.limit, hit.value) == ("max_checkpoints", 3)
    assert "keeps 4 checkpoints" in hit.reason


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "pin", "release", "delete", "lose"]),
        st.integers(0),
    ),
    max_size=25,
)
RETENTIONS = st.fixed_dictionaries(
    {
        "keep_count": st.integers(1, 3),
        "keep_every": st.integers(0, 4),
        "keep_best": st.sampled_from(["", "loss", "max:loss"]),
        "keep_best_count": st.integers(1, 2),
    }
)


def act(world, task, what, number):
    """Random actions on checkpoints; a refusal to delete is allowed."""
    real = [c for c in task.checkpoints.values() if c.state == "committed"]
    if what == "save":
        metrics = {"loss": float(number % 5)} if number % 3 else {}
        world.save(task, task.committed + number % 4, metrics=metrics)
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
            world.do(command(**chosen, holder="user"))


def require_kept(task, before):
    """Compare what a save left with the rules, said in another way than in the core."""
    asked = task.retention
    rest = [c for c in before if c.state == "committed"]
    highest = max(c.step for c in before)
    assert highest in [c.step for c in rest]
    assert all(c.state == "committed" for c in before if c.pins)
    values = [c.metrics["loss"] for c in before if "loss" in c.metrics]
    if asked.keep_best and values:
        best = max(values) if asked.keep_best.startswith("max:") else min(values)
        assert best in [c.metrics.get("loss") for c in rest]
    for multiple in {c.step // asked.keep_every for c in before} - {0} if asked.keep_every else ():
        in_reach = [c.step for c in before if c.step // asked.keep_every == multiple]
        assert min(in_reach) in [c.step for c in rest]
    assert all(keep_reasons(task).values()), "a checkpoint without a reason is kept"


@settings(max_examples=80, deadline=None)
@given(retention=RETENTIONS, acts=ACTS)
def test_newest_best_periodic_and_pinned_ones_are_never_deleted_and_all_others_are(retention, acts):
    world, task = saving(**retention)
    for what, number in acts:
        known = {c.id for c in task.checkpoints.values() if c.state == "committed"}
        act(world, task, what, number)
        if what == "save":
            known.add(world.facts(CheckpointCommitted)[-1].checkpoint)
            require_kept(task, [task.checkpoints[each] for each in known])
