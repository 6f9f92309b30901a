"""`DatasetRegistry` and `ShardManager`: the same results in process and with a coordinator."""

import numpy as np
import pytest

import dtruntime
import strata
from strata import DatasetRegistry, ShardManager
from strata.errors import AlreadyExists, InvalidArgument, NotFound


@pytest.fixture(params=["in process", "coordinator"])
def registry(request):
    url = None
    if request.param == "coordinator":
        url = f"http://{request.getfixturevalue('hub').address}"
    registry = DatasetRegistry(url)
    yield registry
    registry.close()


def shards_of(registry, workers, epoch=0, dataset="d"):
    return {worker: registry.get_shards(dataset, worker, epoch) for worker in workers}


def ids(shards):
    return [shard.shard_id for shard in shards]


def test_dataset_is_registered_by_its_path_alone(registry, tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "x.bin")
    registry.register_worker("a")
    registry.register_dataset("d", path=str(tmp_path), format="tokens", options={"length": 10})
    assert sum(shard.num_samples for shard in registry.get_shards("d", "a")) == 10
    with pytest.raises(NotFound, match=r"'gone'.*/nowhere does not exist"):
        registry.register_dataset("gone", path="/nowhere")
    with pytest.raises(InvalidArgument, match="total_samples is 0"):
        registry.register_dataset("nothing")


def test_every_shard_has_one_owner_and_shares_are_even(registry):
    for worker in "abc":
        registry.register_worker(worker)
    registry.register_dataset("d", total_samples=1005, shard_size=10)
    owned = shards_of(registry, "abc")
    assert sorted(n for shards in owned.values() for n in ids(shards)) == list(range(101))
    assert {len(shards) for shards in owned.values()} == {33, 34}
    assert {shard.total_shards for shards in owned.values() for shard in shards} == {101}
    assert sum(shard.num_samples for shards in owned.values() for shard in shards) == 1005


def test_order_changes_with_the_epoch_and_the_owner_does_not(registry):
    registry.register_worker("a")
    registry.register_worker("b")
    registry.register_dataset("d", 1000, 10, shuffle=True, seed=7)
    first, again, next_epoch = (registry.get_shards("d", "a", epoch) for epoch in (0, 0, 1))
    assert first == again
    assert ids(first) != ids(next_epoch)
    assert sorted(ids(first)) == sorted(ids(next_epoch))
    registry.register_dataset("plain", 1000, 10, shuffle=False)
    assert ids(registry.get_shards("plain", "a", 3)) == sorted(
        ids(registry.get_shards("plain", "a"))
    )


def test_as_few_shards_move_as_possible(registry):
    for worker in "abcd":
        registry.register_worker(worker)
    registry.register_dataset("d", 1000, 10)
    before = shards_of(registry, "abcd")
    registry.remove_worker("d")
    after = shards_of(registry, "abc")
    assert all(set(ids(before[worker])) <= set(ids(after[worker])) for worker in "abc")
    assert sorted(n for shards in after.values() for n in ids(shards)) == list(range(100))


def test_epochs_and_counts_are_reported(registry):
    registry.register_worker("a")
    registry.register_worker("a")
    registry.register_dataset("d", 100, 10)
    registry.register_dataset("d", 100, 10)
    registry.get_shards("d", "a")
    assert (registry.worker_count, registry.dataset_count) == (1, 1)
    assert (registry.active_workers(), registry.datasets()) == (["a"], ["d"])
    assert registry.current_epoch("d") == 0
    assert [registry.advance_epoch("d") for _ in range(3)] == [1, 2, 3]
    assert registry.current_epoch("d") == 3
    assert repr(registry) == "DatasetRegistry(workers=1, datasets=1)"


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidArgument, lambda r: r.register_dataset("d", 0, 1)),
        (InvalidArgument, lambda r: r.register_dataset("d", -5, 1)),
        (InvalidArgument, lambda r: r.register_dataset("d", 10, 0)),
        (InvalidArgument, lambda r: r.register_dataset("d", 10, 11)),
        (InvalidArgument, lambda r: r.register_dataset("d", 2**80, 1)),
        (InvalidArgument, lambda r: r.register_dataset("d", 1.5, 1)),
        (InvalidArgument, lambda r: r.register_dataset("", 10, 1)),
        (InvalidArgument, lambda r: r.register_worker("x" * 500)),
        (InvalidArgument, lambda r: r.get_shards("known", "a", -1)),
        (NotFound, lambda r: r.get_shards("unknown", "a", 0)),
        (NotFound, lambda r: r.get_shards("known", "nobody", 0)),
        (NotFound, lambda r: r.remove_worker("nobody")),
        (NotFound, lambda r: r.advance_epoch("unknown")),
        (AlreadyExists, lambda r: r.register_dataset("known", 100, 20)),
    ],
)
def test_invalid_calls_are_typed_errors(registry, error, call):
    registry.register_worker("a")
    registry.register_dataset("known", 100, 10)
    registry.get_shards("known", "a")
    with pytest.raises(error):
        call(registry)


def test_emptied_registry_keeps_its_epoch():
    registry = DatasetRegistry()
    registry.register_dataset("d", 100, 10)
    assert registry.current_epoch("d") == 0
    with pytest.raises(NotFound, match="register a worker"):
        registry.advance_epoch("d")
    registry.register_worker("a")
    assert registry.advance_epoch("d") == 1
    registry.remove_worker("a")
    registry.register_worker("b")
    assert registry.current_epoch("d") == 1
    assert len(registry.get_shards("d", "b")) == 10


def test_shard_manager_snippet_runs_as_it_is_written():
    manager = ShardManager()
    manager.register_dataset_params(
        "imagenet-1k",
        1281167,  # total samples
        10000,  # samples per shard
        True,  # enable shuffling
        42,  # random seed
    )
    assignments = manager.get_shard_for_worker("imagenet-1k", "worker-01", 0)
    assert len(assignments) == 129
    assert max(shard.end_index for shard in assignments) == 1281167


def test_shard_manager_divides_shards_among_the_workers_that_ask():
    manager = ShardManager()
    manager.register_dataset_params("d", 100, 10, True, 42)
    manager.get_shard_for_worker("d", "worker-01", 0)
    second = manager.get_shard_for_worker("d", "worker-02", 0)
    first = manager.get_shard_for_worker("d", "worker-01", 0)
    assert sorted(ids(first) + ids(second)) == list(range(10))
    assert len(first) == len(second) == 5
    with pytest.raises(NotFound):
        manager.get_shard_for_worker("unknown", "worker-03", 0)
    assert manager.active_workers() == ["worker-01", "worker-02"]


def test_dtruntime_has_the_same_names():
    assert dtruntime.__all__ == strata.__all__
    assert all(getattr(dtruntime, name) is getattr(strata, name) for name in strata.__all__)
