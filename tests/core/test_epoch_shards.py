"""The shards of an epoch: ranges with one owner each, and how much of each is trained."""

import numpy as np
import pytest

from strata.core.datasets.dataset_rules import order_of
from strata.core.datasets.epoch_shards import EpochShards
from strata.core.datasets.training_loops import loop_is_open
from strata.core.state import STREAM_SAMPLES, DatasetSpec
from strata.core.task_state import Feed, Loop

CASES = [
    # total, shard_size, global_batch, lanes, mode, shuffle, window
    (64, 4, 8, 8, "global", True, 0),
    (1000, 100, 20, 20, "global", True, 0),
    (1003, 10, 12, 4, "global", True, 0),
    (1003, 10, 12, 12, "global", False, 0),
    (1003, 10, 12, 4, "window", True, 0),
    (1003, 10, 12, 6, "window", True, 7),
    (1003, 64, 12, 12, "sequential", True, 0),
    (5, 1, 8, 8, "global", True, 0),
    (5, 2, 8, 8, "window", True, 0),
]


def shards_of(total, shard_size, global_batch, lanes, mode, shuffle, window):
    spec = DatasetSpec(total_samples=total, shard_size=shard_size, shuffle=shuffle)
    feed = Feed("d", "lane", lanes, global_batch, mode=mode, window=window)
    order = order_of(spec, feed)
    return EpochShards(spec, feed, order), order


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_every_sample_of_an_epoch_is_in_one_shard_of_its_lane(case, epoch):
    shards, order = shards_of(*case)
    total, shard_size = case[:2]
    found = shards.page(epoch, 0, 10_000, 0)
    assert [shard.id for shard in found] == list(range(shards.count(epoch)))
    assert sum(shard.end - shard.start for shard in found) == total
    assert all(0 < shard.end - shard.start <= shard_size for shard in found)
    positions = np.arange(epoch * total, (epoch + 1) * total)
    where = shards.find(positions)
    rows = order.samples(positions).tolist()
    assert set(where.epochs) == {epoch}
    assert where.lanes == (positions % order.lanes).tolist()
    assert sorted(where.places) == list(range(total))
    for row, lane, number, place in zip(rows, where.lanes, where.shards, where.places, strict=True):
        shard = found[number]
        assert shard.lane == lane
        assert shard.start <= place < shard.end
        if shards.layout == "dataset":
            assert place == row


@pytest.mark.parametrize("case", CASES)
def test_shard_is_consumed_when_all_of_its_samples_are_trained(case):
    shards, _ = shards_of(*case)
    total, global_batch, mode = case[0], case[2], case[4]
    per_window = mode == "window"
    positions = np.arange(total, 2 * total)
    numbers = np.array(shards.find(positions).shards)
    for steps in {0, 1, total // global_batch, (3 * total) // (2 * global_batch), 10 * total}:
        left = set(numbers[positions >= steps * global_batch].tolist())
        for shard in shards.page(1, 0, 10_000, steps):
            if shard.consumed:
                assert shard.id not in left
            elif not per_window:
                assert shard.id in left
    assert all(shard.consumed for shard in shards.page(1, 0, 10_000, 10 * total))


def test_pages_and_lanes_add_up_to_the_whole():
    shards, _ = shards_of(1003, 10, 12, 4, "global", True, 0)
    whole = shards.page(2, 0, 10_000, 7)
    pages = [each for first in range(0, len(whole), 7) for each in shards.page(2, first, 7, 7)]
    assert pages == whole
    by_lane = [len(shards.of_lane(2, lane)) for lane in range(4)]
    assert by_lane == shards.counts_by_lane(2).tolist()
    assert sum(by_lane) == len(whole)


def test_shards_are_those_of_the_dataset_where_lanes_hold_whole_ones():
    shards, _ = shards_of(64, 4, 8, 8, "global", True, 0)
    assert [(each.start, each.end) for each in shards.page(0, 0, 100, 0)] == [
        (start, start + 4) for start in range(0, 64, 4)
    ]


def test_stream_has_a_shard_without_a_range_for_each_lane():
    shards, _ = shards_of(STREAM_SAMPLES, 64, 4, 4, "global", False, 0)
    assert [(each.id, each.start) for each in shards.page(0, 0, 100, 5)] == [
        (lane, None) for lane in range(4)
    ]
    assert shards.find(np.array([6])).shards == [2]


def test_large_dataset_is_paged_without_looking_at_its_samples():
    shards, _ = shards_of(10**10, 10_000, 512, 512, "window", True, 0)
    [shard] = shards.page(3, 700_000, 1, 10**6)
    assert shard.id == 700_000
    assert shard.end - shard.start <= 10_000


def test_loop_is_open_until_its_last_step_or_until_it_is_left():
    loops = {"a": Loop("d", 0, 0, 10), "b": Loop("d", 10, 10, 10, left_at=12)}
    assert [loop_is_open(loops, "d", step) for step in (0, 9, 10, 11, 12)] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert loop_is_open({}, "d", 99)
