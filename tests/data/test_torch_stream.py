"""Guards IterableDatasets in a run: the stream's order for any division into lanes, the same end
for all workers, resume by reading again, and an error if the stream differs.
"""

import logging
import random

import numpy as np
import pytest

from strata.core.state import STREAM_SAMPLES
from strata.data.torch.iterable_dataset import open_torch_stream
from strata.data.torch.iterable_engine import StreamLoading
from strata.data.torch.loader_plan import plan_loader
from strata.errors import Corrupt, InvalidArgument

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

COUNT, BATCH, LANES = 50, 6, 6
STEPS = COUNT // BATCH
EPOCH = STREAM_SAMPLES // BATCH  # the first step of the second epoch
DIVISIONS = [[[0, 1, 2, 3, 4, 5]], [[0, 2, 3], [1, 4, 5]], [[0, 5], [1, 4], [2, 3]]]


class Numbers(data.IterableDataset):
    """Counts; divides itself among worker processes, as torch's documentation advises."""

    count = COUNT

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.count, step))


class Augmented(Numbers):
    """Draws from every global generator, before the first sample and at each one."""

    def __iter__(self):
        start = random.random()
        for number in super().__iter__():
            drawn = [start, random.random(), np.random.rand(), torch.rand(()).item()]
            yield number, torch.tensor(drawn, dtype=torch.float64)


class Changing(Numbers):
    """A stream that changes after some passes, from one sample on."""

    def __init__(self, same_passes, change_at):
        self.passes, self.same_passes, self.change_at = 0, same_passes, change_at

    def __iter__(self):
        self.passes += 1
        changed = self.passes > self.same_passes
        for number in range(COUNT):
            yield -number if changed and number >= self.change_at else number


class Broken(Numbers):
    def __iter__(self):
        yield from range(15)
        raise OSError("the connection broke")


def as_list(samples):
    return list(samples)


def read(stream):
    """The remaining batches of the epoch, with the samples recorded for each."""
    found, first = [], stream.step
    for batch in iter(lambda: next(stream, None), None):
        found.append((stream.taken.samples.tolist(), [str(each) for each in batch]))
    assert stream.step == first + len(found)
    return found


def streams(dataset, division, epoch=0, **options):
    engine = StreamLoading(as_list, **options)
    order = dataset.order(BATCH, lanes=LANES)
    return [engine(dataset, order, lanes, epoch * EPOCH) for lanes in division]


def joined(dataset, division, **options):
    """The samples of each step, of all workers."""
    steps = []
    for stream in streams(dataset, division, **options):
        parts = read(stream)
        stream.close()
        steps = steps or [[] for _ in parts]
        assert len(steps) == len(parts)
        for step, (numbers, items) in zip(steps, parts, strict=True):
            step += zip(numbers, items, strict=True)
    return [sorted(step) for step in steps]


@pytest.mark.parametrize("kind", [Numbers, Augmented])
def test_the_order_is_the_streams_for_any_division_and_processes(kind):
    dataset = open_torch_stream(kind(), seed=3)
    whole = joined(dataset, DIVISIONS[0])
    assert [[n for n, _ in step] for step in whole] == [
        list(range(step * BATCH, (step + 1) * BATCH)) for step in range(STEPS)
    ]
    for division in DIVISIONS[1:]:
        assert joined(dataset, division) == whole
    assert joined(dataset, DIVISIONS[1], num_workers=1) == whole


def test_random_numbers_differ_between_epochs_seeds_and_samples():
    dataset = open_torch_stream(Augmented(), seed=3)
    first, second = (joined(dataset, DIVISIONS[0], epoch=epoch) for epoch in (0, 1))
    other = joined(open_torch_stream(Augmented(), seed=4), DIVISIONS[0])
    drawn = [item for read in (first, second, other) for step in read for _, item in step]
    assert len(set(drawn)) == len(drawn) == 3 * STEPS * BATCH


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_stream_gives_what_the_undisturbed_one_gives(workers):
    dataset = open_torch_stream(Augmented(), seed=3)
    (whole,) = streams(dataset, [[0, 1]], num_workers=workers)
    for _ in range(5):
        next(whole)
    state = whole.state_dict()
    rest = read(whole)
    whole.seek(5)  # after the end, the stream is read again
    assert read(whole) == rest
    whole.close()
    (resumed,) = streams(open_torch_stream(Augmented(), seed=3), [[0, 1]])
    resumed.load_state_dict(state)
    assert read(resumed) == rest


@pytest.mark.parametrize("workers", [0, 1])
def test_other_lanes_and_a_repeated_step_do_not_read_the_stream_again(workers):
    class Counted(Numbers):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return ((self.passes, number) for number in range(COUNT))

    stream_of = Counted()
    dataset = open_torch_stream(Numbers(), seed=3)
    dataset.samples = stream_of
    (stream,) = streams(dataset, [[0, 1]], num_workers=workers)
    assert next(stream) == [(1, 0), (1, 1)]
    assert next(stream) == [(1, 6), (1, 7)]
    stream.seek(1)
    stream.set_lanes([1, 2], 1)
    assert next(stream) == [(1, 7), (1, 8)]
    assert next(stream) == [(1, 13), (1, 14)]
    stream.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_fill_a_step_are_reported(workers, caplog):
    dataset = open_torch_stream(Numbers(), name="numbers", seed=3)
    with caplog.at_level(logging.WARNING):
        for stream in streams(dataset, DIVISIONS[1], num_workers=workers):
            assert len(read(stream)) == STEPS
            stream.close()
    said = f"numbers: the last {COUNT % BATCH} samples of the stream are left out"
    assert caplog.text.count(said) == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        (stream,) = streams(dataset, DIVISIONS[0], drop_last=True)
        read(stream)
    assert caplog.text == ""


def test_stream_that_differs_when_read_again_is_an_error():
    dataset = open_torch_stream(Changing(3, 20), name="numbers", seed=3)
    (stream,) = streams(dataset, DIVISIONS[0])
    for _ in range(6):
        next(stream)
    stream.seek(0)
    for _ in range(3):
        next(stream)
    with pytest.raises(Corrupt, match="'numbers': the stream returned other samples in step 3"):
        next(stream)


def test_stream_that_is_shorter_when_read_again_is_an_error():
    numbers = Numbers()
    dataset = open_torch_stream(numbers, seed=3)
    (stream,) = streams(dataset, DIVISIONS[0])
    read(stream)
    numbers.count = 20
    stream.seek(0)
    with pytest.raises(Corrupt, match="other samples in step 3"):
        read(stream)


def test_a_state_of_another_stream_is_refused():
    (stream,) = streams(open_torch_stream(Changing(9, 20), name="a", seed=3), DIVISIONS[0])
    for _ in range(6):
        next(stream)
    (other,) = streams(open_torch_stream(Changing(2, 20), name="a", seed=3), DIVISIONS[0])
    other.load_state_dict(stream.state_dict())
    with pytest.raises(Corrupt, match="before step 6 differs from the one that was read"):
        next(other)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_stream_names_the_sample(workers):
    dataset = open_torch_stream(Broken(), name="lines", seed=3)
    (stream,) = streams(dataset, DIVISIONS[0], num_workers=workers)
    next(stream), next(stream)
    for _ in range(2):
        with pytest.raises(Corrupt, match="'lines': stream sample 15 failed: OSError: the"):
            next(stream)
    stream.close()


def test_set_epoch_is_called_where_a_dataset_has_it():
    class Epochs(Numbers):
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch] * COUNT)

    dataset = open_torch_stream(Epochs(), seed=3)
    for epoch in (0, 2):
        (stream,) = streams(dataset, [[0, 1]], epoch=epoch)
        assert next(stream) == [epoch, epoch]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_stream_goes_from_epoch_to_epoch_and_back(workers):
    dataset = open_torch_stream(Augmented(), seed=3)
    (stream,) = streams(dataset, [[0, 1]], num_workers=workers)
    first = read(stream)
    stream.seek(EPOCH)
    second = read(stream)
    assert [numbers for numbers, _ in second] == [numbers for numbers, _ in first]
    assert [items for _, items in second] != [items for _, items in first]
    stream.seek(0)
    assert read(stream) == first
    stream.seek(EPOCH + 3)
    assert read(stream) == second[3:]
    stream.close()


def test_epochs_must_begin_with_a_step():
    dataset = open_torch_stream(Numbers(), seed=3)
    order = dataset.order(23)
    stream = StreamLoading(as_list)(dataset, order)
    assert len(read(stream)) == COUNT // 23
    stream.seek(-(-STREAM_SAMPLES // 23))
    with pytest.raises(InvalidArgument, match="for several epochs with a global batch of 23"):
        next(stream)


def test_streams_that_cannot_be_divided_are_refused():
    def lines():
        yield from range(COUNT)

    class Own(Numbers):
        generator = np.random.default_rng(0)

        def __iter__(self):
            return iter(self.generator.random(COUNT).tolist())

    class Empty(Numbers):
        count = 0

    for dataset, arguments, said in (
        (lines(), {}, "generator returns other samples when it is read again"),
        (Own(), {}, "Own returns other samples when it is read again"),
        (Empty(), {}, "Empty has no samples"),
        (Numbers(), {"shuffle": True}, "cannot shuffle Numbers"),
        (Numbers(), {"num_workers": 2}, "num_workers is 2, and a stream is read by one process"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            plan_loader(dataset, seed=3, **arguments)
    plan = plan_loader(Numbers(), seed=3, num_workers=1)
    assert not plan.has_length
    with pytest.raises(InvalidArgument, match="which cannot leave samples out"):
        plan.engine(plan.dataset, plan.dataset.order(BATCH), on_error="skip")


def test_another_stream_has_another_fingerprint():
    kinds = [Numbers(), Augmented(), Changing(0, 1)]
    found = {open_torch_stream(each, seed=3).fingerprint for each in kinds}
    assert len(found) == len(kinds)
    again = open_torch_stream(Augmented(), seed=3)
    assert again.fingerprint in found
    assert (again.name, again.spec()) == (
        open_torch_stream(Augmented(), seed=3).name,
        open_torch_stream(Augmented(), seed=3).spec(),
    )


@pytest.mark.slow
def test_a_spawned_process_reads_the_same_stream():
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    dataset = plan_loader(Augmented(), seed=3, **options).dataset
    assert joined(dataset, DIVISIONS[0], **options) == joined(dataset, DIVISIONS[1])
