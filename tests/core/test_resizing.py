"""Resizing: more or fewer workers without a loss, a rollback or a restart, and elastic ranges."""

import pytest

from strata.core.checkpoints.save_schedule import EndTraining
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import (
    EnterGeneration,
    RebuildDeclared,
    RecoveryChosen,
    RolledBack,
)
from strata.core.invariants import broken
from strata.core.rule_settings import Rules
from strata.core.state import DatasetSpec
from strata.core.tasks.elastic_workers import WorkersReleased
from strata.core.tasks.framework_trainer import TrainerDeclared
from strata.core.tasks.placement import StopTask, free_slots
from strata.core.tasks.resizing import ResizeTask, TaskResized
from strata.core.tasks.standing import affected, duties, standing
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.tasks.task_queue import Queue
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.errors import InvalidArgument, NotAllowedNow, NotFound, TaskEnded
from tests.core.world import World


def cluster(**slots):
    world = World()
    for agent, count in slots.items():
        world.agent(agent, count)
    return world


def training(world, workers=2, steps=5, **spec):
    """A placed task that trains and has committed some steps."""
    task = world.submit(workers, external=False, **spec)
    world.start(task)
    world.sync(task)
    world.train(task, steps)
    return task


def resize(world, task, workers, fewest=0):
    answer = world.do(ResizeTask(task=task.id, worker_count=workers, min_workers=fewest))
    assert broken(world.state) == []
    return answer


def numbers(task):
    return (len(task.members), len(task.placements), len(task.released))


def end_released(world, task):
    """The released workers leave, and their agents report the ends of their processes."""
    for worker in list(task.released):
        world.peers[worker].leave("stopped")
        world.exit(task, worker, code=0)


def assert_nothing_lost(world):
    assert world.facts(WorkerLost) == []
    assert world.facts(RolledBack) == []
    assert broken(world.state) == []


def test_growing_task_gets_new_workers_that_join_the_running_ones():
    world = cluster(a=4)
    task = training(world, 2)
    answer = resize(world, task, 4)
    assert (answer.before, answer.after, answer.placed, answer.waiting) == (2, 4, 4, 0)
    assert world.one(TaskResized) == TaskResized(
        task=task.id, before=2, after=4, reason="asked for"
    )
    assert list(world.one(TaskPlaced).placements) == [f"{task.id}-w2", f"{task.id}-w3"]
    assert task.phase == "running", "the members train on until a new worker is here"
    world.start(task)
    world.sync(task)
    assert numbers(task) == (4, 4, 0)
    chosen = world.facts(RecoveryChosen)[-1]
    assert (chosen.source, chosen.step) == ("peer", 5)
    assert_nothing_lost(world)


def test_growing_task_waits_for_slots_and_gets_them_before_queued_tasks():
    world = cluster(a=4)
    other = training(world, 2, name="other")
    task = training(world, 1)
    answer = resize(world, task, 3)
    assert (answer.placed, answer.waiting) == (2, 1)
    assert Queue(world.state).waiting_for(task) == "2 of 3 workers; 1 waits for a slot"
    queued = world.submit(1, external=False, name="queued")
    assert queued.state == "queued"
    for peer in world.members(other):
        peer.leave("done", steps=5)
    assert len(task.placements) == 3
    assert queued.state == "starting"
    assert Queue(world.state).waiting_for(task) == ""


def test_growing_task_trains_on_when_a_worker_is_lost_before_the_new_ones_are_here():
    world = cluster(a=3)
    task = training(world, 2)
    resize(world, task, 3)
    world.exit(task, task.members[1], code=1)
    assert task.phase == "forming", "the policy replaces the lost worker first"
    world.start(task)
    world.sync(task)
    assert len(task.members) == 3
    assert world.facts(RolledBack) == []


def test_shrinking_task_releases_the_highest_ranks():
    world = cluster(a=4)
    task = training(world, 4)
    highest = task.members[2:]
    answer = resize(world, task, 2)
    assert (answer.before, answer.after, answer.placed, answer.waiting) == (4, 2, 2, 0)
    assert world.one(WorkersReleased).left == highest
    assert world.one(GenerationChanged).left == highest
    assert numbers(task) == (2, 2, 2)
    assert task.waiting == []
    world.sync(task)
    assert task.committed == 5
    assert_nothing_lost(world)


def test_released_worker_is_told_so_and_its_agent_no_longer_keeps_it():
    world = cluster(a=2)
    task = training(world, 2)
    kept, gone = task.members
    resize(world, task, 1)
    events = world.log[-len(world.last) :]
    told = affected(world.state, events)
    assert {kept, gone} <= set(told.workers)
    assert told.agents == ["a"]
    assert standing(world.state, gone).released
    assert standing(world.state, gone).rank == -1
    assert not standing(world.state, kept).released
    assert [duty.worker for duty in duties(world.state, "a")] == [kept]


def test_slot_of_a_released_worker_is_free_when_its_process_has_ended():
    world = cluster(a=2)
    task = training(world, 2)
    queued = world.submit(1, external=False, name="queued")
    resize(world, task, 1)
    assert (free_slots(world.state), queued.state) == ({"a": 0}, "queued")
    end_released(world, task)
    assert queued.state == "starting"
    assert numbers(task) == (1, 1, 0)
    assert_nothing_lost(world)


@pytest.mark.parametrize("ends", ["crash", "timeout", "failure"])
def test_released_worker_is_not_lost_however_it_ends(ends):
    world = cluster(a=2)
    task = training(world, 2, policy="stop")
    gone = world.peers[task.members[1]]
    resize(world, task, 1)
    if ends == "timeout":
        gone.lost()
    if ends == "failure":
        gone.leave("failed")
    world.exit(task, gone.id, code=1)
    assert gone.worker.state == "left"
    assert (task.state, task.released, task.vacant) == ("recovering", {}, [])
    world.sync(task)
    assert_nothing_lost(world)


def test_released_worker_of_a_lost_host_holds_no_slot_when_the_host_is_back():
    world = cluster(a=1, b=1)
    task = training(world, 2)
    host = task.placements[task.members[1]].agent
    resize(world, task, 1)
    world.lose_agent(host)
    assert task.released == {}
    world.agent(host, 1)
    assert free_slots(world.state)[host] == 1
    assert_nothing_lost(world)


def test_released_worker_that_left_before_its_host_was_lost_holds_no_slot():
    world = cluster(a=1, b=1)
    task = training(world, 2)
    gone = world.peers[task.members[1]]
    host = task.placements[gone.id].agent
    resize(world, task, 1)
    gone.leave("stopped")
    world.lose_agent(host)
    assert task.released == {}


def test_released_worker_that_registers_again_is_refused():
    world = cluster(a=2)
    task = training(world, 2)
    gone = task.members[1]
    resize(world, task, 1)
    world.peers[gone].leave("stopped")
    with pytest.raises(TaskEnded, match="released"):
        world.register(gone, task=task.id, start=1)


def test_worker_released_before_it_joined_frees_its_slot_at_once():
    world = cluster(a=4)
    task = training(world, 2)
    resize(world, task, 4)
    resize(world, task, 2)
    assert numbers(task) == (2, 2, 0)
    assert free_slots(world.state) == {"a": 2}
    assert task.phase == "running", "the members were not interrupted"
    with pytest.raises(TaskEnded):
        world.register(f"{task.id}-w3", task=task.id, start=1)


def test_numbers_of_released_workers_are_not_used_again():
    world = cluster(a=3)
    task = training(world, 3)
    resize(world, task, 1)
    end_released(world, task)
    world.sync(task)
    resize(world, task, 3)
    assert list(task.placements) == [f"{task.id}-w{n}" for n in (0, 3, 4)]


def test_resizing_up_and_down_keeps_every_committed_step():
    world = cluster(a=4)
    task = training(world, 2, steps=3)
    for count, steps in ((4, 6), (1, 9), (3, 12)):
        resize(world, task, count)
        end_released(world, task)
        world.start(task)
        world.sync(task)
        assert len(task.members) == count
        world.train(task, steps)
    assert task.committed == 12
    assert {chosen.source for chosen in world.facts(RecoveryChosen)[1:]} == {"peer"}
    assert_nothing_lost(world)


def test_shrinking_releases_lost_and_starting_workers_first():
    world = cluster(a=2, b=2)
    task = training(world, 3)
    resize(world, task, 4)
    world.exit(task, task.members[2], code=1)
    members = list(task.members)
    assert len(members) == 2
    resize(world, task, 2)
    assert (task.members, list(task.placements), task.released) == (members, members, {})
    assert task.phase == "syncing", "two workers are enough now"


def test_forming_task_starts_when_a_resize_makes_its_workers_enough():
    world = cluster(a=3)
    task = world.submit(3, external=False)
    world.join(task, f"{task.id}-w0", f"{task.id}-w1")
    assert task.phase == "forming"
    resize(world, task, 2)
    assert (task.phase, len(task.members)) == ("syncing", 2)
    world.sync(task)
    assert task.state == "running"


def test_task_can_be_resized_while_it_recovers():
    world = cluster(a=4)
    task = training(world, 3)
    world.exit(task, task.members[0], code=1)
    assert task.state == "recovering"
    resize(world, task, 4)
    world.start(task)
    world.sync(task)
    assert len(task.members) == 4
    resize(world, task, 1)
    assert task.state == "recovering"
    resize(world, task, 2)
    end_released(world, task)
    world.start(task)
    world.sync(task)
    assert (len(task.members), task.committed) == (2, 5)


def test_queued_task_starts_when_it_is_resized_to_what_is_free():
    world = cluster(a=2)
    task = world.submit(4, external=False)
    assert task.state == "queued"
    resize(world, task, 2)
    assert (task.state, len(task.placements)) == ("starting", 2)


def test_spares_stay_when_the_task_is_resized():
    world = cluster(a=5)
    task = training(world, 3, spares=1)
    assert len(task.waiting) == 1
    spare = task.waiting[0]
    resize(world, task, 2)
    assert (len(task.members), task.waiting) == (2, [spare])
    end_released(world, task)
    world.sync(task)
    resize(world, task, 4)
    world.start(task)
    assert (len(task.members), len(task.placements)) == (4, 5)


def test_same_number_changes_nothing():
    world = cluster(a=2)
    task = training(world, 2)
    answer = resize(world, task, 2)
    assert (answer.before, answer.after, world.last) == (2, 2, [])


def test_policy_continue_places_new_workers_beside_lost_ones():
    world = cluster(a=4)
    task = training(world, 3, policy="continue")
    world.exit(task, task.members[2], code=1)
    world.sync(task)
    resize(world, task, 4)
    assert len(task.placements) == 4
    assert task.vacant == []
    world.start(task)
    assert len(task.members) == 4


def test_external_task_takes_its_spares_and_returns_them():
    world = World()
    task = world.submit(2)
    world.join(task, "a", "b", "c", "d")
    world.sync(task)
    assert (task.members, task.waiting) == (["a", "b"], ["c", "d"])
    resize(world, task, 3)
    assert (task.members, task.waiting) == (["a", "b", "c"], ["d"])
    world.sync(task)
    answer = resize(world, task, 1)
    assert (answer.placed, answer.waiting) == (1, 0)
    assert (task.members, sorted(task.waiting)) == (["a"], ["b", "c", "d"])
    world.sync(task)
    answer = resize(world, task, 6)
    assert (answer.placed, answer.waiting) == (4, 2)
    assert_nothing_lost(world)


def test_global_batch_is_that_of_the_first_number_of_workers():
    world = cluster(a=4)
    for name in ("d", "e"):
        world.do(RegisterDataset(dataset=name, spec=DatasetSpec(total_samples=80, shard_size=10)))
    task = training(world, 2)
    per_worker = {"task": task.id, "unit": "lane", "batch_size": 4}
    first = world.do(AttachDataset(dataset="d", **per_worker))
    resize(world, task, 4)
    world.start(task)
    world.sync(task)
    second = world.do(AttachDataset(dataset="e", **per_worker))
    again = world.do(AttachDataset(dataset="d", **per_worker))
    assert [feed.global_batch for feed in (first, second, again)] == [8, 8, 8]


def test_resize_above_the_lanes_is_refused():
    world = cluster(a=8)
    world.do(RegisterDataset(dataset="d", spec=DatasetSpec(total_samples=80, shard_size=10)))
    task = training(world, 2)
    world.do(AttachDataset(task=task.id, dataset="d", unit="lane", global_batch=4))
    with pytest.raises(InvalidArgument, match="4 lanes, too few for 5 workers"):
        resize(world, task, 5)
    resize(world, task, 4)


@pytest.mark.parametrize(
    ("workers", "fewest", "message"),
    [
        (0, 0, "worker_count is 0"),
        (-1, 0, "worker_count is -1"),
        (101, 0, "worker_count is 101"),
        (2, 3, "min_workers is 3"),
        (5, 0, "would need 5 slots, and the agents offer 4"),
        (8, 5, "would need 5 slots, and the agents offer 4"),
    ],
)
def test_bad_numbers_are_refused(workers, fewest, message):
    world = World(Rules(max_workers=100))
    world.agent("a", 4)
    task = training(world, 2)
    with pytest.raises(InvalidArgument, match=message):
        resize(world, task, workers, fewest)


def test_unknown_task_is_refused():
    with pytest.raises(NotFound, match="no task"):
        World().do(ResizeTask(task="nothing-1", worker_count=2))


def test_task_that_ends_or_ended_is_refused_with_the_way_to_continue():
    world = cluster(a=2)
    task = training(world, 2)
    world.do(StopTask(task=task.id))
    with pytest.raises(NotAllowedNow, match="stopping") as refused:
        resize(world, task, 1)
    assert f"strata continue {task.id} --workers 1" in refused.value.hint
    for peer in world.members(task):
        peer.leave("stopped")
    with pytest.raises(NotAllowedNow, match="stopped") as refused:
        resize(world, task, 1)
    assert f"strata continue {task.id} --workers 1" in refused.value.hint


def test_task_whose_workers_end_their_training_is_refused():
    world = cluster(a=3)
    task = training(world, 2)
    world.do(EndTraining(**world.members(task)[0].me, step=5))
    with pytest.raises(NotAllowedNow, match="ended their training"):
        resize(world, task, 3)


@pytest.mark.parametrize("declared", [True, False])
def test_model_that_no_worker_holds_is_refused(declared):
    world = cluster(a=3)
    task = training(world, 2, model_state="replicated" if declared else "sharded")
    if declared:
        me = world.members(task)[0].me
        world.do(EnterGeneration(**me, generation=task.generation, rebuilds=True))
        assert world.one(RebuildDeclared).task == task.id
    with pytest.raises(NotAllowedNow, match="no worker holds the whole model") as refused:
        resize(world, task, 1)
    assert f"strata stop {task.id}" in refused.value.hint


def declare_trainer(world, task):
    me = world.members(task)[0].me
    world.do(EnterGeneration(**me, generation=task.generation, trainer="Lightning's Trainer"))


def test_task_of_a_framework_trainer_is_refused():
    world = cluster(a=3)
    task = training(world, 2)
    declare_trainer(world, task)
    assert world.one(TrainerDeclared).trainer == "Lightning's Trainer"
    declare_trainer(world, task)
    assert world.new(TrainerDeclared) == [], "it was declared before"
    for workers in (1, 3):
        with pytest.raises(NotAllowedNow, match="Lightning's Trainer divides the data") as refused:
            resize(world, task, workers)
        assert "submit a new task" in refused.value.hint
        assert f"strata continue {task.id}" not in refused.value.hint
    assert numbers(task) == (2, 2, 0)


def test_framework_trainer_is_refused_in_an_elastic_task():
    world = cluster(a=2)
    task = elastic(world, 1, 4)
    world.start(task)
    world.sync(task)
    with pytest.raises(InvalidArgument, match="1 to 4 workers, but Lightning's Trainer keeps"):
        declare_trainer(world, task)
    assert task.trainer == ""


def test_workers_that_enter_no_generations_are_refused():
    world = World()
    task = world.submit(1, syncs=False)
    world.join(task, "a")
    with pytest.raises(NotAllowedNow, match="TrainingOrchestrator"):
        resize(world, task, 2)


def test_default_task_is_refused():
    world = World()
    world.register("a")
    with pytest.raises(NotAllowedNow, match="all workers that join"):
        world.do(ResizeTask(task="default-1", worker_count=2))


def elastic(world, fewest, most, **spec):
    return world.submit(most, external=False, min_workers=fewest, elastic=True, **spec)


def test_elastic_task_starts_with_its_minimum_and_takes_free_slots():
    world = cluster(a=2)
    task = elastic(world, 2, 4)
    assert (task.state, len(task.placements)) == ("starting", 2)
    world.start(task)
    world.sync(task)
    world.agent("b", 1)
    assert len(task.placements) == 3
    world.agent("c", 5)
    assert len(task.placements) == 4
    world.start(task)
    world.sync(task)
    assert len(task.members) == 4
    assert Queue(world.state).waiting_for(task) == ""


def test_elastic_task_waits_for_its_minimum():
    world = cluster(a=1)
    task = elastic(world, 2, 4)
    assert task.state == "queued"
    assert Queue(world.state).waiting_for(task) == "1st in the queue; needs 2 slots, 1 of 1 is free"


def test_elastic_task_gives_back_the_fewest_slots_and_takes_them_again():
    world = cluster(a=3)
    task = elastic(world, 1, 3)
    world.start(task)
    world.sync(task)
    world.train(task, 5)
    other = world.submit(2, external=False, name="other")
    assert world.one(WorkersReleased).reason == f"{other.id} needs 2 more slots"
    assert (numbers(task), other.state) == ((1, 1, 2), "queued")
    end_released(world, task)
    assert other.state == "starting"
    world.sync(task)
    world.start(other)
    world.sync(other)
    for peer in world.members(other):
        peer.leave("done", steps=1)
    assert len(task.placements) == 3
    world.start(task)
    world.sync(task)
    assert (len(task.members), task.committed) == (3, 5)
    assert_nothing_lost(world)


def test_elastic_task_gives_nothing_if_that_would_not_be_enough():
    world = cluster(a=4)
    task = elastic(world, 2, 4)
    world.start(task)
    world.sync(task)
    other = world.submit(3, external=False, name="other")
    assert (numbers(task), other.state) == ((4, 4, 0), "queued")


def test_elastic_task_does_not_release_again_while_released_workers_end():
    world = cluster(a=4)
    task = elastic(world, 1, 4)
    world.start(task)
    world.sync(task)
    other = world.submit(2, external=False, name="other")
    world.submit(1, external=False, name="third")
    assert numbers(task) == (2, 2, 2)
    world.agent("b", 1)
    assert (numbers(task), other.state) == ((2, 2, 2), "queued")


def test_elastic_task_does_not_take_a_slot_that_a_queued_task_waits_for():
    world = cluster(a=2)
    task = elastic(world, 2, 8)
    other = world.submit(4, external=False, name="other")
    world.agent("b", 2)
    assert (len(task.placements), other.state) == (2, "queued")


def test_elastic_task_whose_model_no_worker_holds_keeps_its_workers():
    world = cluster(a=2)
    task = elastic(world, 1, 4)
    world.start(task)
    world.sync(task)
    world.do(
        EnterGeneration(**world.members(task)[0].me, generation=task.generation, rebuilds=True)
    )
    other = world.submit(1, external=False, name="other")
    assert (numbers(task), other.state) == ((2, 2, 0), "queued")
    world.agent("b", 2)
    assert (numbers(task), other.state) == ((2, 2, 0), "starting")


def test_change_without_a_lost_worker_is_planned():
    world = cluster(a=4)
    task = training(world, 2)
    before = task.planned_changes
    resize(world, task, 3)
    world.start(task)
    resize(world, task, 2)
    assert task.planned_changes == before + 2
    world.members(task)[1].lost()
    assert task.planned_changes == 0


def test_lost_worker_of_an_elastic_task_leaves_its_slot_to_a_queued_task():
    world = cluster(a=2, b=1)
    task = elastic(world, 1, 3)
    world.start(task)
    world.sync(task)
    world.lose_agent("b")
    other = world.submit(1, external=False, name="other")
    assert task.vacant == []
    end_released(world, task)
    assert other.state == "starting"


def test_elastic_batch_size_refers_to_the_minimum():
    world = cluster(a=4)
    world.do(RegisterDataset(dataset="d", spec=DatasetSpec(total_samples=80, shard_size=10)))
    task = elastic(world, 2, 4)
    world.start(task)
    world.sync(task)
    feed = world.do(AttachDataset(task=task.id, dataset="d", unit="lane", batch_size=4))
    assert (len(task.members), feed.global_batch) == (4, 8)


def test_range_and_fixed_number_can_replace_each_other():
    world = cluster(a=4)
    task = training(world, 2)
    resize(world, task, 8, 1)
    assert (task.spec.elastic, len(task.placements)) == (True, 4)
    resize(world, task, 3)
    assert (task.spec.elastic, task.spec.min_workers, len(task.placements)) == (False, 0, 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"min_workers": 0}, "has no min_workers"),
        ({"min_workers": 1, "spares": 1}, "has 1 spares"),
        ({"min_workers": 1, "model_state": "sharded"}, "is sharded"),
    ],
)
def test_elastic_task_with_other_promises_is_refused(spec, message):
    with pytest.raises(InvalidArgument, match=message):
        cluster(a=2).submit(2, external=False, elastic=True, **spec)
