"""Guards the PyTorch adapter: the order is the sampler's, for any `num_workers`."""

import numpy as np
import pytest

from strata.data.formats.row_gather import objects
from strata.data.reading.batch_iterator import Batches
from strata.data.reading.lane_transforms import Packing, PerLane
from strata.data.source_dataset import open_arrays, open_dataset
from strata.data.torch import loader_adapter
from strata.data.torch.loader_adapter import StepDataset, StepLoader, StepSampler
from strata.data.torch.loader_engine import Loading
from strata.errors import Corrupt, InvalidArgument, Unavailable


@pytest.fixture
def dataset():
    return open_arrays({"n": np.arange(100), "v": np.ones((100, 3), np.float32)})


def test_the_sampler_lists_the_samples_of_each_step(dataset):
    order = dataset.order(8, lanes=4)
    sampler = StepSampler(order, [0, 3], 5, 9)
    assert len(sampler) == 4
    assert list(sampler) == [order.step_samples(step, [0, 3]).tolist() for step in range(5, 9)]
    with pytest.raises(InvalidArgument, match="lane 4"):
        StepSampler(order, [4])
    with pytest.raises(TypeError, match="no length"):
        len(StepSampler(order))


def test_a_list_of_samples_is_gathered_at_once(dataset):
    samples = StepDataset(dataset, 100, ["n"])
    assert len(samples) == 100
    assert samples.__getitems__([3, 1])["n"].tolist() == [3, 1]
    assert samples[7] == {"n": 7}


def test_loader_state_is_the_next_step(dataset):
    order = dataset.order(8)
    sampler = StepSampler(order, stop_step=6)
    loader = StepLoader(sampler, sampler)
    taken = iter(loader)
    first = [next(taken) for _ in range(4)]
    state = loader.state_dict()
    again = StepLoader(sampler := StepSampler(order, stop_step=6), sampler)
    again.load_state_dict(state)
    assert first + list(again) == [order.step_samples(step).tolist() for step in range(6)]
    other = StepSampler(dataset.order(8, seed=1))
    with pytest.raises(InvalidArgument, match="another order: seed differ"):
        StepLoader(other, other).load_state_dict(state)


def test_missing_torch_has_a_hint(dataset, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(loader_adapter, "import_module", missing)
    with pytest.raises(Unavailable, match="pip install torch"):
        loader_adapter.loader(dataset, dataset.order(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_tensors_in_the_same_order_for_any_number_of_workers(dataset, workers):
    torch = pytest.importorskip("torch")
    order = dataset.order(8)
    loader = loader_adapter.loader(dataset, order, stop_step=20, num_workers=workers)
    for step, batch in enumerate(loader):
        assert isinstance(batch["v"], torch.Tensor)
        assert batch["n"].tolist() == order.step_samples(step).tolist()
    assert loader.state_dict()["step"] == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_reads_through_a_data_loader_what_it_reads_without(dataset, workers):
    torch = pytest.importorskip("torch")
    order = dataset.order(8, lanes=4)
    engine = Loading(num_workers=workers, persistent_workers=workers > 0)
    stream = engine(dataset, order, [0, 1], 0, 10, columns=["n"], transform=doubled)
    plain = Batches(dataset, order, [0, 1], 0, 10, columns=["n"], transform=doubled)
    for step in range(10):
        if step == 4:  # a worker left in the middle of the epoch
            stream.set_lanes([0, 1, 3], step)
            plain.set_lanes([0, 1, 3], step)
        if step == 7:  # a step is repeated
            stream.seek(5)
            plain.seek(5)
        batch = next(stream)
        assert isinstance(batch["n"], torch.Tensor)
        assert batch["n"].tolist() == next(plain)["n"].tolist()
        assert stream.taken.digest == plain.taken.digest
        assert stream.state_dict() == plain.state_dict()
    stream.load_state_dict(plain.state_dict() | {"step": 9})
    assert next(stream)["n"].tolist() == (2 * order.step_samples(9, [0, 1, 3])).tolist()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    plain.close()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_processes_that_are_not_forked_read_the_same(tmp_path, start):
    pytest.importorskip("torch")
    np.save(tmp_path / "n.npy", np.arange(100))
    dataset = open_dataset(str(tmp_path))
    order, how = dataset.order(8), {"num_workers": 1, "multiprocessing_context": start}
    skips = {"on_error": "skip", "on_skip": lambda row: None}
    stream = Loading(**how)(dataset, order, None, 0, 2, transform=doubled, **skips)
    for step in range(2):
        assert next(stream)["n"].tolist() == (2 * order.step_samples(step)).tolist()
    stream.close()
    refused = Loading(**how)(dataset, order, None, 0, 2, transform=lambda batch: batch)
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(InvalidArgument, match="cannot be pickled"),
    ):
        next(refused)


def test_loader_options_that_choose_samples_are_refused(dataset):
    pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="the option batch_size cannot be set"):
        Loading(batch_size=8)
    with pytest.raises(InvalidArgument, match="shuffle cannot be set"):
        loader_adapter.loader(dataset, dataset.order(8), shuffle=True)


def test_custom_data_loader_may_use_its_own_collation(dataset):
    torch = pytest.importorskip("torch")
    order = dataset.order(8)
    sampler = StepSampler(order, stop_step=2)
    for step, batch in enumerate(
        torch.utils.data.DataLoader(StepDataset(dataset, 100), batch_sampler=sampler)
    ):
        assert batch["n"].tolist() == order.step_samples(step).tolist()
        assert batch["v"].shape == (8, 3)


def test_a_loader_transforms(dataset):
    pytest.importorskip("torch")
    order = dataset.order(8)
    (batch,) = loader_adapter.loader(dataset, order, stop_step=1, transform=doubled)
    assert batch["n"].tolist() == (2 * order.step_samples(0)).tolist()


@pytest.mark.parametrize("state", [None, {}, {"step": -1}, {"step": "1"}, {"step": 1.0}])
def test_invalid_loader_state_is_refused(dataset, state):
    order = dataset.order(8)
    loader = StepLoader(sampler := StepSampler(order), sampler)
    if state:
        state = loader.state_dict() | state
    for each in (loader, Batches(dataset, order)):
        with pytest.raises(InvalidArgument, match="not a state of batches"):
            each.load_state_dict(state)


def doubled(batch):
    return {"n": batch["n"] * 2}


@pytest.fixture
def damaged(tmp_path):
    """Lines, two of which are invalid; the first hundred are read when opened."""
    lines = [f'{{"n": {number}}}' for number in range(160)]
    lines[120] = lines[150] = '{"n": "?"}'
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    return open_dataset(str(tmp_path), name="lines")


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_rows_are_reported_when_their_step_is_returned(damaged, workers):
    pytest.importorskip("torch")
    order, told = damaged.order(8), []
    how = {"on_error": "skip", "on_skip": told.append, "contents": True}
    stream = Loading(num_workers=workers)(damaged, order, None, 0, 20, **how)
    plain = Batches(damaged, order, None, 0, 20, **how | {"on_skip": lambda row: None})
    for step in range(20):
        batch = next(stream)
        assert batch["n"].tolist() == next(plain)["n"].tolist()
        assert stream.taken.content == plain.taken.content != 0
        seen = set(order.samples(order.positions(0, step + 1).ravel()).tolist())
        assert sorted(row.row for row in told) == sorted({120, 150} & seen)
    stream.close()
    plain.close()
    assert {(row.dataset, row.file) for row in told} == {("lines", "x.jsonl")}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_cannot_be_read_is_an_error_and_is_tried_again(damaged, workers):
    pytest.importorskip("torch")
    order = damaged.order(8, shuffle=False)
    stream = Loading(num_workers=workers)(damaged, order, None, 14, 20)
    next(stream)
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"'lines', file x\.jsonl, row 120"):
            next(stream)
        assert stream.step == 15
    stream.seek(16)
    assert next(stream)["n"].tolist() == list(range(128, 136))
    stream.close()


def refuse(batch):
    if batch["n"][0] == 16:
        raise ZeroDivisionError("no good")
    return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_failing_transform_raises_at_its_step(dataset, workers):
    pytest.importorskip("torch")
    order = dataset.order(8, shuffle=False)
    stream = Loading(num_workers=workers)(dataset, order, transform=refuse)
    for _ in range(2):
        next(stream)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no good"):
            next(stream)
        assert stream.step == 2
    stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_per_lane_transform_gives_the_same_rows_with_an_engine(workers):
    torch = pytest.importorskip("torch")
    sizes = np.random.default_rng(3).integers(1, 18, 240)
    documents = objects(np.split(1 + np.arange(sizes.sum()), np.cumsum(sizes)[:-1]), 240)
    dataset = open_arrays({"tokens": documents})
    order = dataset.order(12, lanes=6)
    packing = PerLane(lambda: Packing("tokens", 10), span=7)
    stream = Loading(num_workers=workers)(dataset, order, [0, 1], 3, 20, transform=packing)
    plain = Batches(dataset, order, [0, 1], 3, 20, transform=packing)
    for step in range(3, 20):
        if step == 9:
            stream.set_lanes([1, 4, 5], step)
            plain.set_lanes([1, 4, 5], step)
        batch = next(stream)
        assert isinstance(batch["segments"], torch.Tensor)
        assert batch["tokens"].tolist() == next(plain)["tokens"].tolist()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    plain.close()


def test_the_public_names_are_the_adapters():
    from strata import torch as public

    assert public.Loading is Loading
    assert public.loader is loader_adapter.loader
