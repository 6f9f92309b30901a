"""NumPy arrays: one `.npy` file, or a folder of them.

A single file is the column `data`. In a folder each name is a column, and numbered files
(`x-00000.npy`, `x-00001.npy`) are consecutive parts of one; all columns have the same number of
rows. Files are mapped, never loaded. Arrays of objects would have to be unpickled and raise an
error; so do `.npz` files, which cannot be mapped.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from strata.data.cache.dataset_files import FileMaps, Files
from strata.data.formats.mapped_rows import Bytes, MappedRows
from strata.data.formats.row_gather import take
from strata.data.formats.source import (
    Array,
    Columns,
    DatasetIndex,
    FileEntry,
    Mismatch,
    RowLayout,
    Rows,
)

_NUMBERED = re.compile(r"^(.*?)[-_.]?\d+$")
_NPZ_HINT = "unpack it into one .npy file per column"
_MAX_SIZE = 2**62
_UNREADABLE = (
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    TokenError,
    RecursionError,
    MemoryError,
)
"""What NumPy's parser raises for damaged headers."""


class NpySource:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._maps = FileMaps(files)
        self._headers: dict[str, _Header] = {}
        self._parts: dict[str, tuple[list[FileEntry], RowLayout]] = {}

    def scan(self) -> DatasetIndex:
        entries, dtypes = [], dict[str, str]()
        for name in self._files.names(".npy", ".npz"):
            if name.endswith(".npz"):
                raise Mismatch(name, "an .npz file cannot be mapped", _NPZ_HINT)
            header = self._header(name)
            column = "data" if self._files.single else _column(name)
            entries.append(self._files.entry(name, header.shape[0]))
            if dtypes.setdefault(column, header.row) != header.row:
                raise Mismatch(name, f"is {header.row}, but other parts are {dtypes[column]}")
        if not entries:
            raise Mismatch("", "no .npy files found")
        rows = dict.fromkeys(dtypes, 0)
        for entry in entries:
            rows["data" if self._files.single else _column(entry.name)] += entry.rows
        if len(set(rows.values())) > 1:
            raise Mismatch("", f"the columns have different lengths: {rows}")
        return DatasetIndex(
            rows=next(iter(rows.values())),
            shard_rows=self._part_rows(entries),
            files=entries,
            notes=dict(dtypes),
        )

    def _part_rows(self, entries: Sequence[FileEntry]) -> int:
        """The number of rows of the first part, if a column has several."""
        if self._files.single:
            return 0
        parts = Counter(_column(entry.name) for entry in entries if entry.rows)
        return next(
            (each.rows for each in entries if each.rows and parts[_column(each.name)] > 1), 0
        )

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        return {column: self._column(index, rows, column) for column in columns}

    def _column(self, index: DatasetIndex, rows: Rows, column: str) -> Array:
        if not rows.size:
            return _nothing(index.notes[column])
        if column not in self._parts:
            entries = [e for e in index.files if self._files.single or _column(e.name) == column]
            self._parts[column] = entries, RowLayout([entry.rows for entry in entries])
        entries, layout = self._parts[column]
        files = layout.locate(rows)
        parts = MappedRows(self._mapped, entries, files, rows)
        headers = [self._headers[entry.name] for entry in parts.entries]
        header = headers[0]
        if len(entries) == 1:
            return take(
                parts.maps[0][header.begin :].view(header.dtype).reshape(header.shape), rows
            )
        heads = parts.each([each.begin for each in headers])
        begins = heads + (rows - layout.starts[files]) * header.row_bytes
        taken = parts.take(begins, header.row_bytes)
        return taken.view(header.dtype).reshape(len(rows), *header.shape[1:])

    def _mapped(self, entry: FileEntry) -> Bytes:
        """The bytes of a file, after checking its header."""
        raw = self._maps(entry)
        if entry.name not in self._headers:
            self._headers[entry.name] = self._header(entry.name)
        return raw

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return index.notes

    def _header(self, name: str) -> "_Header":
        """The header of a file, whose array must be mappable by rows."""
        try:
            with self._files.open(name) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
                read = read or np.lib.format.read_array_header_2_0
                shape, by_columns, dtype = read(file)
                begin = file.tell()
        except _UNREADABLE as error:
            raise Mismatch(name, f"not a plain .npy file: {error}") from error
        if dtype.hasobject:
            raise Mismatch(name, "not a plain .npy file: its values are pickled objects")
        if not dtype.itemsize:
            raise Mismatch(name, f"not a plain .npy file: its values are {dtype}")
        if not shape:
            raise Mismatch(name, "holds a single value, not rows")
        if not all(0 <= size <= _MAX_SIZE for size in (*shape, prod(shape) * dtype.itemsize)):
            raise Mismatch(name, f"not a plain .npy file: its array has the shape {shape}")
        if by_columns and len(shape) > 1:
            raise Mismatch(name, "is in Fortran order", "save it with np.ascontiguousarray")
        header = _Header(shape, dtype, begin)
        size = begin + shape[0] * header.row_bytes
        if self._files.stamp(name)[0] != size:
            raise Mismatch(name, f"not a plain .npy file: its array would end at byte {size}")
        return header


class _Header(NamedTuple):
    """An array in a file: its shape, its type, and its offset in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    @property
    def row(self) -> str:
        """The type of a row, as text."""
        return f"{self.dtype}{list(self.shape[1:])}" if len(self.shape) > 1 else self.dtype.str


def _nothing(row: str) -> Array:
    """An empty array of a type given as text, for when the files cannot be read."""
    if not row.endswith("]"):
        return np.empty(0, row)
    dtype, _, shape = row.rpartition("[")
    return np.empty((0, *(int(size) for size in shape[:-1].split(","))), dtype)


def _column(name: str) -> str:
    stem = name.removesuffix(".npy")
    match = _NUMBERED.match(stem)
    return match[1] if match and match[1] else stem
