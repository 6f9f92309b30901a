"""A folder of files brought from elsewhere, bounded, and shared by all processes of a host.

Each file is there once, however many workers want it, and whoever asks while it is being brought
waits for it. The rules rest on `flock`, which ends with its process, so that a crash at any moment
leaves nothing that somebody would have to clear up:

- A file is brought under a lock on its *draft*, and renamed when it is whole. The draft of a dead
  process is not locked, and is written over by the next who wants the file.
- Whoever uses a file holds a shared lock on it. It is evicted under an exclusive one, so never
  while it is in use; the least recently used go first.
- Room is made under one lock for the folder, and a draft takes its whole size at once, so that
  processes that make room at the same time see each other's need.

The bound holds as long as what all processes together have in use leaves room; what is in use is
never taken away, since training would stop. A process uses an eighth of the folder at most at a
time, or one file.

The folder and its files belong to the user who runs the process, and nobody else may write to them:
whoever could replace a file would decide what is trained.
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from threading import Lock, RLock
from typing import TypeAlias
from weakref import WeakValueDictionary

from strata.config import Settings
from strata.errors import InvalidArgument, PermissionDenied, Unavailable
from strata.storage.base import Buffer

Bring: TypeAlias = Callable[[int], None]
"""Writes a file's content to a descriptor that has its size already."""

WHOLE, DRAFT = ".file", ".draft"
SHARE = 8
TOUCH_S = 1.0
_OWN_FOLDER = "set data_cache_dir (STRATA_DATA_CACHE_DIR) to a folder that this user owns"
_caches: dict[tuple[str, int], "Cache"] = {}


class Cache:
    """The folder as one process sees it; for all of its threads."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = RLock()
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
        _require_own_folder(folder)

    def path(self, key: str, size_bytes: int, bring: Bring, released: Callable[[], None]) -> Path:
        """Where the file of that key lies; it stays until `released` is called."""
        with self._lock:
            found = self._in_use(key)
            turn = self._turns.setdefault(key, _Turn())
        if found is not None:
            return found
        # Only threads that want this file wait for it; the others go on.
        with turn.lock:
            with self._lock:
                found = self._in_use(key)
            if found is not None:
                return found
            held = self._take(key, size_bytes, bring, released)
            with self._lock:
                self._held[key] = held
                self._let_go(self.limit_bytes // SHARE)
                held.touch()
            return held.path

    def _in_use(self, key: str) -> Path | None:
        """The path of a file that this process uses already. The caller has the lock."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        held.touch()
        return held.path

    def has(self, key: str) -> bool:
        """Whether the file is here already."""
        return self._place(key, WHOLE).exists()

    def _take(
        self, key: str, size_bytes: int, bring: Bring, released: Callable[[], None]
    ) -> "_Held":
        """Holds a file that is here, or brings it."""
        if size_bytes > self.limit_bytes:
            raise InvalidArgument(
                f"a file of {size_bytes} bytes does not fit into a cache of {self.limit_bytes}",
                hint="raise data_cache_bytes (STRATA_DATA_CACHE_BYTES)",
            )
        whole, draft = self._place(key, WHOLE), self._place(key, DRAFT)
        while True:
            found = _locked(whole, os.O_RDONLY, fcntl.LOCK_SH)
            if found is not None:
                return _Held(whole, found, size_bytes, released)
            descriptor = _locked(draft, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is None:
                _await_download(draft)
                continue
            try:
                if whole.exists():  # it became whole since: this draft is a new, empty one
                    draft.unlink()
                    os.close(descriptor)
                    continue
                self._reserve(descriptor, size_bytes)
                bring(descriptor)
                os.fsync(descriptor)
                os.rename(draft, whole)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink()
                os.close(descriptor)
                raise
            return _Held(whole, descriptor, size_bytes, released)

    def _reserve(self, descriptor: int, size_bytes: int) -> None:
        """Gives a draft its size, once there is room for it."""
        os.ftruncate(descriptor, 0)
        with self._making_room():
            if not self._evict(size_bytes):
                self._let_go(0)
                self._evict(size_bytes)
            try:
                if size_bytes:
                    os.posix_fallocate(descriptor, 0, size_bytes)
            except OSError as error:
                raise Unavailable(
                    f"no room for {size_bytes} bytes in {self.folder}: {error.strerror}",
                    hint="lower data_cache_bytes, or choose another data_cache_dir",
                ) from error

    def _evict(self, needed_bytes: int) -> bool:
        """Removes what nobody uses, the least recently used first, until there is room."""
        found = sorted(self._files(), key=lambda each: each[1].st_mtime_ns)
        used = sum(status.st_size for _, status in found)
        for path, status in found:
            if used + needed_bytes <= self.limit_bytes:
                return True
            descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                path.unlink(missing_ok=True)
                os.close(descriptor)
                used -= status.st_size
        return used + needed_bytes <= self.limit_bytes

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((WHOLE, DRAFT)):
                    with contextlib.suppress(FileNotFoundError):
                        yield Path(entry.path), entry.stat()

    def _let_go(self, most_bytes: int) -> None:
        """Stops using files until those in use are within a bound; the newest one stays."""
        with self._lock:
            total = sum(held.size_bytes for held in self._held.values())
            while total > most_bytes and len(self._held) > (1 if most_bytes else 0):
                _, held = self._held.popitem(last=False)
                total -= held.size_bytes
                held.release()

    @contextlib.contextmanager
    def _making_room(self) -> Iterator[None]:
        with (self.folder / "room.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _place(self, key: str, suffix: str) -> Path:
        return self.folder / (blake2b(key.encode(), digest_size=16).hexdigest() + suffix)


class _Turn:
    """The lock of the threads that want one file, for as long as one of them does."""

    def __init__(self) -> None:
        self.lock = Lock()


class _Held:
    """A file that this process uses, by a shared lock on it."""

    def __init__(
        self, path: Path, descriptor: int, size_bytes: int, released: Callable[[], None]
    ) -> None:
        self.path, self.size_bytes = path, size_bytes
        self._descriptor, self._released = descriptor, released
        self._touched_s = 0.0

    def touch(self) -> None:
        """Tells everyone that the file is in demand."""
        now_s = time.monotonic()
        if now_s - self._touched_s >= TOUCH_S:
            self._touched_s = now_s
            os.utime(self._descriptor)

    def release(self) -> None:
        """The file may go. What is mapped of it stays readable for as long as it is mapped."""
        self._released()
        os.close(self._descriptor)


def _locked(path: Path, flags: int, operation: int) -> int | None:
    """A descriptor with the lock, unless the file is gone or, without waiting, not to be had."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        _require_own(path, os.fstat(descriptor))
        fcntl.flock(descriptor, operation)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _await_download(draft: Path) -> None:
    """Waits until the process that writes a draft is done with it.

    By a shared lock: the file that a draft becomes stays locked for as long as that process uses
    it, and an exclusive lock would wait for the end of that use.
    """
    descriptor = _locked(draft, os.O_RDONLY, fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)


def write_all(descriptor: int, data: Buffer, offset: int) -> None:
    """Writes all of the data at an offset; `os.pwrite` alone may write less and not fail."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        written = os.pwrite(descriptor, view, offset)
        if not written:
            raise OSError(errno.EIO, f"{view.nbytes} bytes at {offset} could not be written")
        view, offset = view[written:], offset + written


def _require_own_folder(folder: Path) -> None:
    """Makes the folder, or closes one of ours to others; one of another user is refused."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise PermissionDenied(f"the data cache {folder} is a link", hint=_OWN_FOLDER)
    _require_own(folder, status)
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)


def _require_own(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionDenied(
            f"{path} of the data cache belongs to user {status.st_uid}, and this process runs as "
            f"user {os.geteuid()}",
            hint=_OWN_FOLDER,
        )


def shared_cache(settings: Settings) -> Cache:
    """The cache of this host, one object a process."""
    folder = settings.data_cache_dir or f"{tempfile.gettempdir()}/strata-cache-{os.getuid()}"
    key = (os.path.abspath(folder), settings.data_cache_bytes)
    if key not in _caches:
        _caches[key] = Cache(Path(key[0]), key[1])
    return _caches[key]
