"""Scanned indexes on disk, so that the next process that opens a dataset need not scan it.

Indexes lie in the cache folder of this host (`data_cache_dir`), never beside the data, or in the
folder that the caller names. Where neither can be written, every process scans.

An index is stored under a digest of everything that it was made from: format, options, path, and
the name, size and change times of each file. If a file is added, removed or written, the digest is
another one and the dataset is scanned again, so an index is never stale. Indexes that were not used
for the longest time are deleted when all of them exceed `MAX_BYTES`. The file is a NumPy archive
that is never unpickled; it is renamed into place when it is complete, so several workers may write
the same index at the same time.

The fingerprint identifies the data of an order on any machine, so it includes no times: format,
options, rows, and each file's name, size, first and last 4 KiB. It does not notice a byte that was
changed in the middle of a file of the same size.
"""

import contextlib
import logging
import os
import zipfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from strata.config import load_process
from strata.data.cache.dataset_files import Files
from strata.data.cache.host_cache import shared_cache
from strata.data.formats.source import DatasetIndex, FileEntry
from strata.errors import UNDECODABLE, PermissionDenied

MAX_BYTES = 1 << 30
_LAYOUT = 4
_PREFIX = "strata-index-"
_log = logging.getLogger(__name__)


class _StoredIndex(msgspec.Struct, kw_only=True):
    rows: int
    shard_rows: int
    files: list[FileEntry]
    notes: dict[str, str]
    fingerprint: str


def fingerprint_of(
    kind: str, options: Mapping[str, object], index: DatasetIndex, files: Files | None
) -> str:
    """Sixteen bytes, in hex."""
    settled = msgspec.json.encode([kind, dict(options), index.rows, index.identity], order="sorted")
    digest = blake2b(settled, digest_size=16)
    if files is not None:
        edges = files.edges([entry.name for entry in index.files])
        for entry, edge in zip(index.files, edges, strict=True):
            digest.update(msgspec.json.encode(entry))
            digest.update(edge)
    return digest.hexdigest()


class IndexStore:
    """The stored index of one dataset, as its files are when this object is made."""

    def __init__(
        self, files: Files, kind: str, options: Mapping[str, object], folder: str | None
    ) -> None:
        self._folder = Path(folder) if folder is not None else _cache_folder()
        self._name = f"{_PREFIX}{_key(files, kind, options)}.npz"

    def load(self) -> tuple[DatasetIndex, str] | None:
        """The index and the fingerprint, or None if the dataset has to be scanned."""
        if self._folder is None:
            return None
        path = self._folder / self._name
        try:
            with np.load(path, allow_pickle=False) as archive:
                stored = msgspec.json.decode(archive["index"].tobytes(), type=_StoredIndex)
                tables = {
                    name.removeprefix("table/"): archive[name]
                    for name in archive.files
                    if name.startswith("table/")
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, *UNDECODABLE):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the order in which indexes are deleted
        index = DatasetIndex(
            rows=stored.rows,
            shard_rows=stored.shard_rows,
            files=stored.files,
            notes=stored.notes,
            tables=tables,
        )
        return index, stored.fingerprint

    def save(self, index: DatasetIndex, fingerprint: str) -> None:
        """Store the index; if that fails, the next process scans again."""
        if self._folder is None:
            return
        stored = _StoredIndex(
            rows=index.rows,
            shard_rows=index.shard_rows,
            files=index.files,
            notes=index.notes,
            fingerprint=fingerprint,
        )
        arrays = {f"table/{name}": table for name, table in index.tables.items()}
        arrays["index"] = np.frombuffer(msgspec.json.encode(stored), np.uint8)
        draft = self._folder / f"{self._name}.{os.getpid()}.draft"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            draft.replace(self._folder / self._name)
            _delete_oldest(self._folder, keep=self._name)
        except OSError as error:
            _log.warning("could not store the index of a dataset in %s: %s", self._folder, error)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def _key(files: Files, kind: str, options: Mapping[str, object]) -> str:
    settled = [_LAYOUT, kind, dict(options), files.place]
    digest = blake2b(msgspec.json.encode(settled, order="sorted"), digest_size=16)
    for name in files.names():
        try:
            stamp = files.stamp(name)
        except OSError:  # a link to nowhere, or a file that was just deleted
            stamp = None
        digest.update(msgspec.json.encode([name, stamp]))
    return digest.hexdigest()


def _cache_folder() -> Path | None:
    try:
        return shared_cache(load_process({})).folder / "indexes"
    except (OSError, PermissionDenied) as error:
        _log.warning("cannot use the data cache, so datasets are scanned when opened: %s", error)
        return None


def _delete_oldest(folder: Path, keep: str) -> None:
    """Delete the indexes that were used last the longest time ago, down to `MAX_BYTES`."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MAX_BYTES:
            return
        if path.name != keep:
            path.unlink(missing_ok=True)
            total -= size
