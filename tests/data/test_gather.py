"""Guards gathering: the rows are those requested, for any number of threads."""

import os
import threading
from multiprocessing import get_context

import numpy as np
import pytest

from strata.data.formats.row_gather import copy_alone, take

ARRAY = np.arange(1_000 * 3_001, dtype=np.int32).reshape(1_000, 3_001)
ROWS = np.random.default_rng(0).permutation(1_000)[:777]  # 9 MB


def helpers() -> int:
    return sum(each.name.startswith("strata-gather") for each in threading.enumerate())


def test_many_bytes_are_gathered_by_several_threads():
    assert (take(ARRAY, ROWS) == ARRAY[ROWS]).all()
    assert helpers() or os.cpu_count() == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_few_rows_of_many_bytes_are_gathered_too(count):
    wide = np.arange(6 * (4 << 20), dtype=np.uint8).reshape(6, -1)
    rows = np.array([5, 0, 5, 2, 4])[:count]
    assert (take(wide, rows) == wide[rows]).all()


def test_no_rows_gather_nothing():
    assert take(ARRAY, np.empty(0, np.int64)).shape == (0, 3_001)


@pytest.mark.parametrize("empty", [np.empty((0, 4)), np.empty((3, 0)), np.empty((2, 2), "S0")])
def test_arrays_without_bytes_are_gathered_too(empty):
    rows = np.arange(len(empty))
    assert take(empty, rows).shape == empty.shape


def test_a_thread_that_steps_aside_copies_alone():
    copied_by = []

    class Watched(np.ndarray):
        def take(self, *args, **kwargs):
            copied_by.append(threading.current_thread())
            return super().take(*args, **kwargs)

    def reads():
        copy_alone()
        take(ARRAY.view(Watched), ROWS)

    thread = threading.Thread(target=reads)
    thread.start()
    thread.join()
    assert copied_by == [thread]


def _gathered_in_child(result):
    result.put((take(ARRAY, ROWS).sum(), helpers()))


def test_worker_process_gathers_alone():
    take(ARRAY, ROWS)
    context = get_context("fork")
    result = context.Queue()
    child = context.Process(target=_gathered_in_child, args=(result,))
    child.start()
    assert result.get(timeout=30) == (ARRAY[ROWS].sum(), 0)
    child.join()


def test_forked_process_gathers_with_its_own_threads():
    take(ARRAY, ROWS)
    child = os.fork()
    if not child:
        os._exit(0 if (take(ARRAY, ROWS) == ARRAY[ROWS]).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
