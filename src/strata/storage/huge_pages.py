"""Memory for large copies: allocated in advance, in huge pages, not shared with forked children.

It is private because most kernels give huge pages only to private memory, and with them the disk
and the device handle 1 GiB in 512 pages instead of 262,144 (a write of 1 GiB took 0.015 s of
processor time instead of 0.054). A forked child sees zeros there, so the kernel never has to copy
pages that the parent writes afterwards.
"""

import ctypes
import logging
import mmap
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np

log = logging.getLogger(__name__)

HUGE_PAGE_BYTES = 2 * 1024 * 1024
HUGE_PAGES = 14  # MADV_HUGEPAGE
WIPE_ON_FORK = 18  # MADV_WIPEONFORK
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


POPULATE_BYTES = 32 * 1024 * 1024
"""Bytes per populate call: the kernel blocks other threads from mapping memory meanwhile."""

_kept: list[mmap.mmap] = []


class HugeMemory(mmap.mmap):
    """A mapping that can be pinned; `unpin` is called just before the pages are unmapped.

    A device that still regards an address as pinned copies into the old pages, whatever is mapped
    there later. So the mapping, which lives as long as any view of it, unpins itself. If that
    fails, the mapping is kept for the life of the process, so that nothing else gets its address.
    """

    unpin: Callable[[], bool] | None = None

    @property
    def address(self) -> int:
        """The start address of the mapping."""
        return int(np.frombuffer(self, np.uint8).ctypes.data)

    def __del__(self) -> None:
        unpin, self.unpin = self.unpin, None
        if unpin is None or sys.is_finalizing():
            return
        try:
            unpinned = unpin()
        except Exception as error:
            log.warning("pinned memory could not be unpinned: %r", error)
            unpinned = False
        if not unpinned:
            log.warning("%d bytes of pinned memory stay mapped: unpinning failed", len(self))
            _kept.append(self)


def huge_memory(size_bytes: int) -> HugeMemory:
    """At least that many bytes, aligned to a page; a page is allocated when it is first touched."""
    size_bytes = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    memory = HugeMemory(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (HUGE_PAGES, WIPE_ON_FORK):
        with suppress(OSError, ValueError, AttributeError):  # not on this system
            memory.madvise(advice)
    return memory


def populate(memory: HugeMemory) -> None:
    """Allocate every page now instead of during a copy.

    Through ctypes, which releases the GIL, unlike `mmap.madvise`: this runs beside training.
    """
    madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    start, size_bytes = memory.address, len(memory)
    for at in range(0, size_bytes, POPULATE_BYTES):
        length = min(POPULATE_BYTES, size_bytes - at)
        place = (ctypes.c_void_p(start + at), ctypes.c_size_t(length))
        if madvise is None or madvise(*place, ctypes.c_int(POPULATE_WRITE)) != 0:
            np.frombuffer(memory, np.uint8)[at : at + length : mmap.PAGESIZE] = 0
