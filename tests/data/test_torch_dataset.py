"""Guards torch Datasets in a run: the same samples, random numbers and batches for any division
into lanes and any number of worker processes; unsupported arguments are refused by name.
"""

import logging
import os
import random
from dataclasses import dataclass

import numpy as np
import pytest

from strata.data.reading.batch_iterator import Batches
from strata.data.torch.loader_plan import plan_loader
from strata.data.torch.map_dataset import open_torch_dataset
from strata.data.torch.map_engine import SampleLoading
from strata.data.torch.sample_digests import sample_digest
from strata.errors import Corrupt, InvalidArgument

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

COUNT, BATCH, LANES = 50, 6, 6
DIVISIONS = [[[0, 1, 2, 3, 4, 5]], [[0, 2, 3], [1, 4, 5]], [[0, 5], [1, 4], [2, 3]]]


class Squares(data.Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"n": index, "square": torch.tensor([float(index**2)])}


class Augmented(Squares):
    """Draws from every global generator."""

    def __getitem__(self, index):
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return index, torch.tensor(drawn, dtype=torch.float64)


class Ragged(Squares):
    def __getitem__(self, index):
        return torch.full((index % 5 + 1,), index)


class Bulk(Squares):
    """Reads many samples in one call, and counts how."""

    def __init__(self):
        self.bulk = self.single = 0

    def __getitem__(self, index):
        self.single += 1
        return index

    def __getitems__(self, indices):
        self.bulk += 1
        return list(indices)


class RandomBulk(Augmented):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Broken(Squares):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("no such picture")
        return index


class OwnGenerator(Squares):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.generator.random()


class Informed(Squares):
    """Returns which process reads, from `get_worker_info`."""

    def __getitem__(self, index):
        info = data.get_worker_info()
        return 0 if info is None else 100 * info.dataset.mark + info.id + 1

    mark = 0


def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)


def mark_dataset(number):
    data.get_worker_info().dataset.mark = number + 1


def as_list(samples):
    return list(samples)


def steps_of(dataset, lanes, first, last, **options):
    """The batches of some lanes, and the record of each."""
    stream = SampleLoading(**options)(
        dataset, dataset.order(BATCH, lanes=LANES), lanes, first, last
    )
    found = [(next(stream), stream.taken) for _ in range(first, last)]
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    return found


def joined(dataset, division, first, last, **options):
    """The global batch of each step as sorted (sample, item) pairs, of all workers."""
    steps = [[] for _ in range(first, last)]
    proofs = [0] * (last - first)
    for lanes in division:
        read = steps_of(dataset, lanes, first, last, collate_fn=as_list, **options)
        for at, (batch, taken) in enumerate(read):
            steps[at] += zip(taken.samples.tolist(), batch, strict=True)
            proofs[at] = (proofs[at] + taken.digest) % (1 << 64)
    return [sorted((n, str(item)) for n, item in step) for step in steps], proofs


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", [Squares, Augmented, RandomBulk])
def test_samples_and_random_numbers_are_the_same_for_any_division_and_processes(kind, shuffle):
    dataset = open_torch_dataset(kind(), seed=3, shuffle=shuffle)
    whole = joined(dataset, DIVISIONS[0], 0, 20)
    order = dataset.order(BATCH, lanes=LANES)
    for step, items in enumerate(whole[0]):
        assert [n for n, _ in items] == sorted(order.step_samples(step).tolist())
    for division in DIVISIONS[1:]:
        assert joined(dataset, division, 0, 20) == whole
    assert joined(dataset, DIVISIONS[1], 0, 20, num_workers=2) == whole


def test_random_numbers_differ_between_epochs_and_seeds():
    dataset = open_torch_dataset(Augmented(), seed=3, shuffle=False)
    steps, _ = joined(dataset, DIVISIONS[0], 0, 2 * COUNT // BATCH)
    drawn = [item for step in steps for item in step]
    assert len({n for n, _ in drawn}) == COUNT
    assert len({text for _, text in drawn}) == len(drawn)
    other, _ = joined(open_torch_dataset(Augmented(), seed=4, shuffle=False), DIVISIONS[0], 0, 1)
    assert other != steps[:1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_stream_gives_what_the_undisturbed_one_gives(workers):
    dataset = open_torch_dataset(Augmented(), seed=3)
    order, engine = dataset.order(BATCH, lanes=LANES), SampleLoading(num_workers=workers)
    whole = engine(dataset, order, [0, 1], 0, 30)
    batches = [next(whole) for _ in range(12)]
    state = whole.state_dict()
    batches += list(iter(lambda: next(whole, None), None))
    resumed = SampleLoading()(open_torch_dataset(Augmented(), seed=3), order, [0, 1], 0, 30)
    resumed.load_state_dict(state)
    for numbers, drawn in batches[12:]:
        found = next(resumed)
        assert torch.equal(found[0], numbers)
        assert torch.equal(found[1], drawn)
    whole.seek(5)
    assert torch.equal(next(whole)[1], batches[5][1])
    whole.set_lanes([2, 3], 6)
    assert next(whole)[0].tolist() == order.step_samples(6, [2, 3]).tolist()
    whole.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_what_collate_makes_of_the_list_of_samples(workers):
    ragged = open_torch_dataset(Ragged(), seed=3)
    for batch, taken in steps_of(ragged, [0, 1, 2], 0, 5, collate_fn=pad, num_workers=workers):
        assert torch.equal(batch, pad([Ragged()[n] for n in taken.samples.tolist()]))
    plain = open_torch_dataset(Squares(), seed=3)
    for batch, taken in steps_of(plain, None, 0, 5, num_workers=workers):
        wanted = data.default_collate([Squares()[n] for n in taken.samples.tolist()])
        assert batch.keys() == wanted.keys()
        assert torch.equal(batch["square"], wanted["square"])
        assert torch.equal(batch["n"], wanted["n"])


@pytest.mark.slow
def test_processes_that_are_spawned_read_the_same():
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    dataset = plan_loader(Augmented(), seed=3, **options).dataset
    assert joined(dataset, DIVISIONS[0], 0, 3, **options) == joined(dataset, DIVISIONS[1], 0, 3)
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(InvalidArgument, match="cannot be pickled"),
    ):
        steps_of(dataset, None, 0, 3, collate_fn=lambda samples: samples, **options)


def test_samples_without_common_size_need_a_collate_function():
    dataset = open_torch_dataset(Ragged(), name="ragged", seed=3)
    for workers in (0, 2):
        stream = SampleLoading(num_workers=workers)(dataset, dataset.order(BATCH), None, 4, 9)
        with pytest.raises(InvalidArgument, match=r"'ragged': collate_fn failed in step 4 for sam"):
            next(stream)
        stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_getitem_names_the_sample_and_keeps_the_traceback(workers):
    dataset = open_torch_dataset(Broken(), name="pictures", seed=3, shuffle=False)
    stream = SampleLoading(num_workers=workers)(dataset, dataset.order(BATCH), None, 0, 3)
    assert next(stream).tolist() == [0, 1, 2, 3, 4, 5]
    for _ in range(2):  # the next call tries again
        with pytest.raises(Corrupt, match=r"'pictures': __getitem__\(7\) failed: KeyError") as info:
            next(stream)
        assert 'raise KeyError("no such picture")' in "".join(info.value.__notes__)
    stream.seek(2)
    assert next(stream).tolist() == [12, 13, 14, 15, 16, 17]
    stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_sample_is_left_out_and_reported_when_asked(workers):
    dataset = open_torch_dataset(Broken(), name="pictures", seed=3, shuffle=False)
    told = []
    stream = SampleLoading(num_workers=workers)(
        dataset, dataset.order(BATCH), None, 1, 2, on_error="skip", on_skip=told.append
    )
    assert next(stream).tolist() == [6, 8, 9, 10, 11]
    assert [(row.dataset, row.row) for row in told] == [("pictures", 7)]
    stream.close()


def test_getitems_is_used_unless_it_draws_random_numbers():
    bulk = Bulk()
    dataset = open_torch_dataset(bulk, seed=3)
    bulk.single = 0
    steps_of(dataset, None, 0, 5)
    assert (bulk.bulk, bulk.single) == (5, 0)
    both = [open_torch_dataset(kind(), name="a", seed=3) for kind in (Augmented, RandomBulk)]
    both[1].fingerprint = both[0].fingerprint  # their types differ; their numbers must not
    assert joined(both[0], DIVISIONS[1], 0, 5) == joined(both[1], DIVISIONS[1], 0, 5)


def test_getitems_must_return_one_item_for_each_index():
    class Short(Bulk):
        def __getitems__(self, indices):
            return list(indices)[1:]

    dataset = open_torch_dataset(Short(), seed=3)
    with pytest.raises(Corrupt, match="asked for 6 samples and returned 5"):
        next(SampleLoading()(dataset, dataset.order(BATCH), None, 0, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_does_not_move_the_generators_of_the_training_script(workers):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    wanted = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    dataset = open_torch_dataset(Augmented(), seed=3, loading=SampleLoading(num_workers=workers))
    stream = SampleLoading(num_workers=workers)(dataset, dataset.order(BATCH), None, 0, 9)
    next(stream)
    stream.seek(5)
    next(stream)
    stream.close()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == wanted


def test_get_worker_info_returns_the_users_dataset():
    dataset = open_torch_dataset(Informed(), seed=3)
    seen = [batch.tolist() for batch, _ in steps_of(dataset, None, 0, 4, num_workers=2)]
    assert seen == [[1] * BATCH, [2] * BATCH] * 2
    options = {"num_workers": 2, "worker_init_fn": mark_dataset, "persistent_workers": True}
    marked = [batch.tolist() for batch, _ in steps_of(dataset, None, 0, 2, **options)]
    assert marked == [[101] * BATCH, [202] * BATCH]


def test_files_opened_at_the_first_sample_are_not_open_in_the_parent():
    class Lazy(Squares):
        opened_by = 0

        def __getitem__(self, index):
            self.opened_by = self.opened_by or os.getpid()
            return self.opened_by

    lazy = Lazy()
    plan = plan_loader(lazy, seed=3, num_workers=2)
    assert lazy.opened_by == 0
    readers = {
        pid
        for batch, _ in steps_of(plan.dataset, None, 0, 4, num_workers=2)
        for pid in batch.tolist()
    }
    assert len(readers) == 2
    assert os.getpid() not in readers


def test_another_dataset_has_another_fingerprint():
    def fingerprint(dataset):
        return open_torch_dataset(dataset, seed=3).fingerprint

    values = torch.arange(float(COUNT))
    changed = values.clone()
    changed[-1] = 0
    split = [
        data.random_split(Squares(), [30, 20], torch.Generator().manual_seed(s)) for s in (1, 2)
    ]
    kinds = [
        Squares(),
        Augmented(),
        data.TensorDataset(values),
        data.TensorDataset(changed),
        data.TensorDataset(values[:-1]),
        data.TensorDataset(values.double()),
        split[0][0],
        split[0][1],
        split[1][0],
    ]
    assert len({fingerprint(each) for each in kinds}) == len(kinds)
    assert fingerprint(Augmented()) == fingerprint(Augmented())
    assert fingerprint(data.TensorDataset(values)) == fingerprint(
        data.TensorDataset(values.clone())
    )


def test_digests_distinguish_samples_of_every_kind():
    @dataclass
    class Pair:
        left: object
        right: object

    image = pytest.importorskip("PIL.Image")
    samples = [
        *(torch.zeros(2, dtype=each) for each in (torch.bool, torch.bfloat16, torch.complex64)),
        torch.zeros(2).to_sparse(),
        torch.tensor(3),
        torch.zeros(0),
        torch.zeros(2, 3).T,
        torch.ones(2, 3).T,
        np.float32(1),
        np.zeros((2, 0)),
        np.array(["a", None], object),
        np.array(["b", None], object),
        *(b"a", "a", 1, 1.0, True, None, [], (), {}, {"a": 1}, {"a": 2}, [1, [2]], [1, 2]),
        *(Pair(1, 2), Pair(2, 1)),
        image.new("L", (2, 2), 0),
        image.new("L", (2, 2), 1),
    ]
    digests = [sample_digest(each) for each in samples]
    assert len(set(digests)) == len(samples)
    assert [sample_digest(each) for each in samples] == digests
    assert sample_digest(object()) == sample_digest(object())


def test_the_name_follows_the_data_the_seed_and_the_order():
    names = [
        open_torch_dataset(Squares(), seed=seed, shuffle=shuffle).name
        for seed, shuffle in ((3, True), (4, True), (3, False), (3, True))
    ]
    assert names[0] == names[3]
    assert len(set(names)) == 3
    assert names[0].startswith("Squares-")
    spec = open_torch_dataset(Squares(), name="squares", seed=3).spec()
    assert (spec.name, spec.total_samples, spec.seed, spec.format) == ("squares", COUNT, 3, "torch")


def test_samples_that_cannot_be_repeated_are_reported(caplog):
    with caplog.at_level(logging.WARNING):
        opened = open_torch_dataset(OwnGenerator(), seed=3)
    assert "sample 0 differs when it is read twice" in caplog.text
    assert open_torch_dataset(OwnGenerator(), seed=3).fingerprint == opened.fingerprint
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        open_torch_dataset(Augmented(), seed=3)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ([], "list has no samples"),
        ({"a": 1}, "dict is not a map-style Dataset"),
        (3, "int is not a map-style Dataset: it needs __len__"),
    ],
)
def test_dataset_without_index_access_is_refused(dataset, said):
    with pytest.raises(InvalidArgument, match=said):
        plan_loader(dataset, seed=3)


def test_a_sample_that_cannot_be_read_is_named_when_the_dataset_is_opened():
    class First(Squares):
        def __getitem__(self, index):
            raise OSError("no such folder")

    for workers in (0, 1):
        with pytest.raises(Corrupt, match=r"__getitem__\(0\) failed: OSError: no such folder"):
            plan_loader(First(), seed=3, num_workers=workers)


def test_samplers_are_supported_or_refused_by_name():
    squares = Squares()
    for arguments, shuffled in (
        ({}, False),
        ({"shuffle": True}, True),
        ({"sampler": data.SequentialSampler(squares)}, False),
        ({"sampler": data.RandomSampler(squares)}, True),
    ):
        assert plan_loader(squares, seed=3, **arguments).dataset.shuffle is shuffled
    assert plan_loader(squares, seed=3, drop_last=True).drop_tail
    generator = torch.Generator()
    for arguments, said in (
        ({"sampler": data.DistributedSampler(squares, 2, 0)}, "DistributedSampler"),
        ({"sampler": data.WeightedRandomSampler([1.0] * COUNT, COUNT)}, "WeightedRandomSampler"),
        ({"sampler": data.SubsetRandomSampler([1, 2])}, r"SubsetRandomSampler .*Subset\("),
        ({"sampler": list(range(COUNT))}, "the sampler list"),
        ({"sampler": data.RandomSampler(squares, replacement=True)}, "replacement of a Random"),
        ({"sampler": data.RandomSampler(squares, generator=generator)}, "generator of a Random"),
        ({"sampler": data.RandomSampler(squares, num_samples=5)}, "of 5 samples for a dataset"),
        ({"sampler": data.RandomSampler(squares), "shuffle": True}, "both shuffle=True and"),
        ({"batch_sampler": [[1, 2]]}, "batch_sampler .*give batch_size"),
        ({"generator": generator}, "generator .*give seed"),
        ({"in_order": False}, "in_order=False"),
        ({"num_wokers": 2}, "no argument 'num_wokers'"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch_factor": 2}, "prefetch_factor is 2, but there are no worker processes"),
        ({"collate_fn": 3}, "collate_fn is 3"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            plan_loader(squares, seed=3, **arguments)


def test_options_that_do_not_fit_a_torch_dataset_are_refused():
    dataset = open_torch_dataset(Squares(), name="squares", seed=3)
    order = dataset.order(BATCH, lanes=LANES)
    for options, said in (
        ({"columns": ["n"]}, "has no columns"),
        ({"transform": as_list}, "takes no transform"),
        ({"contents": True}, "contents=True needs data that the audit can read"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            SampleLoading()(dataset, order, **options)
    with pytest.raises(InvalidArgument, match="is a torch Dataset, whose samples"):
        next(Batches(dataset, order, prefetch_bytes=0))
    with pytest.raises(InvalidArgument, match="no samples in step 0, since there are more workers"):
        next(SampleLoading()(dataset, order, [], 0, 1))
