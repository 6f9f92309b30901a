"""The files of a dataset: what there is, and their bytes mapped into memory.

A dataset's path is a file or a folder; names are relative to it, with `/`, sorted. Where data lies
elsewhere, `register_scheme` adds a class with the same methods that brings a file to this host when
`path` asks for it; formats see no difference.

Maps are kept open, at most `MAX_MAPS` at a time, since the system bounds them too. A file that is
shorter than when it was scanned is noticed, each time before it is read: touching a page past the
end of a mapped file would end the process.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from strata.data.base import FileEntry, Mismatch
from strata.errors import InvalidArgument, NotFound

MAX_MAPS = 4_096
_EDGE_BYTES = 4_096


class Files:
    """A file or folder on this host."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)
        try:
            there = self.root.exists()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path[:200]!r} is no path: {error.args[-1]}") from error
        if not there:
            raise NotFound(f"there is no {path}", hint="check the dataset's path")
        self.single = self.root.is_file()

    def names(self, *suffixes: str) -> list[str]:
        """Every file with one of the suffixes, hidden ones left out."""
        if self.single:
            return [self.root.name]
        return sorted(name for name in self._walk() if name.endswith(suffixes or ""))

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = Path(folder).relative_to(self.root)
            yield from ((relative / name).as_posix() for name in files if not name.startswith("."))

    def path(self, name: str) -> Path:
        """Where the file lies on this host."""
        return self.root if self.single else self.root / name

    def stamp(self, name: str) -> tuple[int, int]:
        """Size, and a number that changes when the file is written: tells whether to scan again."""
        status = self.path(name).stat()
        return status.st_size, status.st_mtime_ns

    def entry(self, name: str, rows: int = 0) -> FileEntry:
        return FileEntry(name, self.stamp(name)[0], rows)

    def edges(self, name: str) -> bytes:
        """The first and last bytes of a file, for its fingerprint."""
        with self.path(name).open("rb") as file:
            head = file.read(_EDGE_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _EDGE_BYTES))
            return head + file.read(_EDGE_BYTES)


class Maps:
    """Files mapped into memory, the least recently used let go."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, entry: FileEntry) -> NDArray[np.uint8]:
        """The bytes of a file; OSError or Mismatch if it is not as it was."""
        path = self._files.path(entry.name)
        size = path.stat().st_size
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


_SCHEMES: dict[str, Callable[[str], Files]] = {}


def register_scheme(scheme: str, factory: Callable[[str], Files]) -> None:
    """Paths that begin with `scheme` and `://` are opened by `factory`."""
    _SCHEMES[scheme] = factory


def open_files(path: str) -> Files:
    scheme, separator, _ = path.partition("://")
    if not separator:
        return Files(path)
    if scheme not in _SCHEMES:
        known = ", ".join(sorted(_SCHEMES)) or "local paths only"
        raise InvalidArgument(f"no reader for {scheme}:// paths", hint=f"known: {known}")
    return _SCHEMES[scheme](path)
