"""NumPy arrays: one `.npy` file, or a folder of them.

A single file is the column `data`. In a folder each name is a column, and numbered files
(`x-00000.npy`, `x-00001.npy`) are parts of one, end to end; all columns have the same rows. Files
are mapped, never loaded. Arrays of objects would have to be unpickled and are refused; so are
`.npz` files, which cannot be mapped.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from strata.data.base import (
    Array,
    Columns,
    Damaged,
    FileEntry,
    Index,
    Layout,
    Mismatch,
    Rows,
)
from strata.data.codecs import open_or_damaged
from strata.data.files import Files, Maps
from strata.data.gather import numbered, take, take_across

_NUMBERED = re.compile(r"^(.*?)[-_.]?\d+$")
_NPZ_HINT = "unpack it into .npy files, one a column, which are read without a copy"


class NpySource:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._maps = Maps(files)
        self._arrays: dict[str, Array] = {}
        self._parts: dict[str, tuple[list[FileEntry], Layout]] = {}

    def scan(self) -> Index:
        entries, dtypes = [], dict[str, str]()
        for name in self._files.names(".npy", ".npz"):
            if name.endswith(".npz"):
                raise Mismatch(name, "an .npz file cannot be mapped", _NPZ_HINT)
            array = self._header(name)
            column = "data" if self._files.single else _column(name)
            entries.append(self._files.entry(name, len(array)))
            described = (
                f"{array.dtype}{list(array.shape[1:])}" if array.ndim > 1 else array.dtype.str
            )
            if dtypes.setdefault(column, described) != described:
                raise Mismatch(name, f"is {described}, and other parts are {dtypes[column]}")
        if not entries:
            raise Mismatch("", "no .npy file here")
        rows = dict.fromkeys(dtypes, 0)
        for entry in entries:
            rows["data" if self._files.single else _column(entry.name)] += entry.rows
        if len(set(rows.values())) > 1:
            raise Mismatch("", f"the columns have different lengths: {rows}")
        parts = [entry.rows for entry in entries if entry.rows]
        shard = parts[0] if len(entries) > len(dtypes) else 0
        return Index(next(iter(rows.values())), shard, entries, dict(dtypes))

    def read(self, index: Index, rows: Rows, columns: Sequence[str]) -> Columns:
        return {column: self._column(index, rows, column) for column in columns}

    def _column(self, index: Index, rows: Rows, column: str) -> Array:
        if column not in self._parts:
            entries = [e for e in index.files if self._files.single or _column(e.name) == column]
            self._parts[column] = entries, Layout([entry.rows for entry in entries])
        entries, layout = self._parts[column]
        if len(entries) == 1:
            return take(self._array(entries[0], rows, slice(None)), rows)
        files = layout.locate(rows)
        present, which = numbered(files, len(entries))
        if not present.size:
            return self._header(entries[0].name)[:0].copy()
        parts = [self._array(entries[file], rows, files == file) for file in present.tolist()]
        row_bytes = parts[0][:1].nbytes
        begins = (rows - layout.starts[files]) * row_bytes
        taken = take_across(parts, which, begins, row_bytes)
        return taken.view(parts[0].dtype).reshape(len(rows), *parts[0].shape[1:])

    def _array(self, entry: FileEntry, rows: Rows, chosen: NDArray[np.bool_] | slice) -> Array:
        """The mapped array of a file, or its rows among those asked for as damaged."""
        open_or_damaged(self._maps, entry, rows, chosen)
        if entry.name not in self._arrays:
            try:
                self._arrays[entry.name] = self._header(entry.name)
            except Mismatch as error:
                raise Damaged(rows[chosen], entry.name, error.reason) from error
        return self._arrays[entry.name]

    def describe(self, index: Index) -> Mapping[str, str]:
        return index.notes

    def _header(self, name: str) -> Array:
        """The file as a mapped array."""
        try:
            array = np.load(self._files.path(name), mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise Mismatch(name, f"not a plain .npy file: {error}") from error
        if array.ndim == 0:
            raise Mismatch(name, "holds a single value, not rows")
        if not array.flags.c_contiguous:
            raise Mismatch(name, "is stored by columns", "save it with np.ascontiguousarray")
        return np.asarray(array)


def _column(name: str) -> str:
    stem = name.removesuffix(".npy")
    match = _NUMBERED.match(stem)
    return match[1] if match and match[1] else stem
