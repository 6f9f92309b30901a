"""Forks: a new task with its parent's history up to a checkpoint, and a future of its own."""

import msgspec
import pytest

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointDeleted
from strata.core.checkpoints.checkpoint_retention import CheckpointReleased, DeleteCheckpoint
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.generations.recovery import RecoveryChosen
from strata.core.state import DatasetSpec
from strata.core.tasks.placement import StopTask
from strata.core.tasks.task_forks import ForkTask, TaskForked
from strata.errors import InvalidArgument, NotAllowedNow, NotFound
from tests.core.world import World


def trained(**spec):
    """A running task at step 12 with checkpoints of steps 4 and 8, in its second loop."""
    world = World()
    world.agent("host", slots=8)
    world.do(RegisterDataset(dataset="d", spec=DatasetSpec(total_samples=40, shard_size=10)))
    task = world.submit(2, external=False, **spec)
    world.start(task)
    world.sync(task)
    attach(world, task, "0.-1.0", 0)
    for step in (4, 8):
        world.train(task, step)
        world.save(task, step)
        if step == 4:
            attach(world, task, "0.-1.1", 5)
    world.train(task, 12)
    return world, task


def attach(world, task, loop, step, **more):
    lanes = {"unit": "lane", "global_batch": 8, "lanes": 4, "loop": loop, "step": step}
    world.do(AttachDataset(task=task.id, dataset="d", **lanes, loop_epochs=1, **more))


def forked(world, task, step=None, **changes):
    spec = msgspec.structs.replace(task.spec, **changes)
    return world.do(ForkTask(task=task.id, spec=spec, step=step))


def test_fork_resumes_at_the_checkpoint_of_its_parent():
    world, task = trained()
    fork = forked(world, task, 8)
    saved = next(each for each in task.checkpoints.values() if each.step == 8)
    fact = world.one(TaskForked)
    assert (fact.task, fact.parent, fact.step, fact.checkpoint) == ("demo-2", task.id, 8, saved.id)
    world.start(fork)
    world.sync(fork)
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.checkpoint, fork.committed) == ("checkpoint", saved.id, 8)
    assert fork.generation > task.generation
    assert fork.loops == task.loops
    assert (task.committed, task.state) == (12, "running")


def test_fork_has_the_loops_of_its_step_and_not_later_ones():
    world, task = trained()
    fork = forked(world, task, 4)
    assert list(fork.loops) == ["0.-1.0"]
    assert (fork.committed, fork.feeds["d"].epoch) == (4, 0)
    assert all(not feed.holdings for feed in fork.feeds.values())


def test_fork_names_each_change():
    world, task = trained(config='{"lr": 0.1}')
    fork = forked(world, task, config='{"lr": 0.5}', worker_count=3, name="hot")
    assert fork.id == "hot-2"
    assert world.one(TaskForked).changes == {
        "name": ("demo", "hot"),
        "worker_count": ("2", "3"),
        "config.lr": ("0.1", "0.5"),
    }


def test_checkpoint_is_kept_in_the_parent_while_the_fork_needs_it():
    world, task = trained(keep_count=1)
    saved = next(each for each in task.checkpoints.values() if each.state == "committed")
    fork = forked(world, task, keep_count=1)
    world.save(task, 12)
    with pytest.raises(NotAllowedNow, match="demo-2"):
        world.do(DeleteCheckpoint(task=task.id, checkpoint=saved.id))
    world.start(fork)
    world.sync(fork)
    world.train(fork, 10)
    world.save(fork, 10)
    assert [fact.task for fact in world.new(CheckpointDeleted)] == [fork.id, task.id]
    assert world.one(CheckpointReleased).holder == fork.id


def test_fork_of_a_fork_restores_the_files_of_the_first_task():
    world, task = trained()
    second = forked(world, forked(world, task, 8), 8)
    assert [each.owner for each in second.checkpoints.values()] == [task.id]


def test_ended_task_can_be_forked():
    world, task = trained()
    world.do(StopTask(task=task.id))
    for peer in world.members(task):
        peer.leave("stopped")
    assert forked(world, task, 4).state == "starting"


def test_step_without_a_checkpoint_is_refused_with_the_nearest():
    world, task = trained()
    with pytest.raises(NotFound, match="no checkpoint of step 6") as refused:
        forked(world, task, 6)
    assert "4, 8" in refused.value.hint


def test_task_without_a_checkpoint_cannot_be_forked():
    world = World()
    with pytest.raises(NotFound, match="has no checkpoint"):
        forked(world, world.submit(1))


def test_fork_cannot_have_another_layout_of_the_state():
    world, task = trained()
    with pytest.raises(InvalidArgument, match="model_state"):
        forked(world, task, model_state="sharded")


def test_task_with_leased_shards_cannot_be_forked():
    world, task = trained()
    world.do(RegisterDataset(dataset="e", spec=DatasetSpec(total_samples=40, shard_size=10)))
    world.do(AttachDataset(task=task.id, dataset="e", unit="lease"))
    with pytest.raises(NotAllowedNow, match="leases shards"):
        forked(world, task)
