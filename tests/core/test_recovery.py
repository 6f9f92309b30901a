"""Where a generation resumes: a peer, a checkpoint or a fresh start. No model of an older lineage
is chosen, and a rollback undoes exactly the lost steps."""

from contextlib import suppress

import pytest

from strata.core.checkpoints.checkpoint_commits import ConfirmCheckpoint, FailCheckpoint
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.shard_leases import EpochAdvanced
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import (
    CommitSteps,
    EnterGeneration,
    RecoveryChosen,
    RolledBack,
    StepsCommitted,
)
from strata.core.state import DatasetSpec
from strata.core.task_state import Entry
from strata.core.tasks.standing import model_holders
from strata.errors import NotAllowedNow, NotFound
from tests.core.world import World


def training(workers=2, steps=10, **spec):
    """A task whose workers a, b, c… have trained some steps in their first generation."""
    world = World()
    task = world.submit(workers, **spec)
    peers = world.join(task, *"abcdefgh"[:workers])
    world.sync(task)
    world.train(task, steps)
    return world, task, peers


def replace_all(world, task, peers):
    for peer in peers:
        peer.lost()
    return [peer.again() for peer in peers]


def test_first_generation_starts_fresh():
    world = World()
    task = world.submit(2)
    world.join(task, "a", "b")
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.step, chosen.candidates) == ("fresh", 0, {})
    assert chosen.reason
    assert (task.attempt, task.committed) == (1, 0)


def test_surviving_peer_is_preferred_and_nothing_is_lost():
    world, task, (_a, b) = training(steps=10)
    world.save(task, 5)
    b.lost()
    b.again()
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.worker, chosen.step) == ("peer", "a", 10)
    assert chosen.candidates == {"a": 10}
    assert "a" in chosen.reason
    assert (task.attempt, world.facts(RolledBack)) == (1, [])


def test_most_advanced_peer_is_chosen_and_its_steps_commit():
    world, task, (_a, b, c) = training(3)
    b.model = Entry(1, task.generation, 12)
    c.lost()
    c.again()
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.worker, chosen.step, chosen.candidates) == ("b", 12, {"a": 10, "b": 12})
    committed = world.one(StepsCommitted)
    assert (committed.first, committed.last) == (10, 11)


def test_checkpoint_wins_over_a_peer_that_is_further_behind():
    world, task, (a, b) = training(steps=10)
    world.save(task, 8)
    a.model = Entry(1, 1, 7)
    b.lost()
    b.again()
    world.sync(task)
    assert world.one(RecoveryChosen).source == "checkpoint"


@pytest.mark.parametrize("saved", [0, 8])
def test_survivor_that_lacks_a_committed_step_is_rolled_back_to(saved):
    """A worker that finished takes its model along; the survivor may be a step behind it."""
    world, task, (a, b, c) = training(3, steps=10, min_workers=1)
    if saved:
        world.save(task, saved)
    a.leave("done", steps=12)
    assert task.committed == 12
    b.lost()
    c.model = Entry(1, 1, 11)
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.worker, chosen.step) == ("peer", "c", 11)
    rolled = world.one(RolledBack)
    assert (rolled.origin, rolled.to, task.attempt, task.committed) == (12, 11, 2, 11)
    assert model_holders(task) == {"c": ""}, "it need not fetch its own model"


def test_newest_checkpoint_is_restored_when_no_model_survives():
    world, task, peers = training(steps=10)
    old, new = world.save(task, 4), world.save(task, 8)
    replace_all(world, task, peers)
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.checkpoint, chosen.step) == ("checkpoint", new.id, 8)
    assert chosen.candidates == {old.id: 4, new.id: 8}
    assert task.recovery.checkpoint == new.id


def test_rollback_voids_the_steps_after_it_and_opens_an_attempt():
    world, task, peers = training(steps=10)
    world.save(task, 8)
    replace_all(world, task, peers)
    world.sync(task)
    rolled = world.one(RolledBack)
    assert (rolled.origin, rolled.to, rolled.attempt) == (10, 8, 2)
    assert (task.attempt, task.committed) == (2, 8)
    world.train(task, 9)
    committed = world.one(StepsCommitted)
    assert (committed.attempt, committed.first, committed.last) == (2, 8, 8)


def test_checkpoint_at_the_last_committed_step_voids_nothing():
    world, task, peers = training(steps=10)
    world.save(task, 10)
    replace_all(world, task, peers)
    world.sync(task)
    assert world.one(RecoveryChosen).source == "checkpoint"
    assert (world.new(RolledBack), task.attempt) == ([], 1)


def test_without_checkpoint_and_model_training_starts_again():
    world, task, peers = training(steps=10)
    replace_all(world, task, peers)
    world.sync(task)
    assert world.one(RecoveryChosen).source == "fresh"
    assert (world.one(RolledBack).to, task.attempt, task.committed) == (0, 2, 0)


def test_model_of_an_older_attempt_is_never_chosen():
    world, task, peers = training(steps=10)
    world.save(task, 8)
    zombie = peers[0].model
    a, b = replace_all(world, task, peers)
    world.sync(task)
    world.train(task, 9)
    replace_all(world, task, (a, b))[0].model = zombie
    world.peers["a"].model = zombie
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.step) == ("checkpoint", 8)


def test_model_of_an_older_generation_is_never_chosen():
    world, task, (a, b, c) = training(3, policy="continue")
    c.lost()
    world.sync(task)
    stale = Entry(1, 1, 50)
    b.lost()
    a.model = stale
    world.sync(task)
    assert world.one(RecoveryChosen).source == "fresh"


def test_source_dying_before_the_others_caught_up_leaves_no_source():
    """b entered without a model and was told to take a's; then a dies with the only one."""
    world, task, (a, b) = training(steps=10)
    saved = world.save(task, 6)
    b.lost()
    b = b.again()
    a.enter()
    b.enter()
    assert task.recovery.worker == "a"
    a.lost()
    a.again()
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.checkpoint, task.committed) == ("checkpoint", saved.id, 6)


def test_synced_member_becomes_a_source():
    world, task, (a, b) = training(steps=10)
    b.lost()
    b.again()
    world.sync(task)
    a.lost()
    a.again()
    world.sync(task)
    assert (world.one(RecoveryChosen).worker, task.committed) == ("b", 10)


def test_sharded_model_survives_only_on_all_of_them():
    world, task, (_a, b) = training(steps=10, model_state="sharded")
    saved = world.save(task, 7)
    b.lost()
    b.again()
    world.sync(task)
    assert world.one(RecoveryChosen).checkpoint == saved.id


def test_sharded_model_that_is_whole_is_kept():
    """A worker that only came and went changed the generation, not the model's holders."""
    world, task, (_a, _b) = training(steps=10, name="default", model_state="sharded")
    (c,) = world.join(task, "c")
    c.lost()
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.candidates) == ("peer", {"a": 10, "b": 10})


def test_sharded_model_of_different_steps_is_not_whole():
    world, task, (a, _b) = training(steps=10, name="default", model_state="sharded")
    saved = world.save(task, 10)
    a.model = Entry(1, 1, 11)
    (c,) = world.join(task, "c")
    c.lost()
    world.sync(task)
    assert world.one(RecoveryChosen).checkpoint == saved.id


def test_recovery_waits_while_a_checkpoint_is_half_decided():
    world, task, peers = training(steps=10)
    sealing = world.seal(task, 20)
    for peer in replace_all(world, task, peers):
        peer.enter()
    assert (task.phase, world.new(RecoveryChosen)) == ("syncing", [])
    world.do(ConfirmCheckpoint(task=task.id, checkpoint=sealing.id, path="m"))
    assert world.one(RecoveryChosen).checkpoint == sealing.id
    assert (task.phase, task.committed) == ("running", 20)


def test_recovery_continues_after_a_checkpoint_failed_to_seal():
    world, task, peers = training(steps=10)
    before = world.save(task, 5)
    sealing = world.seal(task, 20)
    for peer in replace_all(world, task, peers):
        peer.enter()
    world.do(FailCheckpoint(task=task.id, checkpoint=sealing.id, reason="disk full"))
    assert world.one(RecoveryChosen).checkpoint == before.id
    assert (task.phase, task.committed) == ("running", 5)


def test_peer_does_not_wait_for_the_seal():
    world, task, (_a, b) = training(steps=10)
    world.seal(task, 10)
    b.lost()
    b.again()
    world.sync(task)
    assert world.one(RecoveryChosen).source == "peer"


def test_checkpoint_begun_before_a_rollback_is_never_committed():
    """Its steps are void: restoring it would bring a lineage back that does not count."""
    world, task, (a, b) = training(steps=10, model_state="sharded")
    world.save(task, 5)
    b.lost()
    b = b.again()
    with suppress(NotAllowedNow):
        checkpoint = a.begin(10)
        world.sync(task)
        a.ack(checkpoint)
        b.ack(checkpoint)
        world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m"))
    real = [c.step for c in task.checkpoints.values() if c.state == "committed"]
    assert real == [5]


def test_reports_about_another_generation_or_attempt_commit_nothing():
    world, task, _ = training(steps=10)
    for attempt, generation in ((2, 1), (1, 0), (1, 2), (0, 1)):
        report = CommitSteps(task=task.id, attempt=attempt, generation=generation, steps=99)
        assert world.do(report) == 10
        assert world.last == []


def test_steps_commit_once_and_in_order():
    world, task, _ = training(steps=10)
    world.train(task, 15)
    world.train(task, 15)
    world.train(task, 12)
    runs = [(fact.first, fact.last) for fact in world.facts(StepsCommitted)]
    assert runs == [(0, 9), (10, 14)]


def test_nothing_commits_before_the_generation_runs():
    world, task, (_a, b) = training(steps=10, policy="continue")
    b.lost()
    report = CommitSteps(task=task.id, attempt=1, generation=task.generation, steps=20)
    assert (world.do(report), world.last) == (10, [])


def test_only_members_enter_and_only_the_present_generation():
    world, _task, (a, _b) = training()
    with pytest.raises(NotAllowedNow, match="generation 9"):
        world.do(EnterGeneration(**a.me, generation=9))
    waiting = world.submit(2, name="other")
    (c,) = world.join(waiting, "c")
    with pytest.raises(NotAllowedNow):
        c.enter()
    with pytest.raises(NotFound):
        world.do(CommitSteps(task="none", attempt=1, generation=1, steps=1))


def test_epoch_ends_with_the_step_that_completes_it_and_returns_with_a_rollback():
    world, task, peers = training(steps=0)
    spec = DatasetSpec(total_samples=100, shard_size=10)
    world.do(RegisterDataset(dataset="d", spec=spec))
    world.do(AttachDataset(task=task.id, dataset="d", unit="lane", global_batch=20, lanes=4))
    world.train(task, 4)
    assert world.new(EpochAdvanced) == []
    world.save(task, 4)
    world.train(task, 5)
    advanced = world.one(EpochAdvanced)
    assert (advanced.epoch, advanced.step) == (1, 5)
    world.train(task, 10)
    assert task.feeds["d"].epoch == 2
    replace_all(world, task, peers)
    world.sync(task)
    assert (task.committed, task.feeds["d"].epoch) == (4, 0)
    world.train(task, 5)
    assert world.one(EpochAdvanced).epoch == 1


def test_ended_task_chooses_no_recovery_and_voids_nothing():
    world = World()
    task = world.submit(2, policy="stop")
    a, b = world.join(task, "a", "b")
    world.sync(task)
    world.train(task, 10)
    b.lost()
    assert task.state == "failed"
    a.model = Entry(0, 0, -1)
    with pytest.raises(NotAllowedNow):
        a.enter()
    assert (world.last, task.committed) == ([], 10)


def test_choice_names_the_entry_that_completed_the_generation_as_cause():
    world, task, (_a, _b) = training(name="default")
    (_c,) = world.join(task, "c")
    changed = world.event(world.one(GenerationChanged))
    world.sync(task)
    entered, chosen = world.last[0], world.one(RecoveryChosen)
    assert world.event(chosen).cause == (f"@{world.event(entered).seq}",)
    assert world.event(entered).seq > changed.seq
