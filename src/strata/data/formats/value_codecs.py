"""Codecs: how values that a format stores as bytes (tars, MDS) are decoded.

A codec is a name: `bytes`, `str`, `int` (written in digits), `json`, `npy`, `image` (decoded to
height × width × RGB), or a NumPy dtype for values that are arrays of one size. Those are gathered
as one matrix, which is many times faster than value by value. Nothing is ever unpickled.
"""

import io
from collections.abc import Callable, Collection, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata import extras
from strata.data.formats.mapped_rows import MappedRows
from strata.data.formats.source import Array, Mismatch, Rows

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


def check_codec(codec: str, column: str) -> None:
    """Raise if the codec is neither a known name nor a dtype of numbers."""
    if codec in _READ:
        return
    try:
        dtype = np.dtype(codec)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.hasobject or not dtype.itemsize:
        known = ", ".join(sorted(_READ))
        no_codec = f"unknown codec {codec!r} for column {column!r}"
        raise Mismatch("", no_codec, f"choose {known} or a NumPy dtype")


def check_columns(codecs: Iterable[str], columns: Collection[str]) -> None:
    """Raise if a codec names a column that does not exist."""
    for column in codecs:
        if column not in columns:
            reason = f"decode names a column {column!r} that does not exist"
            raise Mismatch("", reason, f"the columns are {', '.join(columns)}")


def decode_image(raw: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """An image as height × width × RGB, resized to `size` (height, width) if it is given."""
    extras.check("PIL")
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(raw))
    except UnidentifiedImageError as error:
        # Pillow's own message contains a memory address.
        raise ValueError("not an image") from error
    with image:
        if size is not None:
            image.draft("RGB", (size[1], size[0]))
        shown = image.convert("RGB")
    if size is not None and (shown.height, shown.width) != size:
        shown = shown.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(shown)


def read_values(parts: MappedRows, codec: str, width: int, begins: Rows, sizes: Rows) -> Array:
    """The values of one column, which lie at these places; the values of a matrix all have `width`
    bytes.
    """
    parts.refuse(
        begins + sizes > parts.each(parts.size_bytes), "the value extends past the end of the file"
    )
    if is_matrix(codec):
        parts.refuse(sizes != width, f"the value does not have the {width} bytes of the others")
        return parts.take(begins, width).view(np.dtype(codec))
    return _settled(codec, _decoded(parts, codec, parts.slices(begins, sizes)))


def _decoded(parts: MappedRows, codec: str, pieces: list[bytes]) -> Array:
    """The decoded pieces; one that cannot be decoded makes its row damaged."""
    read = _READ[codec]
    values = np.empty(len(pieces), object)
    for place, piece in enumerate(pieces):
        try:
            values[place] = read(piece)
        except Exception as error:  # any error of a decoder makes the row damaged
            parts.refuse(np.arange(len(pieces)) == place, f"not valid {codec}: {error}")
    return values


def _settled(codec: str, values: Array) -> Array:
    """Values of one type as one array of numbers."""
    if codec == "int":
        return values.astype(np.int64)
    if codec == "npy" and len(values):
        first = values[0]
        if all(v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(list(values))
    return values
