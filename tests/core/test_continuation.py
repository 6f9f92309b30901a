"""Continuing an ended task: the same id, from its newest checkpoint, with the parameters given."""

import msgspec
import pytest

from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.training_loops import LoopContinued
from strata.core.generations.recovery import EnterGeneration, RecoveryChosen, RolledBack
from strata.core.state import DatasetSpec
from strata.core.tasks.continuation import ContinueTask, EndKilledTask, TaskContinued, changes
from strata.core.tasks.placement import StopTask
from strata.core.tasks.task_forks import ForkTask
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.errors import Conflict, InvalidArgument, NotAllowedNow, NotFound
from tests.core.world import World


def trained(workers=2, slots=4, **spec):
    """A placed task at step 10, with a checkpoint of step 8."""
    world = World()
    world.agent("host", slots=slots)
    task = world.submit(workers, external=False, **spec)
    world.start(task)
    world.sync(task)
    world.train(task, 8)
    world.save(task, 8)
    world.train(task, 10)
    return world, task


def stop(world, task):
    world.do(StopTask(task=task.id))
    for peer in world.members(task):
        peer.leave("stopped")
    assert task.state == "stopped"


def fail(world, task):
    first, second = world.members(task)
    first.leave("failed")
    second.lost()
    assert task.state == "failed"


def complete(world, task):
    for peer in world.members(task):
        peer.leave("done", steps=10)
    assert task.state == "completed"


@pytest.mark.parametrize("end", [stop, fail, complete])
def test_ended_task_continues_at_its_newest_checkpoint(end):
    world, task = trained(policy="stop" if end is fail else "replace")
    generation = task.generation
    end(world, task)
    world.do(ContinueTask(task=task.id))
    assert (task.state, task.ended_ns, task.exit_code) == ("starting", 0, 0)
    assert world.one(TaskContinued).step == 8
    world.start(task)
    world.sync(task)
    assert (task.state, task.committed, task.generation > generation) == ("running", 8, True)
    assert world.one(RecoveryChosen).source == "checkpoint"
    assert (world.one(RolledBack).origin, world.one(RolledBack).to) == (10, 8)
    world.train(task, 12)
    complete(world, task)


def test_starts_of_workers_are_numbered_on():
    world, task = trained()
    stop(world, task)
    world.do(ContinueTask(task=task.id))
    assert {placement.start for placement in task.placements.values()} == {2}
    world.start(task)
    world.sync(task)
    world.exit(task, task.members[0])
    assert {placement.start for placement in task.placements.values()} == {2, 3}
    stop(world, task)
    world.do(ContinueTask(task=task.id))
    assert {placement.start for placement in task.placements.values()} == {4}


def test_process_that_dies_before_it_joins_again_is_replaced():
    world, task = trained(workers=1)
    stop(world, task)
    world.do(ContinueTask(task=task.id))
    world.exit(task, f"{task.id}-w0")
    assert task.state == "starting"
    assert task.placements[f"{task.id}-w0"].start == 3


def test_task_continues_with_other_parameters_and_names_each_change():
    world, task = trained(config='{"lr": 0.1, "depth": 3}')
    stop(world, task)
    spec = msgspec.structs.replace(task.spec, worker_count=4, config='{"lr": 0.5, "depth": 3}')
    world.do(ContinueTask(task=task.id, spec=spec))
    fact = world.one(TaskContinued)
    assert fact.changes == {"worker_count": ("2", "4"), "config.lr": ("0.1", "0.5")}
    assert fact.reason == "worker_count 2 → 4, config.lr 0.1 → 0.5"
    assert len(task.placements) == 4
    world.start(task)
    world.sync(task)
    assert (len(task.members), task.committed) == (4, 8)


def test_changes_of_the_same_parameters_are_none():
    _, task = trained()
    assert changes(task.spec, msgspec.structs.replace(task.spec, env_key="other")) == {}


@pytest.mark.parametrize("parameter", [{"model_state": "sharded"}, {"name": "other"}])
def test_parameter_that_is_fixed_cannot_change(parameter):
    world, task = trained()
    stop(world, task)
    with pytest.raises(InvalidArgument, match="cannot become"):
        world.do(ContinueTask(task=task.id, spec=msgspec.structs.replace(task.spec, **parameter)))
    assert task.state == "stopped"


def test_task_of_a_framework_trainer_continues_only_with_its_number_of_workers():
    world, task = trained()
    me = world.members(task)[0].me
    world.do(EnterGeneration(**me, generation=task.generation, trainer="Lightning's Trainer"))
    stop(world, task)
    for changed in ({"worker_count": 1}, {"elastic": True, "min_workers": 1}):
        spec = msgspec.structs.replace(task.spec, **changed)
        with pytest.raises(InvalidArgument, match="Lightning's Trainer divides the data") as other:
            world.do(ContinueTask(task=task.id, spec=spec))
        assert f'from_="{task.id}"' in other.value.hint
        with pytest.raises(InvalidArgument, match="Lightning's Trainer divides the data"):
            world.do(ForkTask(task=task.id, spec=spec))
    spec = msgspec.structs.replace(task.spec, config='{"lr": 0.5}')
    world.do(ContinueTask(task=task.id, spec=spec))
    world.start(task)
    world.sync(task)
    assert (len(task.members), task.committed) == (2, 8)


def test_running_task_is_not_continued_and_neither_is_one_twice():
    world, task = trained()
    with pytest.raises(NotAllowedNow, match="is running"):
        world.do(ContinueTask(task=task.id))
    stop(world, task)
    world.do(ContinueTask(task=task.id))
    with pytest.raises(NotAllowedNow, match="is starting"):
        world.do(ContinueTask(task=task.id))
    with pytest.raises(NotFound):
        world.do(ContinueTask(task="none-9"))


def test_task_whose_workers_still_end_is_not_continued():
    world, task = trained(policy="stop")
    first, second = world.members(task)
    first.lost()
    assert (task.state, second.worker.alive) == ("failed", True)
    with pytest.raises(Conflict, match="still ending"):
        world.do(ContinueTask(task=task.id))
    second.lost()
    world.do(ContinueTask(task=task.id))
    assert task.state == "starting"


@pytest.mark.parametrize("moment", ["starting", "running", "recovering", "forming"])
def test_killed_run_continues(moment):
    world, task = trained()
    if moment == "starting":
        world = World()
        world.agent("host", slots=4)
        task = world.submit(2, external=False)
    elif moment == "recovering":
        world.members(task)[1].lost()
        world.start(task)
    elif moment == "forming":
        world.members(task)[1].lost()
    world.restart()
    task = world.state.tasks[task.id]
    living = [worker.id for worker in world.state.workers.values() if worker.alive]
    world.do(EndKilledTask(task=task.id))
    assert [fact.worker for fact in world.new(WorkerLost)] == living
    assert task.state == "stopped"
    assert task.reason.startswith("the run was killed")
    world.do(ContinueTask(task=task.id))
    world.start(task)
    world.sync(task)
    assert (task.state, task.committed) == ("running", 0 if moment == "starting" else 8)


def test_task_without_a_checkpoint_starts_at_step_0():
    world = World()
    world.agent("host")
    task = world.submit(2, external=False)
    world.start(task)
    world.sync(task)
    world.train(task, 3)
    stop(world, task)
    world.do(ContinueTask(task=task.id))
    assert world.one(TaskContinued).step == 0
    world.start(task)
    world.sync(task)
    assert (task.committed, task.recovery.source) == (0, "fresh")


def test_continued_task_waits_for_slots_in_the_queue():
    world, task = trained(workers=2, slots=2)
    stop(world, task)
    other = world.submit(2, external=False)
    world.do(ContinueTask(task=task.id))
    assert (other.state, task.state) == ("starting", "queued")


def test_external_task_waits_for_its_workers_again():
    world = World()
    task = world.submit(1)
    (peer,) = world.join(task, "a")
    world.sync(task)
    world.train(task, 4)
    world.save(task, 4)
    peer.leave("stopped")
    assert task.state == "stopped"
    world.do(ContinueTask(task=task.id))
    assert task.state == "starting"
    world.join(task, "a")
    world.sync(task)
    assert (task.state, task.committed) == ("running", 4)


def looped(**loop):
    """A completed task of 20 steps over a dataset of 40 samples, in one loop."""
    world = World()
    world.agent("host", slots=2)
    world.do(RegisterDataset(dataset="d", spec=DatasetSpec(total_samples=40, shard_size=10)))
    task = world.submit(2, external=False)
    world.start(task)
    world.sync(task)
    attach(world, task, 0, **loop)
    world.train(task, 10)
    world.save(task, 10)
    complete(world, task)
    world.do(ContinueTask(task=task.id))
    world.start(task)
    world.sync(task)
    return world, task


def attach(world, task, step, **loop):
    lanes = {"unit": "lane", "global_batch": 8, "lanes": 4, "loop": "0.-1.0", "step": step}
    return world.do(AttachDataset(task=task.id, dataset="d", **lanes, **loop))


def test_loop_of_a_continued_task_can_get_more_epochs():
    world, task = looped(loop_epochs=2)
    attach(world, task, 10, loop_epochs=4, epochs=4)
    assert (world.one(LoopContinued).before, world.one(LoopContinued).steps) == (10, 20)
    assert (task.loops["0.-1.0"].steps, task.feeds["d"].epochs) == (20, 4)
    attach(world, task, 10, loop_epochs=4)
    assert not world.new(LoopContinued)


def test_workers_of_a_continued_task_must_ask_for_the_same_epochs():
    world, task = looped(loop_epochs=2)
    attach(world, task, 10, loop_epochs=2)
    with pytest.raises(InvalidArgument, match="others for 10 steps"):
        attach(world, task, 10, loop_epochs=4)


def test_loop_cannot_become_shorter_than_what_is_trained():
    world, task = looped(loop_epochs=2)
    with pytest.raises(InvalidArgument, match="has trained 10 steps"):
        attach(world, task, 10, loop_epochs=1)


def test_continued_task_waits_for_all_of_its_workers():
    world, task = trained(workers=1)
    stop(world, task)
    world.do(ContinueTask(task=task.id, spec=msgspec.structs.replace(task.spec, worker_count=3)))
    assert task.required == 3
    world.start(task)
    world.sync(task)
    assert len(task.members) == 3
