"""Datasets: registration, attachment to a task, and the owners of lanes and shards."""

import pytest

from strata.core.datasets.dataset_rules import (
    AssignmentChanged,
    AttachDataset,
    DatasetAttached,
    DatasetRegistered,
    RegisterDataset,
)
from strata.core.datasets.shard_leases import AdvanceEpoch, EpochAdvanced
from strata.core.rule_settings import Rules
from strata.core.state import DatasetSpec
from strata.errors import AlreadyExists, InvalidArgument, LimitExceeded, NotFound
from tests.core.world import World

SPEC = DatasetSpec(total_samples=1_000, shard_size=100)


def attached(workers=4, unit="shard", policy="continue", name="demo", **attach):
    """A task of a, b, c… with the dataset `d` attached."""
    world = World()
    task = world.submit(workers, policy=policy, name=name)
    world.join(task, *"abcdefgh"[:workers])
    world.sync(task)
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    world.do(AttachDataset(task=task.id, dataset="d", unit=unit, **attach))
    return world, task


def shares(task):
    return {worker: len(items) for worker, items in task.feeds["d"].holdings.items()}


def owned_once(task):
    held = [item for items in task.feeds["d"].holdings.values() for item in items]
    return sorted(held) == list(range(task.feeds["d"].count))


def test_shards_cover_the_samples_and_the_last_may_be_short():
    spec = DatasetSpec(total_samples=250, shard_size=100)
    assert [spec.shard_range(s) for s in range(spec.shard_count)] == [
        (0, 100),
        (100, 200),
        (200, 250),
    ]


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\nb", "x" * 201])
def test_ids_that_cannot_be_part_of_a_url_are_refused(name):
    with pytest.raises(InvalidArgument, match=r"dataset_id .* cannot be used"):
        World().do(RegisterDataset(dataset=name, spec=SPEC))


def test_registering_the_same_again_changes_nothing():
    world = World()
    for _ in range(2):
        world.do(RegisterDataset(dataset="d", spec=SPEC))
    assert len(world.facts(DatasetRegistered)) == 1


@pytest.mark.parametrize("change", [{"seed": 7}, {"shuffle": False}, {"fingerprint": "f"}])
def test_changed_dataset_needs_a_new_id(change):
    world = World()
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    changed = DatasetSpec(total_samples=1_000, shard_size=100, **change)
    with pytest.raises(AlreadyExists, match=f"'d' has changed.*{next(iter(change))} was .* is now"):
        world.do(RegisterDataset(dataset="d", spec=changed))
    assert world.state.datasets["d"].spec == SPEC


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((0, 1), "total_samples"),
        ((-1, 1), "total_samples"),
        ((10, 0), "shard_size"),
        ((10, -5), "shard_size"),
        ((10, 11), "shard_size 11"),
    ],
)
def test_invalid_size_is_refused_by_name(sizes, named):
    world = World()
    spec = DatasetSpec(total_samples=sizes[0], shard_size=sizes[1])
    with pytest.raises(InvalidArgument, match=named):
        world.do(RegisterDataset(dataset="d", spec=spec))
    assert world.state.datasets == {}


def test_dataset_has_a_name():
    with pytest.raises(InvalidArgument, match="dataset_id"):
        World().do(RegisterDataset(dataset="", spec=SPEC))


def test_datasets_above_the_limit_are_refused():
    world = World(Rules(max_datasets=1))
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    with pytest.raises(LimitExceeded):
        world.do(RegisterDataset(dataset="e", spec=SPEC))


def test_unregistered_dataset_cannot_be_attached():
    world = World()
    task = world.submit(1)
    with pytest.raises(NotFound, match="'d'"):
        world.do(AttachDataset(task=task.id, dataset="d"))
    with pytest.raises(NotFound):
        world.do(AttachDataset(task="none", dataset="d"))


def test_shards_are_divided_when_attached():
    world, task = attached(4)
    assert owned_once(task)
    assert sorted(shares(task).values()) == [2, 2, 3, 3]
    changed = world.one(AssignmentChanged)
    assert (changed.moved, {move.source for move in changed.moves}) == (10, {""})


def test_lanes_divide_the_global_batch():
    world, task = attached(2, "lane", global_batch=32, lanes=8)
    assert world.one(DatasetAttached).count == 8
    assert shares(task) == {"a": 4, "b": 4}


def test_batch_size_is_for_each_worker_there_is_at_first():
    _, task = attached(4, "lane", batch_size=6)
    feed = task.feeds["d"]
    assert (feed.global_batch, feed.count) == (24, 24)
    assert shares(task) == {"a": 6, "b": 6, "c": 6, "d": 6}


def test_later_worker_with_the_same_batch_size_gets_the_same_batches():
    world, task = attached(4, "lane", batch_size=6)
    again = AttachDataset(task=task.id, dataset="d", unit="lane", batch_size=6)
    assert world.do(again) is task.feeds["d"]
    with pytest.raises(AlreadyExists):
        world.do(AttachDataset(task=task.id, dataset="d", unit="lane", batch_size=7))


@pytest.mark.parametrize(
    ("batch", "workers", "lanes"), [(4096, 4, 512), (3_000, 1, 500), (521 * 2, 2, 2)]
)
def test_default_number_of_lanes_is_bounded(batch, workers, lanes):
    _, task = attached(workers, "lane", global_batch=batch)
    assert task.feeds["d"].count == lanes


def test_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(InvalidArgument, match="too few for 4 workers"):
        attached(4, "lane", global_batch=3)


@pytest.mark.parametrize(("batch", "lanes"), [(32, 5), (0, 4), (0, 0), (-8, 4), (32, -4), (8, 16)])
def test_lanes_that_do_not_divide_the_batch_are_refused(batch, lanes):
    world = World()
    task = world.submit(1)
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    command = AttachDataset(task=task.id, dataset="d", unit="lane", global_batch=batch, lanes=lanes)
    with pytest.raises(InvalidArgument, match="lanes" if batch > 0 else "the batch is"):
        world.do(command)
    assert task.feeds == {}


def test_batch_is_for_each_worker_or_for_all_and_not_both():
    with pytest.raises(InvalidArgument, match=r"batch_size 8 and global_batch 9.*give one"):
        attached(1, "lane", batch_size=8, global_batch=9)


def test_shards_of_leases_have_no_owner_until_acquired():
    world, task = attached(2, "lease")
    assert (task.feeds["d"].holdings, world.new(AssignmentChanged)) == ({}, [])


def test_attaching_the_same_again_changes_nothing():
    world, task = attached(2, "lane", global_batch=32, lanes=8, epochs=3)
    world.do(
        AttachDataset(task=task.id, dataset="d", unit="lane", global_batch=32, lanes=8, epochs=3)
    )
    assert world.last == []


@pytest.mark.parametrize(
    "other", [{"global_batch": 64}, {"mode": "window"}, {"unit": "shard"}, {"lanes": 4}]
)
def test_attaching_with_other_parameters_is_refused(other):
    first = {"unit": "lane", "global_batch": 32, "lanes": 8, "epochs": 3}
    world, task = attached(2, **first)
    with pytest.raises(AlreadyExists, match="'d'"):
        world.do(AttachDataset(task=task.id, dataset="d", **{**first, **other}))


def test_loss_moves_only_the_items_of_the_lost_worker():
    world, task = attached(4)
    held = {worker: list(items) for worker, items in task.feeds["d"].holdings.items()}
    world.peers["b"].lost()
    changed = world.one(AssignmentChanged)
    assert {move.source for move in changed.moves} == {"b"}
    assert changed.moved == len(held["b"])
    kept = task.feeds["d"].holdings
    assert all(set(held[worker]) <= set(kept[worker]) for worker in "acd")
    assert owned_once(task)


def test_join_moves_one_share_to_the_new_member():
    world, task = attached(4, name="default")
    world.join(task, "x")
    changed = world.one(AssignmentChanged)
    assert ({move.target for move in changed.moves}, changed.moved) == ({"x"}, 2)
    assert owned_once(task)


def test_assignment_says_from_which_step_and_generation_it_holds():
    world, task = attached(3)
    world.train(task, 7)
    world.peers["b"].lost()
    changed = world.one(AssignmentChanged)
    assert (changed.step, changed.generation) == (7, task.generation)
    assert "b was lost" in changed.reason


def test_nothing_is_recorded_when_nothing_moves():
    world, task = attached(2)
    world.join(task, "x")
    world.peers["x"].lost()
    world.join(task, "x")
    before = {worker: list(items) for worker, items in task.feeds["d"].holdings.items()}
    world.sync(task)
    assert world.new(AssignmentChanged) == []
    assert task.feeds["d"].holdings == before


def test_lanes_of_a_lost_worker_are_kept_for_its_replacement():
    world, task = attached(2, policy="replace")
    before = {worker: list(items) for worker, items in task.feeds["d"].holdings.items()}
    world.peers["b"].lost()
    assert (task.phase, world.new(AssignmentChanged)) == ("forming", [])
    world.peers["b"].again()
    assert world.new(AssignmentChanged) == []
    assert task.feeds["d"].holdings == before


def test_finished_worker_gets_no_more_items():
    world, _task = attached(4)
    world.peers["a"].leave("done")
    world.peers["b"].lost()
    changed = world.one(AssignmentChanged)
    assert "a" not in {move.target for move in changed.moves}


def test_shares_follow_the_weights():
    world = World()
    task = world.submit(2)
    world.join(task, "a", weight=4)
    world.join(task, "b", weight=1)
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    world.do(AttachDataset(task=task.id, dataset="d"))
    assert shares(task) == {"a": 8, "b": 2}


def test_dataset_attached_before_any_worker_is_divided_when_they_join():
    world = World()
    task = world.submit(2)
    world.do(RegisterDataset(dataset="d", spec=SPEC))
    world.do(AttachDataset(task=task.id, dataset="d"))
    assert task.feeds["d"].holdings == {}
    world.join(task, "a", "b")
    assert shares(task) == {"a": 5, "b": 5}


def test_epoch_is_advanced_by_hand():
    world, task = attached(2)
    assert world.do(AdvanceEpoch(task=task.id, dataset="d")) == 1
    assert (world.one(EpochAdvanced).epoch, owned_once(task)) == (1, True)
    with pytest.raises(NotFound, match="'e'"):
        world.do(AdvanceEpoch(task=task.id, dataset="e"))
