"""Guards the limit on read-ahead: it counts the memory in use, and the steps."""

import time
import tracemalloc

import numpy as np
import pytest

from strata.data.formats.row_gather import objects
from strata.data.formats.source import DatasetIndex
from strata.data.reading.batch_iterator import Batches
from strata.data.reading.batch_measures import held_bytes
from strata.data.reading.read_ahead import MAX_STEPS
from strata.data.reading.step_reader import BLOCK_STEPS
from strata.data.source_dataset import open_arrays, open_source

ROWS = 20_000
STEPS = MAX_STEPS + 50  # more than are read ahead; the order is evaluated only for these


class Made:
    """A column of new objects, made when they are read."""

    def __init__(self, make):
        self._make = make

    def scan(self):
        return DatasetIndex(ROWS)

    def read(self, index, rows, columns):
        return {"x": objects((self._make(int(row)) for row in rows), len(rows))}

    def describe(self, index):
        return {"x": "object"}


MADE = {
    "text": lambda row: f"a sentence about {row}, with ü" * 3,
    "bytes": lambda row: bytes(200) + row.to_bytes(8, "little"),
    "numbers": lambda row: [row * 1000 + each for each in range(1000, 1100)],
    "arrays": lambda row: np.full(50, row),
    "nested": lambda row: {"words": [f"{row}-{each}" for each in range(20)], "n": row + 0.5},
}


def settled(batches):
    """Wait until the thread reads no further; return the steps that are ready."""
    ahead = batches._ahead
    while True:
        with ahead._changed:
            if ahead._full() and not ahead._busy:
                return len(ahead._ready)
        time.sleep(0.001)


def traced(make_batches):
    """The counted bytes, the allocated bytes, and the number of steps that are ready."""
    make_batches(0).close()  # one-time allocations do not count
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with make_batches(STEPS) as batches:
            next(batches)
            steps = settled(batches)
            now, _ = tracemalloc.get_traced_memory()
            return batches._ahead._held_bytes, now - before, steps
    finally:
        tracemalloc.stop()


def test_a_small_dataset_is_read_ahead_by_a_bounded_number_of_steps():
    dataset = open_arrays({"x": np.zeros((ROWS, 2), np.float32)})
    order = dataset.order(1)
    _, allocated, steps = traced(lambda stop: Batches(dataset, order, stop_step=stop))
    assert MAX_STEPS - BLOCK_STEPS < steps <= MAX_STEPS
    assert allocated < 2 << 20


@pytest.mark.parametrize("kind", sorted(MADE))
@pytest.mark.parametrize("batch", [2, 100])
def test_counted_bytes_match_the_memory_in_use(kind, batch):
    dataset = open_source(Made(MADE[kind]))
    order = dataset.order(batch)
    counted, allocated, steps = traced(lambda stop: Batches(dataset, order, stop_step=stop))
    assert steps > 100
    assert 0.7 < counted / allocated < 1.6


@pytest.mark.parametrize("batch", [1, 32])
def test_python_overhead_of_small_batches_is_counted(batch):
    dataset = open_arrays({name: np.arange(ROWS) for name in "abc"})
    order = dataset.order(batch)
    counted, allocated, _ = traced(lambda stop: Batches(dataset, order, stop_step=stop))
    assert 0.7 < counted / allocated < 2.0


def widen(batch):
    return {"x": np.repeat(batch["x"], 500, axis=1)}


def first_only(batch):
    return {"x": batch["x"][:, :1]}  # a view, which keeps all of the rows alive


@pytest.mark.parametrize(("transform", "width"), [(widen, 100), (first_only, 20_000)])
def test_transformed_batches_are_within_the_limit(transform, width):
    dataset = open_arrays({"x": np.zeros((2_000, width), np.uint8)})
    order, limit, block = dataset.order(4), 8 << 20, 4 << 20

    def batches(stop):
        return Batches(dataset, order, stop_step=stop, transform=transform, prefetch_bytes=limit)

    counted, allocated, steps = traced(batches)
    assert steps > 8
    assert allocated < limit + block + (1 << 20)
    assert counted < limit + block


def test_rows_kept_from_other_lanes_count():
    dataset = open_arrays({"x": np.zeros((2_000, 10_000), np.uint8)})
    order, limit, block = dataset.order(8, lanes=8), 8 << 20, 4 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with Batches(dataset, order, range(8), prefetch_bytes=limit) as batches:
            next(batches)
            settled(batches)
            for lanes in ([0, 1, 2, 3], [0, 1], [0]):
                batches.set_lanes(lanes, batches.step + 1)
                next(batches)
                settled(batches)
            most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert most < limit + 2 * block


def test_sizes_of_values():
    assert held_bytes(np.zeros(1_000)) >= 8_000
    assert held_bytes(["a" * 1_000] * 50) >= 50_000
    assert held_bytes({}) > 0
    torch = pytest.importorskip("torch")
    assert held_bytes(torch.zeros(1_000)) >= 4_000
