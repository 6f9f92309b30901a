"""PNG files from arrays: 8 bits per channel, grey, RGB or RGBA.

Written by hand because it needs no more than zlib, and importing an image library takes longer than
encoding.
"""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidArgument

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number for grey, RGB and RGBA, by the number of channels."""

LEVEL = 6


def pixels_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The array as height × width × channels of bytes; raises if it is not an image."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in COLOUR_TYPES or not array.size:
        raise InvalidArgument(
            f"an array of shape {array.shape} is not an image",
            hint="use height × width, or height × width × 3 (RGB) or × 4 (RGBA); an array with its "
            "channels first needs transpose(1, 2, 0)",
        )
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise InvalidArgument(
            f"an image cannot be made of {array.dtype}",
            hint="use uint8 from 0 to 255, or floats from 0 to 1",
        )
    low, high = float(array.min()), float(array.max())
    if not (low >= 0.0 and high <= 1.0):  # also false for NaN
        raise InvalidArgument(
            f"an image of floats has values from {low:g} to {high:g}",
            hint="scale the values to 0 to 1, or convert them to uint8",
        )
    return np.rint(array.astype(np.float32) * 255).astype(np.uint8)


def encoded(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of height × width × channels of bytes."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter, 0
    rows[:, 1:] = pixels.reshape(height, width * channels)
    body = zlib.compress(rows.tobytes(), LEVEL)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
