"""Datasets in object storage: `s3://bucket/prefix`, or one object.

The objects are listed once, when the dataset is opened. When a format asks for the path of a file,
the whole file is downloaded into the cache that all workers of the host share (`data_cache_dir`,
`data_cache_bytes`). What an index needs of a file (a header, a footer, its edges) is read by range
requests where the format allows it, so registering a large dataset downloads little.

An object that changed since it was listed raises an error; one that was deleted is a missing file.
Both errors name the file and make its rows damaged. Storage that cannot be reached is a separate
error, raised after the storage's retries.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

import numpy as np

from strata.config import Settings, load_process
from strata.data.cache.dataset_files import Files
from strata.data.cache.fetch_observers import Download
from strata.data.cache.host_cache import shared_cache
from strata.data.formats.source import Mismatch
from strata.errors import InvalidArgument, NotFound, StrataError
from strata.storage.backend import ObjectInfo, ObjectReader, StorageBackend, StreamingReader
from strata.storage.direct_io import write_all
from strata.storage.io_threads import RANGE_BYTES, for_each
from strata.storage.locations import open_storage

READ_BYTES = 64 << 10
EDGE_THREADS = 16


class RemoteFiles(Files):
    """The objects below a prefix, or one object, like the files of a folder.

    A forked process does not have the threads of the storage library, so a read there would hang.
    """

    forks = False

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        settings = settings or load_process({})
        self.place = url.rstrip("/")
        self.single, self._storage, listed = _listed(self.place, settings)
        self._objects = {each.name: each for each in listed}
        self._cache = shared_cache(settings)
        self.on_release: list[Callable[[str], None]] = []
        self._failures: dict[str, int] = {}
        self._progress_s = settings.progress_interval_s
        self._counting = Lock()

    def names(self, *suffixes: str) -> list[str]:
        if self.single:
            return list(self._objects)
        shown = (n for n in self._objects if not any(p.startswith(".") for p in n.split("/")))
        return sorted(name for name in shown if name.endswith(suffixes or ""))

    def path(self, name: str) -> Path:
        """The path of the file on this host; downloads it if necessary."""
        known = self._known(name)
        return self._cache.path(
            self._key(known),
            known.size_bytes,
            partial(_Arrival, self, known),
            partial(self._let, name),
        )

    def stamp(self, name: str) -> tuple[int, int]:
        known = self._known(name)
        written = blake2b(f"{known.modified_s}/{known.tag}".encode(), digest_size=7)
        return known.size_bytes, int.from_bytes(written.digest(), "little")

    def open(self, name: str) -> BinaryIO:
        """The file, for reading some of its bytes: by range requests, unless it is in the cache."""
        known = self._known(name)
        if self._cache.has(self._key(known)):
            return super().open(name)
        ranges = _Ranges(self._storage.open(name), known.size_bytes, self._count)
        return cast(BinaryIO, io.BufferedReader(ranges, READ_BYTES))

    def edges(self, names: Sequence[str]) -> Iterator[bytes]:
        """The first and last bytes of each file, several files at a time."""
        found: dict[str, bytes] = {}

        def look(name: str) -> None:
            found[name] = next(super(RemoteFiles, self).edges([name]))

        for_each(look, names, EDGE_THREADS)
        return (found[name] for name in names)

    def _known(self, name: str) -> ObjectInfo:
        if name not in self._objects:
            raise FileNotFoundError(errno.ENOENT, "the file does not exist", f"{self.place}/{name}")
        return self._objects[name]

    def _key(self, known: ObjectInfo) -> str:
        version = f"{known.size_bytes}/{known.modified_s}/{known.tag}"
        return f"{self._storage.url}/{known.name}/{version}"

    def _let(self, name: str) -> None:
        for each in self.on_release:
            each(name)

    def _count(self, size_bytes: int) -> None:
        with self._counting:
            self.range_bytes += size_bytes

    def download(self, known: ObjectInfo) -> Download:
        """A download of an object, which is reported to the observers of this process."""
        return Download(
            dataset=self.dataset,
            batch=self.batch(),
            source=f"{self._storage.url}/{known.name}",
            size_bytes=known.size_bytes,
            attempt=self._failures.get(known.name, 0) + 1,
            progress_s=self._progress_s,
        )

    def failed(self, known: ObjectInfo) -> None:
        """Count a failed download, so that the next one is another attempt."""
        self._failures[known.name] = self._failures.get(known.name, 0) + 1

    def succeeded(self, known: ObjectInfo) -> None:
        """Forget the failed downloads of an object."""
        self._failures.pop(known.name, None)

    def download_to(
        self, known: ObjectInfo, descriptor: int, received: Callable[[int], None]
    ) -> None:
        """Download an object into a descriptor, by parallel range requests."""
        try:
            if not _is_same(known, self._storage.head(known.name)):
                raise Mismatch(known.name, "changed since the dataset was opened")
            with self._storage.open(known.name) as reader:

                def fill(first: int) -> None:
                    at, stop = first, min(first + RANGE_BYTES, known.size_bytes)
                    for chunk in _chunks(reader, first, stop - first):
                        write_all(descriptor, chunk, at)
                        at += chunk.nbytes
                        received(chunk.nbytes)

                for_each(fill, range(0, known.size_bytes, RANGE_BYTES))
        except NotFound as error:
            raise FileNotFoundError(
                errno.ENOENT, "the file no longer exists", known.name
            ) from error


def _chunks(reader: ObjectReader, first: int, size_bytes: int) -> Iterator[memoryview]:
    """Some bytes of an object, in pieces as they arrive if the storage supports that."""
    if isinstance(reader, StreamingReader):
        return reader.stream(first, size_bytes)
    part = np.empty(size_bytes, np.uint8)
    reader.read_into(first, [part.data])
    return iter([part.data])


class _Arrival:
    """A file that this process requested: downloaded here, or by another process."""

    def __init__(self, files: RemoteFiles, known: ObjectInfo) -> None:
        self._files, self._known = files, known
        self._download = files.download(known)

    def write(self, descriptor: int) -> None:
        self._download.started()
        self._files.download_to(self._known, descriptor, self._download.received)

    def arrived(self) -> None:
        self._files.succeeded(self._known)
        self._download.completed()

    def shared(self) -> None:
        self._files.succeeded(self._known)
        self._download.completed(shared=True)

    def failed(self, error: BaseException) -> None:
        self._files.failed(self._known)
        self._download.completed(f"{type(error).__name__}: {error}")


class _Ranges(io.RawIOBase):
    """An object as a file, read by range requests."""

    def __init__(self, reader: ObjectReader, size_bytes: int, read: Callable[[int], None]) -> None:
        self._reader, self._size, self._at = reader, size_bytes, 0
        self._read = read

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
            self._read(wanted)
            self._at += wanted
        return wanted


def _is_same(known: ObjectInfo, now: ObjectInfo) -> bool:
    """Whether an object is as it was listed; listings may lack the tag."""
    if known.tag and now.tag and known.tag != now.tag:
        return False
    return (known.size_bytes, known.modified_s) == (now.size_bytes, now.modified_s)


def _listed(url: str, settings: Settings) -> tuple[bool, StorageBackend, Sequence[ObjectInfo]]:
    """Whether a URL names one object, the storage that its names are relative
    to, and the objects.
    """
    if not url.partition("://")[2].strip("/"):
        raise InvalidArgument("the path has no bucket", hint="write it as s3://bucket/prefix")
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
    raise NotFound(f"no objects at {url}", hint="check the dataset's path and the bucket")
