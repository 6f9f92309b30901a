"""Measures of a batch: the memory that it uses, and its content digest.

The memory includes what Python adds to the payload. A step of one number has a payload of 8 bytes
and uses about 700: the dict, the array objects, the record of its samples. A read-ahead limit that
counted only payloads would be exceeded many times.

By the content digest an audit finds a worker that read the wrong bytes. It is xxHash (XXH3) over
each column's type, shape and bytes, columns sorted by name: more than 10 GB/s for arrays. Objects
(text, bytes, arrays of different sizes) are hashed one by one.
"""

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import xxhash

from strata.data.formats.source import Array, Columns

_ARRAY_BYTES = sys.getsizeof(np.empty(0))
_LOOKED_AT = 16  # entries of a large container that are measured, as a sample of the others


def held_bytes(value: Any) -> int:
    """The approximate memory of a value in bytes; large containers are estimated from a few
    entries.
    """
    if isinstance(value, np.ndarray):
        held = _ARRAY_BYTES + value.nbytes
        return held + _objects_bytes(value) if value.dtype.hasobject else held
    if isinstance(value, Mapping):
        entries = [held_bytes(each) for each in islice(value.values(), _LOOKED_AT)]
        return sys.getsizeof(value) + _for_all(entries, len(value))
    if isinstance(value, list | tuple | set | frozenset):
        entries = [held_bytes(each) for each in islice(value, _LOOKED_AT)]
        return sys.getsizeof(value) + _for_all(entries, len(value))
    nbytes = getattr(value, "nbytes", 0)  # a tensor, whose own size does not include its data
    return sys.getsizeof(value) + (nbytes if isinstance(nbytes, int) else 0)


def _objects_bytes(array: np.ndarray[Any, Any]) -> int:
    """The memory of the objects in an array, estimated from some that are evenly spaced."""
    if not array.size or array.dtype != object:
        return 0
    few = array.ravel()[:: max(1, array.size // _LOOKED_AT)]
    return _for_all([held_bytes(each) for each in few], array.size)


def _for_all(measured: list[int], count: int) -> int:
    return sum(measured) * count // len(measured) if measured else 0


def content_of(columns: Columns) -> int:
    """The eight-byte digest of a batch as it was read; never 0, which means "no digest"."""
    digest = xxhash.xxh3_64()
    for name in sorted(columns):
        values = columns[name]
        digest.update(f"{name}/{values.dtype}/{values.shape}/".encode())
        if values.dtype.hasobject:
            for value in values.ravel():
                raw = _raw(value)
                digest.update(len(raw).to_bytes(8, "little") + raw)
        else:
            digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.intdigest() or 1


def _raw(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, np.ndarray):
        array: Array = np.ascontiguousarray(value)
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return msgspec.json.encode(value, enc_hook=repr)
