"""Hugging Face datasets.

The data is a loaded `datasets.Dataset`, or a folder that `Dataset.save_to_disk` wrote, on this host
or in object storage. The library is imported when a folder is opened; Strata does not depend on it.
Rows are requested one batch at a time, and the library reads them from its Arrow files. At most
`MAX_OPEN` files of a folder are open at a time, with least-recently-used eviction; files in object
storage are downloaded when rows of them are read.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from strata.data.cache.dataset_files import Files
from strata.data.formats.row_gather import joined, objects
from strata.data.formats.source import (
    Array,
    Columns,
    Damaged,
    DatasetIndex,
    FileEntry,
    Mismatch,
    RowLayout,
    Rows,
)
from strata.errors import UNDECODABLE

STATE = "state.json"
MAX_OPEN = 128


class HuggingFaceSource:
    """A dataset that is already loaded."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("numpy")
        self._identity = str(dataset._fingerprint)

    def scan(self) -> DatasetIndex:
        return DatasetIndex(rows=len(self._dataset), identity=self._identity)

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        return _read(self._dataset.select_columns(list(columns)), rows)

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return _described(self._dataset)


class HuggingFaceFolder:
    """The files that `save_to_disk` wrote for one split."""

    def __init__(self, files: Files) -> None:
        try:
            self._library = import_module("datasets")
        except ImportError as error:
            raise Mismatch(
                "", "the library `datasets` is not installed", "pip install datasets"
            ) from error
        self._files = files
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()
        self._layout: RowLayout | None = None
        files.on_release.append(self._drop)

    def scan(self) -> DatasetIndex:
        try:
            with self._files.open(STATE) as file:
                saved = msgspec.json.decode(file.read(), type=_Saved)
        except (OSError, *UNDECODABLE) as error:
            hint = "give the folder of one split, which Dataset.save_to_disk wrote"
            raise Mismatch(STATE, f"is missing, or lists no data files: {error}", hint) from error
        entries, notes = list[FileEntry](), dict[str, str]()
        for name in (each.filename for each in saved.files):
            part = self._part(name)
            entries.append(self._files.entry(name, len(part)))
            notes = _described(part)
        largest = max((entry.rows for entry in entries), default=0)
        rows = sum(entry.rows for entry in entries)
        return DatasetIndex(
            rows=rows, shard_rows=largest, files=entries, notes=notes, identity=saved.fingerprint
        )

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        layout = self._layout = self._layout or RowLayout([entry.rows for entry in index.files])
        chosen: list[Array] = []
        found: list[Columns] = []
        for number, places, local in layout.split(rows):
            chosen.append(np.arange(len(rows))[places])
            found.append(self._rows(index.files[number], local, rows[places], columns))
        if not found:
            found.append(self._rows(index.files[0], rows, rows, columns))
            chosen.append(np.arange(0))
        return {name: joined([part[name] for part in found], chosen, len(rows)) for name in columns}

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return index.notes

    def _rows(self, entry: FileEntry, local: Rows, rows: Rows, columns: Sequence[str]) -> Columns:
        try:
            if self._files.stamp(entry.name)[0] != entry.size_bytes:
                raise Damaged(rows, entry.name, "the file changed since it was scanned")
            return _read(self._part(entry.name).select_columns(list(columns)), local)
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise Damaged(rows, entry.name, f"cannot be read: {error}") from error

    def _part(self, name: str) -> Any:
        """One file as a dataset, opened if necessary."""
        path = str(self._files.path(name))
        with self._lock:
            if name not in self._open:
                self._open[name] = self._library.Dataset.from_file(path).with_format("numpy")
            self._open.move_to_end(name)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return self._open[name]

    def _drop(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)


def _read(dataset: Any, rows: Rows) -> Columns:
    return {name: _settled(value, len(rows)) for name, value in dataset[rows.tolist()].items()}


def _described(dataset: Any) -> dict[str, str]:
    return {name: str(feature) for name, feature in dataset.features.items()}


def _settled(values: Any, count: int) -> Array:
    """Copies of the values, because the library may return views of a mapped file. Texts become
    objects, since their width as NumPy arrays would differ between batches.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "SUO":
            return values.copy()
        values = values.tolist()
    return objects((deepcopy(v) if isinstance(v, np.ndarray) else v for v in values), count)


class _File(msgspec.Struct):
    filename: str


class _Saved(msgspec.Struct):
    """The content of `state.json`: the Arrow files in order, and the fingerprint of the data."""

    files: list[_File] = msgspec.field(name="_data_files")
    fingerprint: str = msgspec.field(name="_fingerprint")
