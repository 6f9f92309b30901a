"""An open file for ranged reads, with a shared lock so that it is not overwritten.

Bytes in the page cache are read from there. The rest is read directly (O_DIRECT) into an aligned
block and copied to the target: the same single copy that the kernel would make, without allocating
pages first. 1 GiB from a cold file took 0.33 s this way and 0.62 s through the cache. `mmap` is not
used: a page fault on a network disk stalls invisibly, and a truncated file would raise a signal
instead of an error.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np

from strata.errors import Corrupt
from strata.storage.direct_io import ALIGNMENT, O_DIRECT, aligned_up
from strata.storage.huge_pages import huge_memory
from strata.storage.io_threads import scatter
from strata.storage.storage_errors import disk_error

MAX_BUFFERS = 1024  # limit of one preadv (IOV_MAX)
DIRECT_BYTES = 256 * 1024
BOUNCE_BYTES = 4 * 1024 * 1024  # those of all threads fit into the processor's cache
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
CACHED_ONLY = getattr(os, "RWF_NOWAIT", 0)


class LocalReader:
    """One open file. Threads may read at once; each read has its own offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = -1
        self._bounce = threading.local()
        try:
            lock_shared(self._fd)
            found = os.fstat(self._fd)
            if not os.path.samestat(found, os.stat(path)):  # recycled while waiting for the lock
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            os.read(self._fd, 0)  # raises for a folder
        except BaseException:
            os.close(self._fd)
            raise
        self.size_bytes = found.st_size
        if O_DIRECT and CACHED_ONLY and self.size_bytes >= DIRECT_BYTES:
            self._open_direct(found)

    def _open_direct(self, found: os.stat_result) -> None:
        with suppress(OSError):  # not on this filesystem: read through the cache
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | O_DIRECT)
            if os.path.samestat(found, os.fstat(fd)):
                self._direct = fd
            else:  # replaced meanwhile
                os.close(fd)

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        waiting = [buffer for buffer in buffers if buffer.nbytes]
        while waiting:
            try:
                count = self._read(waiting[:MAX_BUFFERS], offset)
            except OSError as error:
                raise disk_error(error, f"cannot read {self.path}") from error
            if count == 0:
                raise Corrupt(
                    f"{self.path} ends at byte {offset}, before the requested end",
                    hint="the file was cut short; restore it or use another checkpoint",
                )
            offset += count
            waiting = remaining_buffers(waiting, count)

    def _read(self, buffers: list[memoryview], offset: int) -> int:
        large = sum(buffer.nbytes for buffer in buffers) >= DIRECT_BYTES
        if self._direct >= 0 and large and not self._cached(offset):
            return self._read_direct(buffers, offset)
        return os.preadv(self._fd, buffers, offset)

    def _cached(self, offset: int) -> bool:
        """Whether the page is in the cache. Reads one byte: a larger read would make the kernel
        read 8 MiB ahead.
        """
        try:
            os.preadv(self._fd, [bytearray(1)], offset, CACHED_ONLY)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            return False
        return True

    def _read_direct(self, buffers: list[memoryview], offset: int) -> int:
        start = offset % ALIGNMENT
        wanted = min(start + sum(buffer.nbytes for buffer in buffers), BOUNCE_BYTES)
        if not hasattr(self._bounce, "view"):
            self._bounce.view = memoryview(huge_memory(BOUNCE_BYTES))
        block: memoryview = self._bounce.view[: aligned_up(wanted)]
        try:
            count = min(os.preadv(self._direct, [block], offset - start), wanted) - start
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.preadv(self._fd, buffers, offset)
        if count <= 0:
            return 0
        scatter(np.frombuffer(block, np.uint8)[start : start + count], buffers)
        return count

    def close(self) -> None:
        for fd in (self._fd, self._direct):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def remaining_buffers(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The rest of the buffers after the first `count` bytes are filled."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []


def lock_shared(fd: int) -> None:
    """Wait for a writer. Without locks in this filesystem nothing is recycled either."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock on a file or folder; raises OSError if it is not available."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)
