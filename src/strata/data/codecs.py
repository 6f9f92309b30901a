"""What the bytes of a value mean, for formats that store values as bytes (tars, MDS).

A codec is a name: `bytes`, `str`, `int` (written in digits), `json`, `npy`, `image` (decoded to
height × width × RGB), or a NumPy dtype, for values that are arrays of one size: those are gathered
as one matrix, which is many times faster than value by value. Nothing is ever unpickled.
"""

import io
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.data.base import Array, Damaged, FileEntry, Mismatch, Rows
from strata.data.gather import Bytes, at_every_byte, objects, put, slices

_READ: dict[str, Callable[[bytes], object]] = {
    "bytes": bytes,
    "str": lambda raw: raw.decode("utf-8"),
    "int": lambda raw: int(raw.decode("ascii").strip()),
    "json": msgspec.json.decode,
    "npy": lambda raw: np.load(io.BytesIO(raw), allow_pickle=False),
    "image": lambda raw: decode_image(raw),
}


def is_matrix(codec: str) -> bool:
    return codec not in _READ


def check_codec(codec: str, file: str) -> None:
    """Refuses what is neither a known name nor a dtype of numbers."""
    if codec in _READ:
        return
    try:
        dtype = np.dtype(codec)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.hasobject:
        known = ", ".join(sorted(_READ))
        raise Mismatch(file, f"there is no codec {codec!r}", f"choose {known} or a NumPy dtype")


def decode_image(raw: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Height × width × RGB; resized to `size` (height, width) if one is given."""
    from PIL import Image

    with Image.open(io.BytesIO(raw)) as image:
        if size is not None:
            image.draft("RGB", (size[1], size[0]))
        shown = image.convert("RGB")
    if size is not None and (shown.height, shown.width) != size:
        shown = shown.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(shown)


class Pieces:
    """Where the values of one column lie: for each row its file, first byte and size."""

    def __init__(self, rows: Rows, files: NDArray[np.intp], begins: Rows, sizes: Rows) -> None:
        self.rows, self.files, self.begins, self.sizes = rows, files, begins, sizes

    def read(
        self,
        codec: str,
        width: int,
        entries: Sequence[FileEntry],
        map_file: Callable[[FileEntry], Bytes],
    ) -> Array:
        """The values; for a matrix each must have `width` bytes."""
        order = np.argsort(self.files, kind="stable")
        cuts = np.flatnonzero(np.diff(self.files[order])) + 1
        groups = np.split(order, cuts) if len(order) else []
        maps = []
        for places in groups:
            entry = entries[int(self.files[places[0]])]
            maps.append((entry, self._checked(places, entry, map_file)))
        if is_matrix(codec):
            return self._matrix(np.dtype(codec), width, groups, maps)
        out = np.empty(len(self.rows), object)
        for places, (entry, raw) in zip(groups, maps, strict=True):
            pieces = slices(raw, self.begins[places], self.sizes[places])
            out[places] = objects(decode(codec, pieces, self.rows[places], entry.name), len(places))
        return _settled(codec, out)

    def _checked(
        self, places: NDArray[np.intp], entry: FileEntry, map_file: Callable[[FileEntry], Bytes]
    ) -> Bytes:
        raw = open_or_damaged(map_file, entry, self.rows[places])
        beyond = places[self.begins[places] + self.sizes[places] > raw.size]
        if beyond.size:
            raise Damaged(self.rows[beyond], entry.name, "the value lies beyond the file's end")
        return raw

    def _matrix(
        self,
        dtype: np.dtype[np.generic],
        width: int,
        groups: list[NDArray[np.intp]],
        maps: list[tuple[FileEntry, Bytes]],
    ) -> Array:
        odd = np.flatnonzero(self.sizes != width)
        if odd.size:
            first = int(odd[0])
            entry = next(e for g, (e, _) in zip(groups, maps, strict=True) if first in g)
            reason = f"the value has {self.sizes[first]} bytes, and others {width}"
            raise Damaged(self.rows[odd], entry.name, reason)
        if len(groups) == 1:
            return at_every_byte(maps[0][1], width)[self.begins].view(dtype)
        out = np.empty((len(self.rows), width), np.uint8)
        for places, (_, raw) in zip(groups, maps, strict=True):
            put(out, places, at_every_byte(raw, width), self.begins[places])
        return out.view(dtype)


def decode(codec: str, pieces: list[bytes], rows: Rows, file: str) -> list[object]:
    """The pieces as values; what cannot be decoded is named by its row."""
    if codec == "bytes":
        return list(pieces)
    read = _READ[codec]
    try:
        return [read(piece) for piece in pieces]
    except Exception:
        pass
    bad, reason = [], ""
    for row, piece in zip(rows, pieces, strict=True):
        try:
            read(piece)
        except Exception as error:  # whatever a decoder raises, the row is what matters
            bad.append(row)
            reason = reason or f"not valid {codec}: {error}"
    raise Damaged(bad, file, reason)


def open_or_damaged(map_file: Callable[[FileEntry], Bytes], entry: FileEntry, rows: Rows) -> Bytes:
    """The bytes of a file, or the rows asked of it as damaged."""
    try:
        return map_file(entry)
    except (Mismatch, OSError) as error:
        reason = error.reason if isinstance(error, Mismatch) else error.strerror or str(error)
        raise Damaged(rows, entry.name, reason) from error


def _settled(codec: str, values: Array) -> Array:
    """Values that are all alike, as one array of numbers."""
    if codec == "int":
        return values.astype(np.int64)
    if codec == "npy" and len(values):
        first = values[0]
        if all(v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(list(values))
    return values
