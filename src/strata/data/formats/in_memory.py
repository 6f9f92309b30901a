"""Datasets without files: arrays in memory, and plain sample numbers.

A dataset that was registered only by its sizes has no data to read; its batches have one column,
`index`, for a transform or the training script.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from strata.data.formats.row_gather import take
from strata.data.formats.source import Array, Columns, DatasetIndex, Mismatch, Rows


class ArraySource:
    """A dict of arrays with the same number of rows."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = {name: np.asarray(array) for name, array in arrays.items()}

    def scan(self) -> DatasetIndex:
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if not lengths or len(set(lengths.values())) > 1:
            reason = f"the columns must have the same length: {lengths}"
            raise Mismatch("", reason, "give arrays by name, each with one entry per row")
        digest = xxhash.xxh3_128()
        for name, array in sorted(self._arrays.items()):
            digest.update(f"{name}/{array.dtype}/{array.shape}/".encode())
            content = str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            digest.update(content)
        return DatasetIndex(rows=next(iter(lengths.values())), identity=digest.hexdigest())

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        return {name: take(self._arrays[name], rows) for name in columns}

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return {
            name: f"{array.dtype}{list(array.shape[1:])}" if array.ndim > 1 else str(array.dtype)
            for name, array in self._arrays.items()
        }


class NumberSource:
    """The numbers of the samples, as the column `index`."""

    def __init__(self, total_samples: int) -> None:
        self._total = total_samples

    def scan(self) -> DatasetIndex:
        return DatasetIndex(rows=self._total)

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        return {"index": rows}

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return {"index": "int64"}
