"""How much memory a batch holds, with what Python adds to the payload.

A step of one number has a payload of 8 bytes and holds some 700: the dict, the array objects, the
record of its samples. A bound on read-ahead that counts payloads alone would not be one.
"""

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

_ARRAY_BYTES = sys.getsizeof(np.empty(0))
_LOOKED_AT = 16  # of a large container so many entries are measured, and stand for the others


def held_bytes(value: Any) -> int:
    """About how many bytes of memory a value holds; containers by a few of their entries."""
    if isinstance(value, np.ndarray):
        held = _ARRAY_BYTES + value.nbytes
        return held + _objects_bytes(value) if value.dtype.hasobject else held
    if isinstance(value, Mapping):
        entries = [held_bytes(each) for each in islice(value.values(), _LOOKED_AT)]
        return sys.getsizeof(value) + _for_all(entries, len(value))
    if isinstance(value, list | tuple | set | frozenset):
        entries = [held_bytes(each) for each in islice(value, _LOOKED_AT)]
        return sys.getsizeof(value) + _for_all(entries, len(value))
    nbytes = getattr(value, "nbytes", 0)  # a tensor, whose own size leaves its data out
    return sys.getsizeof(value) + (nbytes if isinstance(nbytes, int) else 0)


def _objects_bytes(array: np.ndarray[Any, Any]) -> int:
    """The objects that an array refers to, by some that lie evenly over it."""
    if not array.size or array.dtype != object:
        return 0
    few = array.ravel()[:: max(1, array.size // _LOOKED_AT)]
    return _for_all([held_bytes(each) for each in few], array.size)


def _for_all(measured: list[int], count: int) -> int:
    return sum(measured) * count // len(measured) if measured else 0
