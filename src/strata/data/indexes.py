"""Scanned indexes, kept on disk so that the next process need not scan.

An index lies beside its data, in a hidden folder (that of remote data in the host's cache), or in a
folder of one's choice; where none can be written it is scanned each time. It holds for as long as
the same files are there, each with the size and time of change that it had. The file is a NumPy
archive that is never unpickled; it appears whole or not at all, so that workers that scan at the
same time do no harm.

The fingerprint says what data an order was made for, on any machine, so it has no times in it:
format, options, rows, and each file's name, size, first and last 4 KiB. A byte changed in the
middle of a file of the same size is not noticed by it.
"""

import contextlib
import os
import zipfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from strata.data.base import FileEntry, Index
from strata.data.files import Files

_LAYOUT = 3


class _Kept(msgspec.Struct):
    layout: int
    rows: int
    shard_rows: int
    files: list[FileEntry]
    stamps: list[tuple[int, int]]
    listing: str
    notes: dict[str, str]
    fingerprint: str


def fingerprint_of(
    kind: str, options: Mapping[str, object], index: Index, files: Files | None
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
    """Where the index of one dataset is kept."""

    def __init__(
        self, files: Files, kind: str, options: Mapping[str, object], folder: str | None
    ) -> None:
        self._files = files
        settled = msgspec.json.encode([_LAYOUT, kind, dict(options), files.place], order="sorted")
        place = Path(folder) if folder is not None else files.index_folder
        self._path = place / f"{kind}-{blake2b(settled, digest_size=8).hexdigest()}.npz"

    def load(self) -> tuple[Index, str] | None:
        """The index and fingerprint, if there are any and the files are as they were."""
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                kept = msgspec.json.decode(archive["kept"].tobytes(), type=_Kept)
                tables = {
                    name.removeprefix("table/"): archive[name]
                    for name in archive.files
                    if name.startswith("table/")
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError):
            return None  # none, or not a whole one: scan again
        now = (self._stamps(kept.files), self._listing())
        if kept.layout != _LAYOUT or now != (kept.stamps, kept.listing):
            return None
        index = Index(kept.rows, kept.shard_rows, kept.files, kept.notes, tables)
        return index, kept.fingerprint

    def save(self, index: Index, fingerprint: str) -> None:
        """Keeps an index; where that is not allowed, the next process scans again."""
        kept = _Kept(
            _LAYOUT,
            index.rows,
            index.shard_rows,
            index.files,
            self._stamps(index.files),
            self._listing(),
            index.notes,
            fingerprint,
        )
        arrays = {f"table/{name}": table for name, table in index.tables.items()}
        arrays["kept"] = np.frombuffer(msgspec.json.encode(kept), np.uint8)
        draft = self._path.with_suffix(f".{os.getpid()}.draft")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            draft.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _listing(self) -> str:
        """Changes when a file comes or goes."""
        return blake2b("\0".join(self._files.names()).encode(), digest_size=16).hexdigest()

    def _stamps(self, entries: list[FileEntry]) -> list[tuple[int, int]]:
        try:
            return [self._files.stamp(entry.name) for entry in entries]
        except OSError:
            return []
