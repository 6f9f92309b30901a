"""Guards transforms with state: a step trains the same rows for any workers and any resume; every
sample occurs once; a state that failed is not used again.
"""

import random

import numpy as np
import pytest

from strata.data.formats.row_gather import objects
from strata.data.reading.batch_iterator import Batches, ShardReader
from strata.data.reading.lane_transforms import Packing, PerLane
from strata.data.source_dataset import open_arrays, open_dataset
from strata.data.torch.loader_adapter import StepDataset
from strata.errors import InvalidArgument

N, LANES, STEPS, LENGTH = 240, 6, 20, 10


@pytest.fixture
def dataset():
    """Documents of 1 to 17 tokens; no token is in two of them."""
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.integers(1, 18, N))
    return open_arrays({"tokens": objects(np.split(1 + np.arange(ends[-1]), ends[:-1]), N)})


@pytest.fixture
def order(dataset):
    return dataset.order(12, lanes=LANES, seed=5)


def packing(span=7):
    return PerLane(lambda: Packing("tokens", LENGTH), span)


def packed(dataset, order, lanes=None, start_step=0, transform=None):
    with Batches(
        dataset, order, lanes, start_step, STEPS, transform=transform or packing()
    ) as batches:
        return [batch["tokens"].tolist() for batch in batches]


def rows_of(steps):
    return [sorted(map(tuple, step)) for step in steps]


def test_every_token_is_trained_once_an_epoch(dataset, order):
    trained = np.array([row for step in packed(dataset, order) for row in step]).ravel()
    documents = dataset.read(np.arange(N))["tokens"]
    assert sorted(trained[trained > 0]) == sorted(np.concatenate(list(documents)))


def test_any_workers_train_the_same_rows_in_each_step(dataset, order):
    alone = rows_of(packed(dataset, order))
    for owned in ([[0, 1], [2, 3], [4, 5]], [[5, 0, 3], [1], [2, 4], []]):
        shares = [packed(dataset, order, lanes) for lanes in owned]
        together = [[row for share in step for row in share] for step in zip(*shares, strict=True)]
        assert rows_of(together) == alone


@pytest.mark.parametrize("step", [1, 6, 7, 11, 19])
def test_resume_in_the_middle_of_a_span_is_exact(dataset, order, step):
    assert packed(dataset, order, start_step=step) == packed(dataset, order)[step:]


@pytest.mark.parametrize("seed", range(6))
def test_new_owner_of_a_lane_continues_where_the_old_one_was(dataset, order, seed):
    rng = random.Random(seed)
    alone = [packed(dataset, order, [lane]) for lane in range(LANES)]
    with Batches(
        dataset, order, [0], 0, STEPS, transform=packing(), prefetch_bytes=rng.choice([0, 1 << 20])
    ) as batches:
        for step in range(STEPS):
            lanes = sorted(rng.sample(range(LANES), rng.randint(1, LANES)))
            batches.set_lanes(lanes, step)
            expected = [row for lane in lanes for row in alone[lane][step]]
            assert next(batches)["tokens"].tolist() == expected


def test_segments_number_the_documents_of_a_row(dataset, order):
    with Batches(dataset, order, [0], 0, 7, transform=packing()) as batches:
        found = list(batches)
    tokens = np.concatenate([batch["tokens"] for batch in found])
    segments = np.concatenate([batch["segments"] for batch in found])
    follows = tokens[:, 1:] == tokens[:, :-1] + 1
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    assert np.array_equal(follows, same)
    assert np.array_equal(segments == 0, tokens == 0)
    assert set(segments[:, 0]) == {1}


def test_failed_lane_state_is_not_used_again(dataset, order):
    broken = [True]

    class Fragile(Packing):
        def __call__(self, rows, last):
            given = super().__call__(rows, last)
            if self._count == 6 and broken:
                raise RuntimeError("no good")
            return given

    transform = PerLane(lambda: Fragile("tokens", LENGTH), 7)
    with Batches(dataset, order, [2], stop_step=STEPS, transform=transform) as batches:
        found = [next(batches)["tokens"].tolist() for _ in range(2)]
        with pytest.raises(RuntimeError, match="no good"):
            next(batches)
        broken.clear()
        batches.seek(2)
        found += [batch["tokens"].tolist() for batch in batches]
    assert found == packed(dataset, order, [2])


def test_damaged_row_is_reported_once_per_span(tmp_path):
    lines = [f'{{"tokens": [{n}, {n}]}}' for n in range(160)]
    lines[120] = '{"tokens": '
    (tmp_path / "x.jsonl").write_text("\n".join(["", *lines]))
    dataset = open_dataset(str(tmp_path))
    order, skipped = dataset.order(8, shuffle=False), []
    with Batches(
        dataset,
        order,
        stop_step=20,
        transform=packing(20),
        prefetch_bytes=0,
        on_error="skip",
        on_skip=skipped.append,
    ) as batches:
        for _ in range(20):
            next(batches)
        batches.seek(19)
        tokens = next(batches)["tokens"]
        assert tokens[tokens > 0].max() == 159
    assert [each.row for each in skipped] == [120]


def test_per_lane_transform_is_refused_for_shards(dataset, order):
    with pytest.raises(InvalidArgument, match="PerLane"):
        StepDataset(dataset, N, transform=packing())
    with pytest.raises(InvalidArgument, match="PerLane"):
        ShardReader(dataset, 8, None, packing(), None)
    with pytest.raises(InvalidArgument, match="span is 0"):
        packing(0)
