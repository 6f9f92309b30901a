"""Guards memory for large copies: large enough, private to a process, in huge pages if possible."""

import os
from pathlib import Path

import pytest

from strata.storage.huge_pages import HUGE_PAGE_BYTES, huge_memory, populate


def test_memory_has_at_least_the_requested_size() -> None:
    for size_bytes in (1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1):
        assert len(huge_memory(size_bytes)) in range(size_bytes, size_bytes + HUGE_PAGE_BYTES)


def test_forked_child_does_not_share_the_memory() -> None:
    memory = huge_memory(HUGE_PAGE_BYTES)
    memory[:6] = b"parent"
    child = os.fork()
    if child == 0:
        seen = memory[:6]
        memory[:6] = b"child!"
        os._exit(0 if seen == bytes(6) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory[:6] == b"parent"


def test_memory_uses_huge_pages() -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this kernel gives no huge pages")
    before = huge_kib()
    memory = huge_memory(32 * HUGE_PAGE_BYTES)
    populate(memory)
    assert huge_kib() > before


def huge_kib() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if "AnonHuge" in line)
