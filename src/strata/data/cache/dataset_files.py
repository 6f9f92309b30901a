"""The files of a dataset: their names, and their bytes mapped into memory.

A dataset's path is a file or a folder; names are relative to it, with `/`, sorted. For data
elsewhere (`s3://`, see `remote_files`), a class with the same methods downloads a file when `path`
is called, so formats see no difference. `register_scheme` adds other schemes.

At most `MAX_MAPS` files are mapped at a time, since the system limits maps as well. Before every
read the size is checked: touching a page past the end of a truncated file would crash the process.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from strata.data.formats.source import FileEntry, Mismatch
from strata.errors import InvalidArgument, NotFound

MAX_MAPS = 4_096
EDGE_BYTES = 4_096


class Files:
    """A file or folder on this host.

    `place` is the absolute path or URL. The functions in `on_release` are called with a file's name
    before its local copy may be deleted. `dataset` is the name of the dataset; `batch` returns the
    id of the batch that is being read, or "" while the dataset is opened. `range_bytes` counts what
    was read of remote files without downloading them. `forks` is whether a forked process may read
    the files, too.
    """

    dataset = ""
    batch: Callable[[], str] = str
    range_bytes = 0
    forks = True

    def __init__(self, path: str) -> None:
        self.on_release: list[Callable[[str], None]] = []
        if not path:
            raise InvalidArgument("the dataset has no path", hint="give a file or folder")
        self.root = Path(path)
        try:
            there = self.root.exists()
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"invalid path {path[:200]!r}: {error.args[-1]}", hint="check the dataset's path"
            ) from error
        if not there:
            raise NotFound(f"{path} does not exist", hint="check the dataset's path")
        self.single = self.root.is_file()
        self._below = lru_cache(MAX_MAPS)(self.root.joinpath)  # called for every batch
        self.place = os.path.abspath(path)

    def names(self, *suffixes: str) -> list[str]:
        """Every file with one of the suffixes, without hidden files."""
        if self.single:
            return [self.root.name]
        return sorted(name for name in self._walk() if name.endswith(suffixes or ""))

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root, onerror=_refuse, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = Path(folder).relative_to(self.root)
            yield from ((relative / name).as_posix() for name in files if not name.startswith("."))

    def path(self, name: str) -> Path:
        """The path of the file on this host."""
        return self.root if self.single else self._below(name)

    def stamp(self, name: str) -> tuple[int, int]:
        """Size, and a digest of the change times that differs after every write.

        `st_ctime` is part of it because `cp -p` and `rsync -t` set `st_mtime` to an older time.
        """
        status = self.path(name).stat()
        times = blake2b(f"{status.st_mtime_ns}/{status.st_ctime_ns}".encode(), digest_size=7)
        return status.st_size, int.from_bytes(times.digest(), "little")

    def entry(self, name: str, rows: int = 0) -> FileEntry:
        return FileEntry(name, self.stamp(name)[0], rows)

    def open(self, name: str) -> BinaryIO:
        """The file, for reading some of its bytes."""
        return self.path(name).open("rb")

    def edges(self, names: Sequence[str]) -> Iterator[bytes]:
        """The first and last bytes of each file, for a fingerprint."""
        for name in names:
            with self.open(name) as file:
                head = file.read(EDGE_BYTES)
                file.seek(max(0, self.stamp(name)[0] - EDGE_BYTES))
                yield head + file.read(EDGE_BYTES)


class FileMaps:
    """Files mapped into memory, with least-recently-used eviction."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()
        files.on_release.append(self._drop)

    def __call__(self, entry: FileEntry) -> NDArray[np.uint8]:
        """The bytes of a file; raises OSError or Mismatch if it is not as it was scanned."""
        path = self.path(entry)
        size = os.stat(path).st_size
        if size != entry.size_bytes:
            raise Mismatch(entry.name, f"has {size} bytes, but had {entry.size_bytes} when scanned")
        with self._lock:
            mapped = self._open.get(entry.name)
            if mapped is not None:
                self._open.move_to_end(entry.name)
                return mapped
            mapped = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
            self._open[entry.name] = mapped
            if len(self._open) > MAX_MAPS:
                self._open.popitem(last=False)
            return mapped

    def path(self, entry: FileEntry) -> Path:
        """The path of the mapped file on this host."""
        return self._files.path(entry.name)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)


def _refuse(error: OSError) -> None:
    """Raise instead of leaving out a folder that cannot be read."""
    raise error


def _remote(path: str) -> Files:
    # Imported here: local data needs neither this library nor its import time.
    from strata.data.cache.remote_files import RemoteFiles

    return RemoteFiles(path)


_SCHEMES: dict[str, Callable[[str], Files]] = {"s3": _remote}


def register_scheme(scheme: str, factory: Callable[[str], Files]) -> None:
    """Open paths that begin with `scheme://` by `factory`."""
    _SCHEMES[scheme] = factory


def open_files(path: str) -> Files:
    scheme, separator, _ = path.partition("://")
    if not separator:
        return Files(path)
    if scheme not in _SCHEMES:
        known = ", ".join(sorted(_SCHEMES))
        raise InvalidArgument(
            f"unknown scheme {scheme}://", hint=f"give a local path, or one of {known}"
        )
    return _SCHEMES[scheme](path)
