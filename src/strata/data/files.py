"""The files of a dataset: what there is, and their bytes mapped into memory.

A dataset's path is a file or a folder; names are relative to it, with `/`, sorted. Where data lies
elsewhere (`s3://`, see `remote`), a class with the same methods brings a file to this host when
`path` asks for it; formats see no difference. `register_scheme` adds others.

Maps are kept open, at most `MAX_MAPS` at a time, since the system bounds them too. A file that is
shorter than when it was scanned is noticed, each time before it is read: touching a page past the
end of a mapped file would end the process.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from strata.data.base import FileEntry, Mismatch
from strata.errors import InvalidArgument, NotFound

INDEXES = ".strata"
MAX_MAPS = 4_096
EDGE_BYTES = 4_096


class Files:
    """A file or folder on this host.

    `place` says where that is, the same for everyone; `index_folder` is where an index of it may be
    kept. Whoever is in `on_release` is told when a file may go from this host. `dataset` is the
    name of the dataset, and `batch` names the batch that a file is read for, or nothing while the
    dataset is opened. `range_bytes` were read of files that did not come to this host as a whole.
    `forks` says whether a forked process may read them, too.
    """

    dataset = ""
    batch: Callable[[], str] = str
    range_bytes = 0
    forks = True

    def __init__(self, path: str) -> None:
        self.on_release: list[Callable[[str], None]] = []
        if not path:
            raise InvalidArgument("no path was given", hint="name the dataset's file or folder")
        self.root = Path(path)
        try:
            there = self.root.exists()
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"{path[:200]!r} is no path: {error.args[-1]}", hint="check the dataset's path"
            ) from error
        if not there:
            raise NotFound(f"there is no {path}", hint="check the dataset's path")
        self.single = self.root.is_file()
        self._below = lru_cache(MAX_MAPS)(self.root.joinpath)  # asked for with every batch
        self.place = os.path.abspath(path)
        beside = self.root.resolve()
        self.index_folder = (beside.parent if self.single else beside) / INDEXES

    def names(self, *suffixes: str) -> list[str]:
        """Every file with one of the suffixes, hidden ones left out."""
        if self.single:
            return [self.root.name]
        return sorted(name for name in self._walk() if name.endswith(suffixes or ""))

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root, onerror=_refuse, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = Path(folder).relative_to(self.root)
            yield from ((relative / name).as_posix() for name in files if not name.startswith("."))

    def path(self, name: str) -> Path:
        """Where the file lies on this host."""
        return self.root if self.single else self._below(name)

    def stamp(self, name: str) -> tuple[int, int]:
        """Size, and a number that changes when the file is written: tells whether to scan again."""
        status = self.path(name).stat()
        return status.st_size, status.st_mtime_ns

    def entry(self, name: str, rows: int = 0) -> FileEntry:
        return FileEntry(name, self.stamp(name)[0], rows)

    def open(self, name: str) -> BinaryIO:
        """The file for a look at parts of it."""
        return self.path(name).open("rb")

    def edges(self, names: Sequence[str]) -> Iterator[bytes]:
        """The first and last bytes of each file, for a fingerprint."""
        for name in names:
            with self.open(name) as file:
                head = file.read(EDGE_BYTES)
                file.seek(max(0, self.stamp(name)[0] - EDGE_BYTES))
                yield head + file.read(EDGE_BYTES)


class Maps:
    """Files mapped into memory, the least recently used let go."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()
        files.on_release.append(self._drop)

    def __call__(self, entry: FileEntry) -> NDArray[np.uint8]:
        """The bytes of a file; OSError or Mismatch if it is not as it was."""
        path = self.path(entry)
        size = os.stat(path).st_size
        if size != entry.size_bytes:
            raise Mismatch(entry.name, f"has {size} bytes, and had {entry.size_bytes}")
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
        """Where those bytes lie on this host."""
        return self._files.path(entry.name)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)


def _refuse(error: OSError) -> None:
    """A folder that cannot be read would be left out, silently."""
    raise error


def _remote(path: str) -> Files:
    # Imported here: data on this host needs neither the library nor the time it takes.
    from strata.data.remote import RemoteFiles

    return RemoteFiles(path)


_SCHEMES: dict[str, Callable[[str], Files]] = {"s3": _remote}


def register_scheme(scheme: str, factory: Callable[[str], Files]) -> None:
    """Paths that begin with `scheme` and `://` are opened by `factory`."""
    _SCHEMES[scheme] = factory


def open_files(path: str) -> Files:
    scheme, separator, _ = path.partition("://")
    if not separator:
        return Files(path)
    if scheme not in _SCHEMES:
        known = ", ".join(sorted(_SCHEMES))
        raise InvalidArgument(f"no reader for {scheme}:// paths", hint=f"local paths, and {known}")
    return _SCHEMES[scheme](path)
