"""The two small files beside the database: the writer's lock, and the last acknowledged commit.

The *lock* is an advisory lock on `<store>.lock`, which the kernel releases when its process ends,
however it ends. The file stays; only the lock on it counts. A child that is forked without exec
shares it, so processes are started with exec.

The *mark* in `<store>.mark` is the number of the last acknowledged commit. SQLite ends its
write-ahead log at the first frame whose checksum is wrong: right for a torn tail, but a byte that
rots in the middle makes acknowledged commits behind it disappear silently. With the mark
that is noticed at the next opening. It is written after each commit, in place and without a sync
(about 2 µs): a crash of the process keeps it, a power cut may leave an older one, which only
notices less. It is never ahead of the database. An unreadable mark is no mark.
"""

import contextlib
import fcntl
import os
import struct
import zlib
from pathlib import Path

from msgspec import Struct

from strata.errors import Conflict, Unavailable

_FORMAT = struct.Struct("<4sQQQ")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"mrk1"


def beside(path: Path, suffix: str) -> Path:
    """The sidecar of a store."""
    return path.with_name(path.name + suffix)


def lock_holder(store: Path) -> str:
    """The pid of the process that may write a store; empty if there is none."""
    try:
        file = os.open(beside(store, ".lock"), os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_pid(file)
    finally:
        os.close(file)
    return ""


def _written_pid(lock: int) -> str:
    return os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"


class Lock:
    """The right to write a store, held until `release` or the end of the process."""

    def __init__(self, store: Path) -> None:
        path = beside(store, ".lock")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise Unavailable(
                f"the lock {path} cannot be opened: {error.strerror}",
                hint="make the folder, or let this user write to it",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _written_pid(self._file)
            os.close(self._file)
            raise Conflict(
                f"the store {store} is locked by another coordinator, pid {holder}",
                hint="stop that coordinator first, or open the store for reading only",
            ) from error
        holder = f"{os.getpid()}\n"
        try:
            os.pwrite(self._file, holder.encode("ascii"), 0)
            os.ftruncate(self._file, len(holder))
        except OSError as error:
            os.close(self._file)
            raise Unavailable(
                f"the lock {path} cannot be written: {error.strerror}",
                hint="free some space, or name another folder",
            ) from error

    def release(self) -> None:
        os.close(self._file)


class Mark(Struct, frozen=True):
    """The acknowledged commits, facts and worker batches."""

    commits: int
    position: int
    batches: int


def read_mark(store: Path) -> Mark | None:
    """The mark beside a store, if there is a readable one."""
    try:
        data = beside(store, ".mark").read_bytes()
    except OSError:
        return None
    body = data[: _FORMAT.size]
    if len(data) != _FORMAT.size + _CHECKSUM.size or not body.startswith(_MAGIC):
        return None
    if _CHECKSUM.unpack(data[_FORMAT.size :]) != (zlib.crc32(body),):
        return None
    return Mark(*_FORMAT.unpack(body)[1:])


class MarkFile:
    """The mark of a store open for writing."""

    def __init__(self, store: Path) -> None:
        self._file = os.open(beside(store, ".mark"), os.O_RDWR | os.O_CREAT, 0o644)

    def write(self, mark: Mark) -> None:
        body = _FORMAT.pack(_MAGIC, mark.commits, mark.position, mark.batches)
        # The commit is already durable: a mark that lags must not fail it.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, body + _CHECKSUM.pack(zlib.crc32(body)), 0)

    def close(self) -> None:
        os.close(self._file)
