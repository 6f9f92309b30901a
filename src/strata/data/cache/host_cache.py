"""A bounded folder of downloaded or unpacked files, shared by all processes of a host.

Each file exists once, however many workers need it; a process that needs a file while another one
downloads it waits. All rules rest on `flock`, which ends with its process, so a crash at any moment
leaves nothing to clean up:

- A file is written under a lock on its *draft*, and renamed when it is complete. The draft of a
  dead process is not locked and is overwritten by the next process that needs the file.
- A process that uses a file holds a shared lock on it. Eviction takes an exclusive lock, so a file
  in use is never evicted; the least recently used file goes first.
- Space is reserved under one lock for the folder, and a draft gets its full size at once, so that
  processes that reserve space at the same time see each other's files.

The folder exceeds its limit only if the files in use do: those are never evicted, because training
would stop. A process uses at most an eighth of the limit at a time, or one file.

The folder and its files belong to the user of the process, and nobody else may write to them: a
user who could replace a file could change what is trained.
"""

import contextlib
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
from typing import Protocol
from weakref import WeakValueDictionary

from strata.config import Settings, user_cache_folder
from strata.errors import InvalidArgument, PermissionDenied, Unavailable

WHOLE, DRAFT = ".file", ".draft"
SHARE = 8
TOUCH_S = 1.0
_OWN_FOLDER = "set data_cache_dir (STRATA_DATA_CACHE_DIR) to a folder that this user owns"
_caches: dict[tuple[str, int], "FileCache"] = {}


class Arrival(Protocol):
    """A requested file that is not in the cache: it is fetched here, fetched by another process, or
    fails.
    """

    def write(self, descriptor: int) -> None:
        """Write the file's content to a descriptor of a file that already has the full size."""

    def arrived(self) -> None:
        """Called when the file that this process fetched is in the cache."""

    def shared(self) -> None:
        """Called when another process fetched the file meanwhile."""

    def failed(self, error: BaseException) -> None:
        """Called when fetching the file failed."""


class FileCache:
    """The cache folder as seen by one process; thread-safe."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._held: OrderedDict[str, _UsedFile] = OrderedDict()
        self._lock = RLock()
        self._key_locks: WeakValueDictionary[str, _KeyLock] = WeakValueDictionary()
        _require_own_folder(folder)

    def path(
        self,
        key: str,
        size_bytes: int,
        expect: Callable[[], Arrival],
        released: Callable[[], None],
    ) -> Path:
        """The path of the file with that key; it stays valid until `released` is called.

        `expect` is called if the file is not in the cache, before this process waits for the lock.
        """
        with self._lock:
            found = self._in_use(key)
            turn = self._key_locks.setdefault(key, _KeyLock())
        if found is not None:
            return found
        # Only threads that need this file wait for it.
        with turn.lock:
            with self._lock:
                found = self._in_use(key)
            if found is not None:
                return found
            held = self._take(key, size_bytes, expect, released)
            with self._lock:
                self._held[key] = held
                self._release_down_to(self.limit_bytes // SHARE)
                held.touch()
            return held.path

    def _in_use(self, key: str) -> Path | None:
        """The path of a file that this process already uses. The caller holds the lock."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        held.touch()
        return held.path

    def has(self, key: str) -> bool:
        """Whether the file is in the cache."""
        return self._place(key, WHOLE).exists()

    def _take(
        self,
        key: str,
        size_bytes: int,
        expect: Callable[[], Arrival],
        released: Callable[[], None],
    ) -> "_UsedFile":
        """Lock a file that is in the cache, or fetch it."""
        if size_bytes > self.limit_bytes:
            raise InvalidArgument(
                f"a file of {size_bytes} bytes exceeds the data cache of {self.limit_bytes}",
                hint="raise data_cache_bytes (STRATA_DATA_CACHE_BYTES)",
            )
        whole = self._place(key, WHOLE)
        descriptor = _locked(whole, os.O_RDONLY, fcntl.LOCK_SH)
        if descriptor is None:
            arrival = expect()
            try:
                descriptor = self._arrived(key, size_bytes, arrival)
            except BaseException as error:
                arrival.failed(error)
                raise
        return _UsedFile(whole, descriptor, size_bytes, released)

    def _arrived(self, key: str, size_bytes: int, arrival: Arrival) -> int:
        """A locked descriptor of a file that this process or another one fetches."""
        whole, draft = self._place(key, WHOLE), self._place(key, DRAFT)
        while True:
            found = _locked(whole, os.O_RDONLY, fcntl.LOCK_SH)
            if found is not None:
                arrival.shared()
                return found
            flags = os.O_RDWR | os.O_CREAT
            descriptor = _locked(draft, flags, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is None:
                _wait_for_writer(draft)
                continue
            try:
                if whole.exists():  # completed meanwhile: this draft is a new, empty file
                    draft.unlink()
                    os.close(descriptor)
                    continue
                self._reserve(descriptor, size_bytes)
                arrival.write(descriptor)
                os.fsync(descriptor)
                os.rename(draft, whole)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                arrival.arrived()
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink()
                os.close(descriptor)
                raise
            return descriptor

    def _reserve(self, descriptor: int, size_bytes: int) -> None:
        """Give a draft its full size, after evicting files if necessary."""
        os.ftruncate(descriptor, 0)
        with self._reserving():
            if not self._evict(size_bytes):
                self._release_down_to(0)
                self._evict(size_bytes)
            try:
                if size_bytes:
                    os.posix_fallocate(descriptor, 0, size_bytes)
            except OSError as error:
                raise Unavailable(
                    f"cannot allocate {size_bytes} bytes in {self.folder}: {error.strerror}",
                    hint="free disk space, lower data_cache_bytes, or set another data_cache_dir",
                ) from error

    def _evict(self, needed_bytes: int) -> bool:
        """Delete unused files, the least recently used first, until there is space."""
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

    def _release_down_to(self, most_bytes: int) -> None:
        """Release files until those in use are within a limit; the newest one is kept."""
        with self._lock:
            total = sum(held.size_bytes for held in self._held.values())
            while total > most_bytes and len(self._held) > (1 if most_bytes else 0):
                _, held = self._held.popitem(last=False)
                total -= held.size_bytes
                held.release()

    @contextlib.contextmanager
    def _reserving(self) -> Iterator[None]:
        with (self.folder / "room.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _place(self, key: str, suffix: str) -> Path:
        return self.folder / (blake2b(key.encode(), digest_size=16).hexdigest() + suffix)


class _KeyLock:
    """The lock of the threads that need the same file; it exists while one of them does."""

    def __init__(self) -> None:
        self.lock = Lock()


class _UsedFile:
    """A file that this process uses, with its shared lock."""

    def __init__(
        self, path: Path, descriptor: int, size_bytes: int, released: Callable[[], None]
    ) -> None:
        self.path, self.size_bytes = path, size_bytes
        self._descriptor, self._released = descriptor, released
        self._touched_s = 0.0

    def touch(self) -> None:
        """Update the file's modification time, by which files are evicted."""
        now_s = time.monotonic()
        if now_s - self._touched_s >= TOUCH_S:
            self._touched_s = now_s
            os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock, so that the file may be evicted. Existing maps of it stay readable."""
        self._released()
        os.close(self._descriptor)


def _locked(path: Path, flags: int, operation: int) -> int | None:
    """A descriptor with the lock, or None if the file is gone or a non-blocking lock is not
    available.
    """
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


def _wait_for_writer(draft: Path) -> None:
    """Wait until no process writes the draft: its file is complete, or the process has died.

    Uses a shared lock: the process that completed the file holds one for as long as it uses the
    file, so an exclusive lock would wait for that, too.
    """
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _require_own_folder(folder: Path) -> None:
    """Create the folder, or close it to other users; raise if another user owns it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise PermissionDenied(f"the data cache {folder} is a symbolic link", hint=_OWN_FOLDER)
    _require_own(folder, status)
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)


def _require_own(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionDenied(
            f"{path} of the data cache belongs to user {status.st_uid}, but this process runs as "
            f"user {os.geteuid()}",
            hint=_OWN_FOLDER,
        )


def shared_cache(settings: Settings) -> FileCache:
    """The cache of this host, one object per process.

    The folder is `data_cache_dir`, else `$XDG_CACHE_HOME/strata`, else a folder of this user among
    the temporary files. `~/.cache` is not the default: home folders are often on NFS, where these
    locks fail and all hosts would share one limit.
    """
    home = user_cache_folder()
    fallback = f"{home}/strata" if home else f"{tempfile.gettempdir()}/strata-cache-{os.getuid()}"
    key = (os.path.abspath(settings.data_cache_dir or fallback), settings.data_cache_bytes)
    if key not in _caches:
        _caches[key] = FileCache(Path(key[0]), key[1])
    return _caches[key]
