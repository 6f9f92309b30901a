"""Guards mixing: shares by weight, each dataset's samples once in each of its epochs, the same for
any number of workers, resumable, and lanes that keep their range.
"""

import msgspec
import numpy as np
import pytest

from strata.data.reading.batch_iterator import Batches
from strata.data.reading.mixture import MixedDataset, MixedOrder
from strata.data.source_dataset import open_arrays
from strata.errors import InvalidArgument


def mixture(sizes=(70, 31, 11), weights=(5, 3, 2), lanes=4, block=50, mode="global", **rest):
    starts = np.cumsum([0, *sizes])
    datasets = [
        open_arrays({"n": np.arange(first, first + size)}, name=f"set-{first}")
        for first, size in zip(starts, sizes, strict=False)
    ]
    orders = [dataset.order(8, lanes=lanes, mode=mode) for dataset in datasets]
    return MixedDataset(datasets), MixedOrder(orders, weights, block=block, **rest)


@pytest.mark.parametrize("mode", ["global", "window"])
def test_each_dataset_is_trained_once_in_each_of_its_epochs(mode):
    _, order = mixture(mode=mode)
    samples = order.samples(np.arange(4 * 50 * 20))
    for first, size, share in ((0, 70, 25), (70, 31, 15), (101, 11, 10)):
        own = samples[(samples >= first) & (samples < first + size)] - first
        assert len(own) == 4 * share * 20
        counts = np.bincount(own, minlength=size)
        assert counts.max() - counts.min() <= 1


def test_shares_hold_in_every_block_of_every_lane():
    _, order = mixture()
    samples = order.samples(np.arange(4 * 50 * 6)).reshape(6, 50, 4)
    which = np.searchsorted([70, 101], samples, side="right")
    for block in range(6):
        for lane in range(4):
            assert np.bincount(which[block, :, lane]).tolist() == [25, 15, 10]
    assert not np.array_equal(which[0], which[1])


def test_every_weight_gets_at_least_one_sample_per_block():
    _, order = mixture(weights=(1e-9, 1, 1), block=101)
    assert order.shares[0] == 1
    assert sum(order.shares) == 101


def test_lanes_keep_their_range_of_every_dataset():
    _, order = mixture(sizes=(4000, 400), weights=(1, 1), mode="sequential")
    samples = order.samples(np.arange(400))
    for lane in range(4):
        own = samples[lane::4]
        alone = order._orders[0].samples(np.arange(lane, 400, 4))
        own = own[own < 4000]
        assert sorted(own) == sorted(alone[: len(own)])


def test_mixed_batches_resume_and_do_not_depend_on_workers():
    dataset, order = mixture()
    with Batches(dataset, order, stop_step=40) as batches:
        whole = [batch["n"].tolist() for batch in batches]
    assert whole == [order.samples(order.positions(s, s + 1)[0]).tolist() for s in range(40)]
    parts = [Batches(dataset, order, lanes, 17, 40) for lanes in ([0, 2], [1, 3])]
    for step in range(17, 40):
        left, right = (next(part)["n"].tolist() for part in parts)
        assert [n for pair in zip(left, right, strict=True) for n in pair] == whole[step]
    state = parts[0].state_dict()
    assert msgspec.json.decode(msgspec.json.encode(state)) == state
    for part in parts:
        part.close()


def test_a_mixture_with_other_weights_refuses_the_state():
    dataset, order = mixture()
    state = Batches(dataset, order).state_dict()
    with pytest.raises(InvalidArgument, match="shares differ"):
        Batches(*mixture(weights=(1, 1, 1))).load_state_dict(state)


def test_columns_of_different_types_are_refused():
    datasets = [open_arrays({"n": np.arange(4)}), open_arrays({"n": np.ones(4)})]
    mixed = MixedDataset(datasets)
    with pytest.raises(InvalidArgument, match="column 'n' has different types"):
        mixed.gather(np.arange(8), ["n"], None)
    with pytest.raises(InvalidArgument, match="no column in common"):
        MixedDataset([datasets[0], open_arrays({"m": np.arange(2)})])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"weights": (1, 1)}, "3 datasets and 2 weights"),
        ({"weights": (1, 0, 1)}, "above 0"),
        ({"weights": (1, float("nan"), 1)}, "above 0"),
        ({"weights": (1e308, 1e308, 1)}, "at most"),
        ({"weights": (1, "x", 1)}, "give numbers"),
        ({"block": 2}, "block is 2"),
    ],
)
def test_invalid_mixtures_are_refused(wrong, says):
    with pytest.raises(InvalidArgument, match=says):
        mixture(**wrong)
