"""Guards the PyTorch adapter: the order is the sampler's, whatever `num_workers` is."""

import numpy as np
import pytest

from strata.data import torch_adapter
from strata.data.batches import Batches
from strata.data.dataset import open_arrays
from strata.data.torch_adapter import Loading, StepDataset, StepLoader, StepSampler
from strata.errors import InvalidArgument, Unavailable


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


def test_the_state_is_the_step_that_comes_next(dataset):
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


def test_without_torch_there_is_a_hint(dataset, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(torch_adapter, "import_module", missing)
    with pytest.raises(Unavailable, match="pip install torch"):
        torch_adapter.loader(dataset, dataset.order(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_tensors_in_the_same_order_for_any_number_of_workers(dataset, workers):
    torch = pytest.importorskip("torch")
    order = dataset.order(8)
    loader = torch_adapter.loader(dataset, order, stop_step=20, num_workers=workers)
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
        if step == 4:  # somebody left in mid-epoch
            stream.set_lanes([0, 1, 3], step)
            plain.set_lanes([0, 1, 3], step)
        if step == 7:  # and a step is done again
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


def doubled(batch):
    return {"n": batch["n"] * 2}


def test_what_a_data_loader_cannot_do_is_refused(dataset):
    for asked in ({"on_error": "skip"}, {"contents": True}):
        with pytest.raises(InvalidArgument, match="DataLoader"):
            Loading()(dataset, dataset.order(8), **asked)


def test_the_public_names_are_the_adapters():
    from strata import torch as public

    assert public.Loading is Loading
    assert public.loader is torch_adapter.loader
