"""Writes a file at the speed of the disk: O_DIRECT, large blocks, a few at a time.

A buffered write of 1 GiB copies it into the page cache, evicts everything else, and waits for the
disk at `fsync`. With O_DIRECT the disk reads the caller's memory: no copy, no cache, and the kernel
works while Python does something else. Measured on two cores with 1 GiB: 16 MiB × 4 in flight takes
0.43 s for a new file and 0.32 s for a recycled one (its blocks are already allocated); 1 MiB blocks
reach 0.7 of that speed, more than four gain nothing.

The kernel needs address, offset and length on a 4 KiB boundary. An unaligned chunk is copied to an
aligned block first; the tail is written padded and the file truncated to its size. If the
filesystem refuses O_DIRECT (EINVAL), everything is written normally.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from strata.storage.backend import Buffer, acknowledge_to
from strata.storage.huge_pages import huge_memory
from strata.storage.io_threads import IoThreads

ALIGNMENT = 4096
BLOCK_BYTES = 16 * 1024 * 1024
LONG_BYTES = 1024 * 1024
DEPTH = 4

O_DIRECT = getattr(os, "O_DIRECT", 0)
REFUSES_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def aligned_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if view.nbytes else 0


class BlockWriter:
    """Writes one existing file from its beginning, up to `DEPTH` blocks at once."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC
        self.direct = bool(O_DIRECT)
        try:
            self.fd = os.open(path, flags | O_DIRECT)
        except OSError as error:
            if not self.direct or error.errno not in REFUSES_DIRECT:
                raise
            self.direct = False
            self.fd = os.open(path, flags)
        self._bounce = threading.local()
        self._fallback = threading.Lock()

    def write(self, chunks: Iterable[Buffer]) -> int:
        """Write the chunks one after the other, truncate the file there and sync it."""
        offset, tell = 0, acknowledge_to(chunks)
        written = WrittenBytes(tell) if tell is not None else None
        with IoThreads(DEPTH) as lanes:
            for block in rechunked(chunks):
                lanes.submit(partial(self._write_counted, block, offset, written))
                offset += block.nbytes
        os.ftruncate(self.fd, offset)
        os.fsync(self.fd)
        return offset

    def _write_counted(
        self, block: memoryview, offset: int, written: "WrittenBytes | None"
    ) -> None:
        self._write_block(block, offset)
        if written is not None:
            written.add(block.nbytes)

    def _write_block(self, block: memoryview, offset: int) -> None:
        if self.direct:
            try:
                write_all(self.fd, self._aligned(block), offset)
                return
            except OSError as error:
                if error.errno not in REFUSES_DIRECT:
                    raise
                self._give_up_direct()
        write_all(self.fd, block, offset)

    def _aligned(self, block: memoryview) -> memoryview:
        if block.nbytes % ALIGNMENT == 0 and address(block) % ALIGNMENT == 0:
            return block
        if not hasattr(self._bounce, "view"):
            self._bounce.view = memoryview(huge_memory(BLOCK_BYTES))
        padded: memoryview = self._bounce.view[: aligned_up(block.nbytes)]
        # NumPy copies without holding the GIL; slicing a memoryview does not.
        np.copyto(np.frombuffer(padded, np.uint8)[: block.nbytes], np.frombuffer(block, np.uint8))
        return padded

    def _give_up_direct(self) -> None:
        with self._fallback:
            if self.direct:
                flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
                fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~O_DIRECT)
                self.direct = False

    def close(self) -> None:
        os.close(self.fd)


class WrittenBytes:
    """Adds up the bytes that several threads have written, and reports the sum."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._bytes, self._tell = 0, tell
        self._lock = threading.Lock()
        tell(0)

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._bytes += size_bytes
            self._tell(self._bytes)


def rechunked(chunks: Iterable[Buffer]) -> Iterator[memoryview]:
    """The same bytes in blocks of which only the last has an unaligned length.

    Long chunks and the first one (a header) are passed through without a copy; short ones are
    gathered.
    """
    pending = bytearray()
    first = True
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        if pending:
            taken = min(BLOCK_BYTES - len(pending), view.nbytes)
            pending += view[:taken]
            view = view[taken:]
            if len(pending) == BLOCK_BYTES:
                yield memoryview(pending)
                pending = bytearray()
        while view.nbytes >= BLOCK_BYTES:
            yield view[:BLOCK_BYTES]
            view = view[BLOCK_BYTES:]
        even = view.nbytes - view.nbytes % ALIGNMENT
        if even and (first or even >= LONG_BYTES):
            yield view[:even]
            view = view[even:]
        pending += view
        first = False
    if pending:
        yield memoryview(pending)


def write_all(fd: int, data: Buffer, offset: int) -> None:
    """Write all of the data at an offset; `os.pwrite` alone may write less and not fail."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        if not written:
            raise OSError(errno.EIO, f"{view.nbytes} bytes at {offset} could not be written")
        view, offset = view[written:], offset + written
