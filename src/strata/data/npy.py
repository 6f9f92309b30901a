"""NumPy arrays: one `.npy` file, or a folder of them.

A single file is the column `data`. In a folder each name is a column, and numbered files
(`x-00000.npy`, `x-00001.npy`) are parts of one, end to end; all columns have the same rows. Files
are mapped, never loaded. Arrays of objects would have to be unpickled and are refused; so are
`.npz` files, which cannot be mapped.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from strata.data.base import Array, Columns, Damaged, Index, Layout, Mismatch, Rows
from strata.data.codecs import open_or_damaged
from strata.data.files import Files, Maps
from strata.data.gather import put, take

_NUMBERED = re.compile(r"^(.*?)[-_.]?\d+$")
_NPZ_HINT = "unpack it into .npy files, one a column, which are read without a copy"


class NpySource:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._maps = Maps(files)
        self._arrays: dict[str, Array] = {}

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
        found: Columns = {}
        for column in columns:
            entries = [
                entry
                for entry in index.files
                if self._files.single or _column(entry.name) == column
            ]
            layout = Layout([entry.rows for entry in entries])
            out: Array | None = None
            for part, places, local in layout.split(rows):
                entry = entries[part]
                open_or_damaged(self._maps, entry, rows[places])
                if entry.name not in self._arrays:
                    try:
                        self._arrays[entry.name] = self._header(entry.name)
                    except Mismatch as error:
                        raise Damaged(rows[places], entry.name, error.reason) from error
                array = self._arrays[entry.name]
                if isinstance(places, slice):
                    out = take(array, local)
                    break
                if out is None:
                    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
                put(out, places, array, local)
            found[column] = out if out is not None else self._header(entries[0].name)[:0]
        return found

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
        return np.asarray(array)


def _column(name: str) -> str:
    stem = name.removesuffix(".npy")
    match = _NUMBERED.match(stem)
    return match[1] if match and match[1] else stem
