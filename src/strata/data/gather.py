"""Gathering rows out of mapped bytes, many at a time.

Rows of one size come by one indexing call for a whole batch, also when they lie in many files: seen
from the lowest of the mapped files, the others lie at fixed distances in memory, so one array with
an element at every byte from there on reaches them all, and only the wanted elements are touched.
Against one call a file and a second copy to bring the rows in order, two files gave 4.3 M rows/s
instead of 1.4 M (1 KiB) and 77 k instead of 33 k (100 KiB); with more files the gain grows.
Callers must have checked that every row lies inside its file.

Rows of many sizes become `bytes` in an array of objects.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.data.base import Array, Rows

Bytes: TypeAlias = NDArray[np.uint8]


def take(array: Array, rows: Rows) -> Array:
    """Rows of an array. Contiguous rows are moved as units, 1.6 times as fast as by element."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if array.ndim == 1 or not array.flags.c_contiguous or not row_bytes or array.dtype.hasobject:
        return array[rows]
    units = array.reshape(len(array), -1).view(f"V{row_bytes}")[:, 0]
    taken: Array = units.take(rows).view(array.dtype).reshape(len(rows), *array.shape[1:])
    return taken


def take_across(
    parts: Sequence[Array], which: NDArray[np.intp], begins: Rows, row_bytes: int
) -> Bytes:
    """Rows of `row_bytes` from byte `begins` of part `which`; parts are contiguous in memory."""
    addresses = np.array([part.ctypes.data for part in parts], np.int64)
    if not len(begins) or not row_bytes:
        return np.empty((len(begins), row_bytes), np.uint8)
    lowest = int(addresses.argmin())
    offsets = (addresses - addresses[lowest])[which] + begins
    first = parts[lowest].reshape(-1).view(np.uint8)[:row_bytes].view(f"V{row_bytes}")
    reach = np.lib.stride_tricks.as_strided(
        first, shape=(int(offsets.max()) + 1,), strides=(1,), writeable=False
    )
    taken: Bytes = reach[offsets].view(np.uint8).reshape(len(begins), row_bytes)
    return taken


def numbered(files: NDArray[np.intp], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The files (of `count`) that occur, and for each entry which of those it is."""
    if count > 16 * len(files):
        return np.unique(files, return_inverse=True)
    occurs = np.bincount(files, minlength=count) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[files]


def slices(
    parts: Sequence[Bytes], which: NDArray[np.intp], begins: Rows, sizes: Rows
) -> list[bytes]:
    """Pieces of different sizes, each copied out as bytes."""
    views = [part.data for part in parts]
    ends = (begins + sizes).tolist()
    places = zip(which.tolist(), begins.tolist(), ends, strict=True)
    return [bytes(views[part][begin:end]) for part, begin, end in places]


def objects(values: Iterable[object], count: int) -> Array:
    """An array of objects, one a row, whatever they are."""
    out = np.empty(count, object)
    for place, value in enumerate(values):
        out[place] = value
    return out
