"""Checkpoints in progress: keyed by id, committed only when every rank has acknowledged its part,
and failed when a rank is lost before."""

import pytest

from strata.core.checkpoints.checkpoint_commits import (
    AckPart,
    ConfirmCheckpoint,
    FailCheckpoint,
    NoteCopy,
)
from strata.core.checkpoints.checkpoint_lifecycle import (
    MAX_ENDED,
    CheckpointCommitted,
    CheckpointCopied,
    CheckpointFailed,
    CheckpointPartAcked,
    CheckpointSealed,
    CheckpointStarted,
    committed_newest_first,
)
from strata.core.generations.recovery import RecoveryChosen, StepsCommitted
from strata.errors import AlreadyExists, InvalidArgument, NotAllowedNow, NotFound
from tests.core.world import World


def training(workers=2, steps=10, **spec):
    """A task whose workers a, b, c… have trained some steps."""
    world = World()
    task = world.submit(workers, **{"policy": "continue", **spec})
    peers = world.join(task, *"abcdefgh"[:workers])
    world.sync(task)
    world.train(task, steps)
    return world, task, peers


def newest(task):
    return committed_newest_first(task)[0].id


def test_first_rank_opens_and_the_others_join():
    world, _task, (a, b) = training()
    first = a.begin(10, epoch=1, path="ckpt", metadata={"k": "v"})
    started = world.one(CheckpointStarted)
    assert (started.expected, started.worker, started.metadata) == (2, "a", {"k": "v"})
    assert (b.begin(10).id, world.last) == (first.id, [])


def test_two_checkpoints_of_one_step_are_separate():
    world, task, _ = training()
    assert world.save(task, 10).id != world.save(task, 10).id
    assert len(committed_newest_first(task)) == 2


def test_different_steps_are_saved_at_the_same_time():
    _world, _task, (a, b) = training()
    one, two = a.begin(10), a.begin(11)
    assert one.id != two.id
    for checkpoint in (two, one):
        a.ack(checkpoint)
        b.ack(checkpoint)
    assert {one.state, two.state} == {"sealing"}


def test_chosen_id_is_kept_and_not_used_twice():
    world, task, (a, _b) = training()
    mine = world.save(task, 10, checkpoint="mine")
    assert mine.id == "mine"
    with pytest.raises((InvalidArgument, AlreadyExists), match="mine"):
        a.begin(11, checkpoint="mine")


def test_generated_id_never_equals_a_chosen_one():
    _world, _task, (a, _b) = training()
    made = a.begin(10).id
    a.begin(20, checkpoint=made.replace("00000010-1", "00000030-3"))
    assert a.begin(30).id not in (made, "step-00000030-3")


def test_ids_are_per_task():
    world, task, _ = training()
    other = world.submit(1, name="other")
    world.join(other, "x")
    world.sync(other)
    world.save(task, 10, checkpoint="same")
    world.save(other, 5, checkpoint="same")
    assert (task.checkpoints["same"].step, other.checkpoints["same"].step) == (10, 5)


def test_checkpoint_is_sealed_after_every_rank_and_committed_after_the_manifest():
    world, task, (a, b, c) = training(3)
    checkpoint = a.begin(10)
    a.ack(checkpoint)
    b.ack(checkpoint)
    assert (checkpoint.state, world.facts(CheckpointSealed)) == ("in_progress", [])
    c.ack(checkpoint)
    assert (checkpoint.state, world.one(CheckpointSealed).size_bytes) == ("sealing", 300)
    assert committed_newest_first(task) == []
    world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m.json"))
    committed = world.one(CheckpointCommitted)
    assert (committed.step, committed.path, committed.size_bytes) == (10, "m.json", 300)
    assert newest(task) == checkpoint.id


def test_without_a_manifest_the_last_acknowledgement_commits():
    world, _task, (a, b) = training()
    checkpoint = a.begin(10, manifest=False, path="ckpt/10")
    a.ack(checkpoint)
    assert checkpoint.state == "in_progress"
    b.ack(checkpoint)
    assert world.one(CheckpointCommitted).path == "ckpt/10"
    assert world.new(CheckpointSealed) == []


def test_part_says_which_rank_wrote_what_and_where():
    world, _task, (a, b) = training()
    checkpoint = a.begin(10)
    world.do(AckPart(**b.me, checkpoint=checkpoint.id, path="p", size_bytes=7, checksum="xx"))
    part = checkpoint.parts[1]
    assert (part.worker, part.path, part.size_bytes, part.checksum) == ("b", "p", 7, "xx")


def test_acknowledgement_counts_once():
    world, _task, (a, _b) = training()
    checkpoint = a.begin(10)
    a.ack(checkpoint)
    a.ack(checkpoint)
    assert (world.last, checkpoint.state) == ([], "in_progress")
    assert len(world.facts(CheckpointPartAcked)) == 1


def test_confirming_twice_commits_once():
    world, task, _ = training()
    checkpoint = world.save(task, 10)
    world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="again"))
    assert (world.last, checkpoint.path) == ([], "ckpt/m")


def test_checkpoint_that_lacks_a_part_cannot_be_confirmed():
    world, task, (a, _b) = training()
    checkpoint = a.begin(10)
    a.ack(checkpoint)
    with pytest.raises(NotAllowedNow, match="2 ranks"):
        world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m"))


def test_sealing_checkpoint_is_confirmed_after_a_restart():
    world, task, _ = training()
    checkpoint = world.seal(task, 10)
    world.restart()
    world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m"))
    assert newest(world.state.tasks[task.id]) == checkpoint.id


def test_lost_rank_fails_the_checkpoint_and_the_previous_one_stays_latest():
    world, task, (a, b) = training()
    before = world.save(task, 10)
    checkpoint = a.begin(20)
    a.ack(checkpoint)
    b.lost()
    failed = world.one(CheckpointFailed)
    assert (failed.checkpoint, failed.missing) == (checkpoint.id, [1])
    assert "b was lost" in failed.reason
    assert (checkpoint.state, newest(task)) == ("failed", before.id)


def test_rank_lost_after_its_acknowledgement_fails_an_incomplete_checkpoint():
    world, _task, (_a, b) = training()
    checkpoint = b.begin(20)
    b.ack(checkpoint)
    b.lost()
    assert (checkpoint.state, world.one(CheckpointFailed).missing) == ("failed", [0])


def test_loss_after_the_last_acknowledgement_does_not_fail_the_checkpoint():
    world, task, (_a, b) = training()
    checkpoint = world.seal(task, 20)
    b.lost()
    assert checkpoint.state == "sealing"
    world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m"))
    assert newest(task) == checkpoint.id


def test_new_member_ends_the_generation_and_its_checkpoint():
    world, task, (a, _b) = training(name="default")
    checkpoint = a.begin(20)
    world.join(task, "c")
    assert checkpoint.state == "failed"
    assert "c joined" in checkpoint.reason


def test_late_part_is_refused():
    world, _task, (a, b, c) = training(3)
    checkpoint = a.begin(20)
    a.ack(checkpoint)
    c.lost()
    with pytest.raises(NotAllowedNow, match="failed"):
        b.ack(checkpoint)
    assert world.last == []


def test_part_of_a_worker_of_another_generation_is_refused_even_at_the_same_rank():
    world, task, (_a, b) = training(policy="replace")
    checkpoint = world.save(task, 10)
    b.lost()
    (c,) = world.join(task, "c")
    assert c.worker.rank == 1
    with pytest.raises(NotAllowedNow):
        c.ack(checkpoint)


def test_saving_for_another_generation_is_refused():
    world, _task, (a, _b) = training()
    with pytest.raises(NotAllowedNow, match="generation 0"):
        a.begin(10, generation=0)
    with pytest.raises(NotFound, match="nothing"):
        world.do(AckPart(**a.me, checkpoint="nothing", path="p", size_bytes=1))


def test_worker_outside_the_generation_cannot_save():
    world = World()
    task = world.submit(2)
    (a,) = world.join(task, "a")
    with pytest.raises(NotAllowedNow):
        a.begin(1)


def test_step_below_zero_is_refused():
    _world, _task, (a, _b) = training()
    with pytest.raises(InvalidArgument):
        a.begin(-1)


def test_saving_is_refused_before_the_generation_is_synced():
    world, task, (a, _b) = training(name="default")
    world.join(task, "c")
    assert task.phase == "syncing"
    with pytest.raises(NotAllowedNow):
        a.begin(10)


def test_committed_checkpoint_commits_its_steps():
    world, task, _ = training(steps=10)
    world.save(task, 25)
    committed = world.one(StepsCommitted)
    assert (committed.first, committed.last, task.committed) == (10, 24, 25)
    world.save(task, 20)
    assert (world.new(StepsCommitted), task.committed) == ([], 25)


def test_damaged_checkpoint_fails_and_the_previous_one_is_restored():
    world, task, (a, b) = training(policy="replace")
    older = world.save(task, 10)
    damaged = world.save(task, 20)
    world.do(
        FailCheckpoint(task=task.id, checkpoint=damaged.id, reason="wrong checksum", damaged=True)
    )
    assert (damaged.state, newest(task)) == ("failed", older.id)
    for peer in (a, b):
        peer.lost()
    world.join(task, "c", "d")
    world.sync(task)
    chosen = world.one(RecoveryChosen)
    assert (chosen.checkpoint, chosen.step, task.committed) == (older.id, 10, 10)


def test_failing_a_checkpoint_twice_changes_nothing():
    world, task, (_a, _b) = training()
    checkpoint = world.seal(task, 20)
    for _ in range(2):
        world.do(FailCheckpoint(task=task.id, checkpoint=checkpoint.id, reason="disk full"))
    assert len(world.facts(CheckpointFailed)) == 1
    with pytest.raises(NotAllowedNow, match="failed"):
        world.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="m"))


def test_worker_that_finishes_without_saving_fails_the_open_checkpoint():
    world, task, (a, b) = training()
    waiting, whole = a.begin(10), world.seal(task, 8)
    a.ack(waiting)
    b.leave(steps=10)
    assert (waiting.state, whole.state) == ("failed", "sealing")
    assert "worker b finished" in waiting.reason


def test_workers_that_end_at_different_steps_have_no_final_checkpoint():
    _world, _task, (a, b) = training()
    opened = a.begin(12, final=True)
    other = b.begin(10, final=True)
    assert (opened.state, other.state) == ("failed", "failed")
    assert "a at step 12, b at step 10" in other.reason
    assert a.begin(12, final=True) is b.begin(12, final=True), "they may still agree"


def test_checkpoint_is_refused_after_a_member_has_finished():
    _world, _task, (a, b) = training()
    a.leave("done", steps=12)
    with pytest.raises(NotAllowedNow, match="worker 'a' has finished"):
        b.begin(12, final=True)


def test_copy_is_recorded_once_and_only_for_committed_checkpoints():
    world, task, (a, _b) = training()
    saved, open_one = world.save(task, 10), a.begin(20)
    for checkpoint in (saved, saved, open_one):
        world.do(NoteCopy(task=task.id, checkpoint=checkpoint.id, path="s3://bucket/c"))
    assert len(world.facts(CheckpointCopied)) == 1
    assert (saved.copies, open_one.copies) == (["s3://bucket/c"], [])


def test_task_keeps_a_bounded_number_of_failed_checkpoints():
    world, task, (a, _b) = training()
    kept = world.save(task, 10)
    for step in range(20, 20 + MAX_ENDED + 5):
        checkpoint = a.begin(step)
        world.do(FailCheckpoint(task=task.id, checkpoint=checkpoint.id, reason="no"))
    assert len(task.checkpoints) == MAX_ENDED + 1
    assert newest(task) == kept.id
    assert len({fact.checkpoint for fact in world.facts(CheckpointStarted)}) == MAX_ENDED + 6


def test_spare_cannot_acknowledge_a_part():
    world = World()
    world.agent("host", 3)
    task = world.submit(2, external=False, spares=1)
    world.start(task)
    world.sync(task)
    world.train(task, 10)
    first, _second = world.members(task)
    (spare,) = (world.peers[worker] for worker in task.waiting)
    checkpoint = first.begin(10)
    first.ack(checkpoint)
    with pytest.raises(NotAllowedNow, match="not a member of generation 1"):
        spare.ack(checkpoint)
    assert (checkpoint.state, list(checkpoint.parts)) == ("in_progress", [0])
