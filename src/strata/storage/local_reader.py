"""A file held open for ranged reads, under a shared lock so that nobody writes over it.

Read by `preadv`, never by `mmap`: a page fault on a network disk stalls where nobody can see it,
and a truncated file would be a signal instead of an error.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from strata.errors import Corrupt
from strata.storage.faults import disk_fault

MAX_BUFFERS = 1024  # of one preadv (IOV_MAX)
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalReader:
    """One open file. Threads may read at once; each read has its own offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lock_shared(self._fd)
            found = os.fstat(self._fd)
            if not os.path.samestat(found, os.stat(path)):  # recycled while waiting for the lock
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            os.read(self._fd, 0)  # a folder is refused here
        except BaseException:
            os.close(self._fd)
            raise
        self.size_bytes = found.st_size

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        waiting = [buffer for buffer in buffers if buffer.nbytes]
        while waiting:
            try:
                count = os.preadv(self._fd, waiting[:MAX_BUFFERS], offset)
            except OSError as error:
                raise disk_fault(error, f"cannot read {self.path}") from error
            if count == 0:
                raise Corrupt(
                    f"{self.path} ends at byte {offset}, before what was asked for",
                    hint="the file was cut short; restore it or use another checkpoint",
                )
            offset += count
            waiting = after(waiting, count)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers when the first `count` bytes are filled."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []


def lock_shared(fd: int) -> None:
    """Waits for a writer. Without locks in this filesystem nothing is recycled either."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Holds a lock on a file or folder; raises OSError where it cannot be had."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)
