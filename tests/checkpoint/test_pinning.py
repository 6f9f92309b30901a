"""Guards that pinned memory is unpinned before it is unmapped, whichever reference is the last.

A driver that still regards an address as pinned copies into the old pages, and memory that is
mapped there next stays zero. The test with a real driver is tests/gpu/test_checkpoint_cuda.py.
"""

import contextlib
import os
import types

import numpy as np
import pytest

from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.write import device_snapshot
from strata.checkpoint.write.staging import Staging
from strata.storage import huge_pages as memories
from strata.storage.huge_pages import huge_memory


def is_mapped(address):
    with open("/proc/self/maps") as maps:
        ranges = (line.split()[0].split("-") for line in maps)
        return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)


class Driver:
    """A fake of the two CUDA calls that pin memory; records what is pinned, and what was unmapped
    too early.
    """

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.unmapped_first: list[int] = []
        self.refuses_unpin = False

    def cudaHostRegister(self, start, size_bytes, flags):
        if start in self.pinned:
            return 712
        self.pinned[start] = size_bytes
        return 0

    def cudaHostUnregister(self, start):
        if not is_mapped(start):
            self.unmapped_first.append(start)
        if self.refuses_unpin:
            return 4
        del self.pinned[start]
        return 0


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    card = types.SimpleNamespace(
        cudart=lambda: driver, device=lambda device: contextlib.nullcontext()
    )
    torch = types.SimpleNamespace(cuda=card, Tensor=type("Tensor", (), {}))
    monkeypatch.setitem(device_snapshot.sys.modules, "torch", torch)
    return driver


def test_dropped_staging_memory_is_unpinned_before_it_is_unmapped(driver):
    for value in range(5):
        memory = Staging().prepare(3 * 2**20, "cuda:0")
        np.frombuffer(memory, np.uint8)[:] = value
        assert driver.pinned == {memory.address: len(memory)}
        del memory
        assert driver.pinned == {}
    assert driver.unmapped_first == []


def test_memory_stays_pinned_while_a_capture_is_read(driver):
    staging = Staging()
    staging.prepare(2**21, "cuda:0")
    capture = staging.capture(flatten({"a": np.arange(9)}), {})
    staging.close()
    del staging
    assert len(driver.pinned) == 1
    view = capture.view(capture.placed[0].offset, 8 * 9)
    del capture
    assert len(driver.pinned) == 1
    assert np.frombuffer(view, np.int64).tolist() == list(range(9))
    del view
    assert driver.pinned == {}


def test_grown_buffer_is_pinned_again(driver):
    staging = Staging()
    small = staging.prepare(2**21, "cuda:0").address
    large = staging.prepare(5 * 2**21, "cuda:0")
    assert driver.pinned == {large.address: 5 * 2**21}
    assert small not in driver.pinned or small == large.address
    assert staging.prepare(2**20, "cuda:0") is large


def test_memory_is_never_unmapped_if_unpinning_fails(driver, monkeypatch):
    kept = []
    monkeypatch.setattr(memories, "_kept", kept)
    driver.refuses_unpin = True
    memory = Staging().prepare(2**21, "cuda:0")
    start = memory.address
    del memory
    assert is_mapped(start)
    assert [each.address for each in kept] == [start]


def test_forked_child_does_not_call_the_driver(driver):
    memory = huge_memory(2**21)
    assert device_snapshot.pin(memory, "cuda:0")
    child = os.fork()
    if child == 0:
        driver.refuses_unpin = True  # a call would be answered with an error
        before = len(memories._kept)
        del memory
        os._exit(len(memories._kept) - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del memory
    assert driver.pinned == {}
