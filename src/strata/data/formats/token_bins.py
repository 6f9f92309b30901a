"""Token bins: flat files of token numbers, cut into samples of `length` tokens.

Options: `length` (tokens per sample), `dtype` (default `uint16`), `stride` (from one sample to the
next; default `length`, one less for next-token targets), `header_bytes` (skipped at the start of
each file). Samples never cross files; the rest at a file's end is not used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strata.data.cache.dataset_files import FileMaps, Files
from strata.data.formats.mapped_rows import MappedRows
from strata.data.formats.source import (
    Columns,
    DatasetIndex,
    FileEntry,
    Mismatch,
    Natural,
    Positive,
    RowLayout,
    Rows,
)

_SUFFIXES = (".bin", ".tok", ".u16", ".u32")


class TokenSource:
    def __init__(
        self,
        files: Files,
        *,
        length: Positive,
        dtype: str = "uint16",
        stride: Natural = 0,
        header_bytes: Natural = 0,
    ) -> None:
        self._files, self._maps = files, FileMaps(files)
        self._dtype = _whole(dtype)
        self._layout: RowLayout | None = None
        self._length, self._header = length, header_bytes
        self._row_bytes = length * self._dtype.itemsize
        self._stride_bytes = (stride or length) * self._dtype.itemsize

    def scan(self) -> DatasetIndex:
        entries = [self._entry(name) for name in self._files.names(*_SUFFIXES)]
        if not entries:
            raise Mismatch("", f"no file ending in {', '.join(_SUFFIXES)} here")
        rows = sum(entry.rows for entry in entries)
        if not rows:
            fewer = f"holds fewer than {self._length} tokens"
            raise Mismatch(entries[0].name, fewer, "choose a smaller length, or check dtype")
        return DatasetIndex(
            rows=rows,
            shard_rows=max(e.rows for e in entries) if len(entries) > 1 else 0,
            files=entries,
        )

    def _entry(self, name: str) -> FileEntry:
        size = self._files.stamp(name)[0]
        tokens = size - self._header
        if tokens < 0 or tokens % self._dtype.itemsize:
            raise Mismatch(
                name,
                f"has {size} bytes, which is not a header of {self._header} and whole "
                f"{self._dtype} tokens",
                "check dtype and header_bytes",
            )
        rows = (tokens - self._row_bytes) // self._stride_bytes + 1
        return FileEntry(name, size, max(0, rows))

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        layout = self._layout = self._layout or RowLayout([entry.rows for entry in index.files])
        files = layout.locate(rows)
        parts = MappedRows(self._maps, index.files, files, rows)
        begins = (rows - layout.starts[files]) * self._stride_bytes + self._header
        return {"tokens": parts.take(begins, self._row_bytes).view(self._dtype)}

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return {"tokens": f"{self._dtype}[{self._length}]"}


def _whole(dtype: str) -> np.dtype[np.integer[Any]]:
    hint = "choose an integer type, such as uint16 or uint32"
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise Mismatch("", f"unknown dtype {dtype!r}", hint) from error
    if found.kind not in "iu":
        raise Mismatch("", f"tokens are integers, not {dtype}", hint)
    return found
