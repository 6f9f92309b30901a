"""Guards the batch reader: batches follow the order after any read-ahead, lane change, rollback or
error; memory is bounded; no thread outlives its iterator.
"""

import gc
import random
import threading
import time

import numpy as np
import pytest

from strata.core.order import digest
from strata.data.formats.in_memory import ArraySource
from strata.data.reading.batch_iterator import Batches
from strata.data.reading.read_ahead import ReadTiming
from strata.data.source_dataset import open_arrays, open_dataset, open_source
from strata.errors import Corrupt, InvalidArgument, NotAllowedNow
from tests.data import corpora

N = 103


@pytest.fixture
def dataset():
    return open_arrays({"n": np.arange(N), "v": corpora.vectors(N)})


@pytest.fixture
def order(dataset):
    return dataset.order(12, lanes=6, seed=5)


def threads():
    return [each for each in threading.enumerate() if each.name == "strata-batches"]


def wait_until(condition):
    while not condition():
        time.sleep(0.001)


class Slow(ArraySource):
    """A dataset that counts what is read, and fails for given rows."""

    def __init__(self, arrays):
        super().__init__(arrays)
        self.rows_read = 0
        self.bad: set[int] = set()

    def read(self, index, rows, columns):
        self.rows_read += len(rows)
        found = self.bad & set(rows.tolist())
        if found:
            raise OSError(f"cannot read {min(found)}")
        return super().read(index, rows, columns)


def test_batches_follow_the_order(dataset, order):
    with Batches(dataset, order, [4, 1], 3, 30) as batches:
        for step in range(3, 30):
            assert batches.step == step
            batch = next(batches)
            expected = order.step_samples(step, [1, 4])
            assert batch["n"].tolist() == expected.tolist()
            assert np.array_equal(batch["v"], corpora.vectors(N)[expected])
        assert next(batches, None) is None
        assert next(batches, None) is None


def test_batches_are_dicts_of_the_requested_columns(dataset, order):
    with Batches(dataset, order, columns=["v"], stop_step=1) as batches:
        (batch,) = batches
    assert type(batch) is dict
    assert list(batch) == ["v"]
    with pytest.raises(InvalidArgument, match="no column 'w'"):
        Batches(dataset, order, columns=["w"])


def test_a_transform_sees_each_step_once(dataset, order):
    seen = []

    def double(batch):
        seen.append(batch["n"].tolist())
        return batch["n"] * 2

    with Batches(dataset, order, stop_step=5, transform=double) as batches:
        got = [batch.tolist() for batch in batches]
    assert got == [[2 * n for n in step] for step in seen]
    assert len(seen) == 5


def test_resume_is_exact_in_the_middle_of_an_epoch(dataset, order):
    with Batches(dataset, order, stop_step=20) as batches:
        whole = [batch["n"].tolist() for batch in batches]
    with Batches(dataset, order, [0, 1, 2], stop_step=20) as batches:
        for _ in range(7):
            next(batches)
        state = batches.state_dict()
    with Batches(dataset, order, stop_step=20) as batches:
        batches.load_state_dict(state)
        assert [batch["n"].tolist() for batch in batches] == whole[7:]


def test_a_state_of_another_order_is_refused_with_the_reason(dataset, order):
    state = Batches(dataset, order).state_dict()
    other = Batches(dataset, dataset.order(12, lanes=6, seed=6))
    with pytest.raises(InvalidArgument, match="another order: seed differ"):
        other.load_state_dict(state)


def test_seeking_back_replays(dataset, order):
    with Batches(dataset, order) as batches:
        first = [next(batches)["n"].tolist() for _ in range(9)]
        batches.seek(4)
        assert [next(batches)["n"].tolist() for _ in range(5)] == first[4:]


def test_lanes_change_from_a_step_on(dataset, order):
    with Batches(dataset, order, [0, 1]) as batches:
        next(batches)
        batches.set_lanes([1, 5], 3)
        for step in range(1, 8):
            lanes = [0, 1] if step < 3 else [1, 5]
            assert next(batches)["n"].tolist() == order.step_samples(step, lanes).tolist()
        with pytest.raises(NotAllowedNow, match="step 2 was already returned"):
            batches.set_lanes([0], 2)
        with pytest.raises(InvalidArgument, match="lane 6 does not exist"):
            batches.set_lanes([6], 9)


def test_rows_of_remaining_lanes_are_not_read_again():
    source = Slow({"n": np.arange(1200)})
    dataset = open_source(source)
    order = dataset.order(12, lanes=6)
    with Batches(dataset, order, [0, 1, 2], stop_step=50) as batches:
        next(batches)
        wait_until(lambda: len(batches._ahead._ready) == 49)
        batches.set_lanes([0, 1, 2, 3], 1)
        got = [next(batches)["n"].tolist() for _ in range(49)]
    assert got == [order.step_samples(step, range(4)).tolist() for step in range(1, 50)]
    assert source.rows_read == 50 * 6 + 49 * 2


def test_error_is_raised_at_its_step_and_the_step_can_be_retried():
    source = Slow({"n": np.arange(1200)})
    dataset = open_source(source, name="shaky")
    order = dataset.order(12)
    bad = int(order.step_samples(17)[3])
    source.bad.add(bad)
    with Batches(dataset, order) as batches:
        for step in range(17):
            assert next(batches)["n"].tolist() == order.step_samples(step).tolist()
        for _ in range(2):
            with pytest.raises(Corrupt, match=f"dataset 'shaky'.*cannot read {bad}"):
                next(batches)
            assert batches.step == 17
        source.bad.clear()
        assert next(batches)["n"].tolist() == order.step_samples(17).tolist()


def test_transform_error_is_raised_at_its_step(dataset, order):
    def fail(batch):
        if batch["n"][0] == order.step_samples(3)[0]:
            raise RuntimeError("no good")
        return batch

    with Batches(dataset, order, transform=fail) as batches:
        for _ in range(3):
            next(batches)
        with pytest.raises(RuntimeError, match="no good"):
            next(batches)


def test_damaged_rows_are_skipped_and_recorded(tmp_path):
    good = [f'{{"n": {i}}}' for i in range(150)]
    good[120] = '{"n": "?"}'
    (tmp_path / "x.jsonl").write_text("\n".join(good))
    dataset = open_dataset(str(tmp_path), name="lines")
    order = dataset.order(10)
    skipped = []
    with Batches(dataset, order, stop_step=15, on_error="skip", on_skip=skipped.append) as batches:
        sizes = [len(batch["n"]) for batch in batches]
    assert sum(sizes) == 149
    assert sorted(sizes) == [9] + [10] * 14
    assert [(each.dataset, each.file, each.row) for each in skipped] == [("lines", "x.jsonl", 120)]
    with Batches(dataset, order) as batches, pytest.raises(Corrupt, match="row 120"):
        list(batches)
    with pytest.raises(InvalidArgument, match="on_error is 'ignore'"):
        Batches(dataset, order, on_error="ignore")


def test_read_ahead_is_bounded():
    rows = np.zeros((4096, 1 << 14), np.uint8)
    source = Slow({"x": rows})
    dataset = open_source(source)
    order = dataset.order(16)
    with Batches(dataset, order, prefetch_bytes=8 << 20) as batches:
        for _ in range(40):
            next(batches)
        ahead_bytes = (source.rows_read - 40 * 16) << 14
        assert ahead_bytes <= (8 << 20) + (4 << 20)


def test_no_thread_outlives_its_iterator(dataset, order):
    assert threads() == []
    batches = Batches(dataset, order)
    next(batches)
    assert len(threads()) == 1
    batches.close()
    batches.close()
    assert threads() == []
    assert next(batches, None) is None
    forgotten = Batches(dataset, order)
    next(forgotten)
    del forgotten
    gc.collect()
    assert threads() == []


def test_without_read_ahead_no_thread_is_started(dataset, order):
    with Batches(dataset, order, stop_step=20) as batches:
        ahead = [batch["n"].tolist() for batch in batches]
    with Batches(dataset, order, stop_step=20, prefetch_bytes=0) as batches:
        asked = []
        for batch in batches:
            assert threads() == []
            asked.append(batch["n"].tolist())
    assert asked == ahead


def paced(away_s, read_s=1.0):
    """The read timing of a loop that computes for that long after each batch."""
    timing, now_s = ReadTiming(), 0.0
    for each_s in away_s:
        timing.read(read_s)
        timing.batch_returned(now_s)
        now_s += each_s
        timing.batch_requested(now_s)
    return timing


def test_read_ahead_runs_while_the_loop_computes():
    assert ReadTiming().pays
    assert not paced([0.01]).pays
    assert paced([0.5]).pays
    assert not paced([0.5, *[0.01] * 8]).pays
    assert paced([*[0.01] * 8, *[5.0] * 3]).pays
    assert not paced([*[0.01] * 8, 500.0]).pays


def test_loop_that_only_reads_uses_its_own_thread():
    readers = []

    class Deep(ArraySource):
        """A dataset that reads slowly, like a disk."""

        def read(self, index, rows, columns):
            readers.append(threading.current_thread())
            time.sleep(0.005)
            return super().read(index, rows, columns)

    dataset = open_source(Deep({"x": np.zeros((640, 1 << 16), np.uint8)}))
    with Batches(dataset, dataset.order(64), stop_step=40) as batches:
        for _ in batches:
            pass
    assert len(readers) == 40
    assert readers.count(threading.current_thread()) >= 32


@pytest.mark.parametrize("lanes", [["a"], "01", [1.5]])
def test_invalid_lanes_are_refused(dataset, order, lanes):
    with pytest.raises(InvalidArgument, match="lanes are numbers"):
        Batches(dataset, order, lanes)


def test_uncallable_transform_is_refused_before_reading(dataset, order):
    with pytest.raises(InvalidArgument, match="transform is 3, not a function"):
        Batches(dataset, order, transform=3)


@pytest.mark.parametrize("state", [{}, {"step": 3}, {"step": "x", "order": {}}])
def test_invalid_state_is_refused(dataset, order, state):
    with pytest.raises(InvalidArgument, match="not a state of batches"):
        Batches(dataset, order).load_state_dict(state)


@pytest.mark.parametrize("rows", [None, 3, [1.5], [[1, 2]], ["a"], [2**70], [-1], [N]])
def test_invalid_row_numbers_are_refused(dataset, rows):
    with pytest.raises(InvalidArgument, match=r"dataset 'arrays'(: invalid| has no) row"):
        dataset.read(rows)


@pytest.mark.parametrize("columns", ["v", []])
def test_invalid_columns_are_refused(dataset, columns):
    with pytest.raises(InvalidArgument, match="'arrays': columns is"):
        dataset.read([0], columns)


@pytest.mark.parametrize("steps", [(-1, 2), (3, 2)])
def test_invalid_steps_are_refused(dataset, order, steps):
    with pytest.raises(InvalidArgument, match="cannot read steps"):
        Batches(dataset, order, None, *steps)


def test_a_worker_without_lanes_has_empty_batches(dataset, order):
    with Batches(dataset, order, [], stop_step=2) as batches:
        assert [len(batch["n"]) for batch in batches] == [0, 0]


def test_digests_of_workers_add_up(dataset, order):
    parts = [Batches(dataset, order, lanes) for lanes in ([0, 3], [1], [2, 4, 5])]
    positions = order.positions(9, 10)[0]
    whole = digest(positions, order.samples(positions))
    assert sum(part.digest_of(9) for part in parts) % 2**64 == whole
    assert parts[1].samples_of(9).tolist() == order.step_samples(9, [1]).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_seeks_and_lane_changes_gives_the_right_batches(dataset, seed):
    rng = random.Random(seed)
    order = dataset.order(12, lanes=6, seed=seed, mode=rng.choice(["global", "window"]))
    schedule = {0: [0, 1, 2]}
    step = 0
    with Batches(dataset, order, schedule[0], prefetch_bytes=rng.choice([0, 1000, 1 << 20])) as it:
        for _ in range(150):
            action = rng.random()
            if action < 0.15:
                first = step + rng.randint(0, 4)
                lanes = rng.sample(range(6), rng.randint(0, 6))
                it.set_lanes(lanes, first)
                schedule = {at: each for at, each in schedule.items() if at < first}
                schedule[first] = lanes
            elif action < 0.2:
                step = rng.randint(0, step + 10)
                it.seek(step)
            else:
                lanes = schedule[max(at for at in schedule if at <= step)]
                assert next(it)["n"].tolist() == order.step_samples(step, lanes).tolist()
                step += 1


def test_four_workers_become_three_without_losing_samples(dataset):
    order = dataset.order(16, lanes=8)
    before = [[0, 1], [2, 3], [4, 5], [6, 7]]
    after = [[0, 1, 6], [2, 3, 7], [4, 5]]
    workers = [Batches(dataset, order, lanes) for lanes in before]
    trained = []
    for _ in range(10):
        trained += [n for worker in workers for n in next(worker)["n"].tolist()]
    workers.pop().close()
    for worker, lanes in zip(workers, after, strict=True):
        worker.set_lanes(lanes, 10)
    for _ in range(10):
        trained += [n for worker in workers for n in next(worker)["n"].tolist()]
    for worker in workers:
        worker.close()
    for epoch in range(len(trained) // N):
        positions = np.arange(epoch * N, (epoch + 1) * N)
        assert sorted(order.samples(positions)) == list(range(N))
    assert sorted(trained) == sorted(order.samples(np.arange(320)).tolist())


@pytest.mark.parametrize("wrong", [-1, "x", None, 0.5])
def test_invalid_prefetch_bytes_are_refused(wrong):
    dataset = open_arrays({"n": np.arange(8)})
    with pytest.raises(InvalidArgument, match="prefetch_bytes is"):
        Batches(dataset, dataset.order(4), prefetch_bytes=wrong)


@pytest.mark.parametrize("wrong", [5, "n", [], [1]])
def test_empty_columns_are_refused(wrong):
    dataset = open_arrays({"n": np.arange(8)})
    with pytest.raises(InvalidArgument, match="column"):
        Batches(dataset, dataset.order(4), columns=wrong)
