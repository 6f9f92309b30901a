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
from strata.data.gather import Bytes, numbered, slices, take_across

_ALL = slice(None)
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
        present, which = numbered(self.files, len(entries))
        parts = [
            open_or_damaged(map_file, entries[file], self.rows, self.files == file)
            for file in present.tolist()
        ]
        lengths = np.array([part.size for part in parts], np.int64)
        if len(self.rows):
            beyond = self.begins + self.sizes > lengths[which]
            self._refuse(beyond, entries, "the value lies beyond the file's end")
        if is_matrix(codec):
            self._refuse(
                self.sizes != width, entries, f"the value has not the {width} bytes of others"
            )
            return take_across(parts, which, self.begins, width).view(np.dtype(codec))
        return self._decoded(codec, slices(parts, which, self.begins, self.sizes), entries)

    def _refuse(self, bad: NDArray[np.bool_], entries: Sequence[FileEntry], reason: str) -> None:
        """Rows are refused a file at a time, so that the file can be named."""
        if bad.any():
            file = self.files[bad][0]
            raise Damaged(self.rows[bad & (self.files == file)], entries[file].name, reason)

    def _decoded(self, codec: str, pieces: list[bytes], entries: Sequence[FileEntry]) -> Array:
        """The pieces as values; what cannot be decoded is named by its row."""
        read = _READ[codec]
        values = np.empty(len(pieces), object)
        for place, piece in enumerate(pieces):
            try:
                values[place] = piece if codec == "bytes" else read(piece)
            except Exception as error:  # whatever a decoder raises, the row is what matters
                file = entries[self.files[place]].name
                raise Damaged([self.rows[place]], file, f"not valid {codec}: {error}") from error
        return _settled(codec, values)


def open_or_damaged(
    map_file: Callable[[FileEntry], Bytes],
    entry: FileEntry,
    rows: Rows,
    chosen: NDArray[np.bool_] | NDArray[np.intp] | slice = _ALL,
) -> Bytes:
    """The bytes of a file, or those of the rows that it should have as damaged."""
    try:
        return map_file(entry)
    except (Mismatch, OSError) as error:
        reason = error.reason if isinstance(error, Mismatch) else error.strerror or str(error)
        raise Damaged(rows[chosen], entry.name, reason) from error


def _settled(codec: str, values: Array) -> Array:
    """Values that are all alike, as one array of numbers."""
    if codec == "int":
        return values.astype(np.int64)
    if codec == "npy" and len(values):
        first = values[0]
        if all(v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(list(values))
    return values
