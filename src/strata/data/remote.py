"""Datasets in object storage: `s3://bucket/prefix`, or one object.

The objects are listed once, when the dataset is opened. A file comes to this host, whole, when a
format asks for its path, into the cache that all workers of the host share (`data_cache_dir`,
`data_cache_bytes`). What an index needs of a file (a header, a footer, its edges) is read by ranges
where the format allows it, so registering a large dataset downloads little.

An object that is not as it was listed is refused; one that is gone is a missing file. Both name
the file, and are damage to the rows in it. A storage that cannot be reached is an error of its own,
after the storage's retries.
"""

import errno
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

import numpy as np

from strata.config import Settings, load_process
from strata.data.base import Mismatch
from strata.data.cache import shared_cache, write_all
from strata.data.files import Fetch, Files, Watch
from strata.errors import InvalidArgument, NotFound, StrataError
from strata.storage.base import ObjectInfo, ObjectReader, StorageBackend
from strata.storage.opening import open_storage
from strata.storage.parallel import RANGE_BYTES, for_each

READ_BYTES = 64 << 10
EDGE_THREADS = 16
_numbers = count(1)


class RemoteFiles(Files):
    """The objects below a prefix, or one object, like the files of a folder."""

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        settings = settings or load_process({})
        self.place = url.rstrip("/")
        self.single, self._storage, listed = _listed(self.place, settings)
        self._objects = {each.name: each for each in listed}
        self._cache = shared_cache(settings)
        self.index_folder = self._cache.folder / "indexes"
        self.on_release: list[Callable[[str], None]] = []
        self._watches: list[Watch] = []
        self._progress_s = settings.progress_interval_s

    def names(self, *suffixes: str) -> list[str]:
        if self.single:
            return list(self._objects)
        shown = (n for n in self._objects if not any(p.startswith(".") for p in n.split("/")))
        return sorted(name for name in shown if name.endswith(suffixes or ""))

    def path(self, name: str) -> Path:
        """Where the file lies on this host, once it is here."""
        known = self._known(name)
        return self._cache.path(
            self._key(known),
            known.size_bytes,
            partial(self._bring, known),
            partial(self._let, name),
        )

    def stamp(self, name: str) -> tuple[int, int]:
        known = self._known(name)
        written = blake2b(f"{known.modified_s}/{known.tag}".encode(), digest_size=7)
        return known.size_bytes, int.from_bytes(written.digest(), "little")

    def open(self, name: str) -> BinaryIO:
        """The file for a look at parts of it: by ranges, unless it is here."""
        known = self._known(name)
        if self._cache.has(self._key(known)):
            return super().open(name)
        ranges = _Ranges(self._storage.open(name), known.size_bytes)
        return cast(BinaryIO, io.BufferedReader(ranges, READ_BYTES))

    def edges(self, names: Sequence[str]) -> Iterator[bytes]:
        """The first and last bytes of each file, several files at a time."""
        found: dict[str, bytes] = {}

        def look(name: str) -> None:
            found[name] = next(super(RemoteFiles, self).edges([name]))

        for_each(look, names, EDGE_THREADS)
        return (found[name] for name in names)

    def watch(self, watch: Watch) -> None:
        """Tells of every download: its start, its progress, its end."""
        self._watches.append(watch)

    def _known(self, name: str) -> ObjectInfo:
        if name not in self._objects:
            raise FileNotFoundError(errno.ENOENT, "it is not there", f"{self.place}/{name}")
        return self._objects[name]

    def _key(self, known: ObjectInfo) -> str:
        version = f"{known.size_bytes}/{known.modified_s}/{known.tag}"
        return f"{self._storage.url}/{known.name}/{version}"

    def _let(self, name: str) -> None:
        for each in self.on_release:
            each(name)

    def _bring(self, known: ObjectInfo, descriptor: int) -> None:
        """Downloads an object into a descriptor, by ranges in parallel."""
        told = _Told(self._watches, known, self._progress_s)
        try:
            self._download(known, descriptor, told)
        except NotFound as error:
            told.ended(str(error))
            raise FileNotFoundError(errno.ENOENT, "it is no longer there", known.name) from error
        except BaseException as error:
            told.ended(str(error) or type(error).__name__)
            raise
        told.ended("")

    def _download(self, known: ObjectInfo, descriptor: int, told: "_Told") -> None:
        if not _is_same(known, self._storage.head(known.name)):
            raise Mismatch(known.name, "changed since the dataset was opened")
        with self._storage.open(known.name) as reader:

            def fill(first: int) -> None:
                part = np.empty(min(RANGE_BYTES, known.size_bytes - first), np.uint8)
                reader.read_into(first, [part.data])
                write_all(descriptor, part.data, first)
                told.came(part.size)

            for_each(fill, range(0, known.size_bytes, RANGE_BYTES))


class _Told:
    """One download, as those who watch are told of it."""

    def __init__(self, watches: list[Watch], known: ObjectInfo, progress_s: float) -> None:
        self._watches = list(watches)
        self._number = next(_numbers)
        self._name, self._size = known.name, known.size_bytes
        self._done, self._every_s = 0, progress_s
        self._due_s = time.monotonic() + progress_s
        self._lock = Lock()
        self._tell("started")

    def came(self, size_bytes: int) -> None:
        """A part is here; told now and then."""
        with self._lock:
            self._done += size_bytes
            if time.monotonic() < self._due_s:
                return
            self._due_s = time.monotonic() + self._every_s
        self._tell("progress")

    def ended(self, error: str) -> None:
        self._tell("completed", error)

    def _tell(self, what: str, error: str = "") -> None:
        for watch in self._watches:
            watch(Fetch(self._number, what, self._name, self._size, self._done, error))


class _Ranges(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, reader: ObjectReader, size_bytes: int) -> None:
        self._reader, self._size, self._at = reader, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(view.nbytes, self._size - self._at))
        if wanted:
            self._reader.read_into(self._at, [view[:wanted]])
            self._at += wanted
        return wanted


def _is_same(known: ObjectInfo, now: ObjectInfo) -> bool:
    """Whether an object is as it was listed; a list need not say its tag."""
    if known.tag and now.tag and known.tag != now.tag:
        return False
    return (known.size_bytes, known.modified_s) == (now.size_bytes, now.modified_s)


def _listed(url: str, settings: Settings) -> tuple[bool, StorageBackend, Sequence[ObjectInfo]]:
    """Whether a URL names one object; the storage its names are relative to; what is there."""
    if not url.partition("://")[2].strip("/"):
        raise InvalidArgument("the path names no bucket", hint="write it as s3://bucket/prefix")
    storage = open_storage(url, settings)
    found = [each for each in storage.walk() if not each.name.endswith("/")]
    if found:
        return False, storage, found
    folder, _, name = url.rpartition("/")
    try:
        if not folder.endswith("/"):
            parent = open_storage(folder, settings)
            return True, parent, [parent.head(name)]
    except StrataError as error:
        if not isinstance(error, NotFound):
            raise
    raise NotFound(f"there is nothing at {url}", hint="check the dataset's path and the bucket")
