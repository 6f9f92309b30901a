"""Weights as one vector of float32, whatever they are kept in."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidArgument
from strata.sdk.updates import Vector


class Weights(Protocol):
    """What is trained. The last `exact` values are averaged over the workers and not learned."""

    @property
    def exact(self) -> int: ...

    def read(self) -> Vector:
        """A copy of all values."""

    def write(self, vector: Vector) -> None:
        """Sets all values, in place."""


class Arrays:
    """A dict of NumPy arrays; they may be replaced by others of the same shape in between."""

    exact = 0

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                raise InvalidArgument(
                    f"the weight {name!r} is no array of floating-point numbers",
                    hint="give a dict of NumPy arrays, and a torch module to strata.torch",
                )

    def read(self) -> Vector:
        """A copy of all values, by name."""
        parts = [self._arrays[name].reshape(-1) for name in sorted(self._arrays)]
        return np.concatenate([np.empty(0, np.float32), *parts], dtype=np.float32)

    def write(self, vector: Vector) -> None:
        """Sets all values, in place."""
        at = 0
        for name in sorted(self._arrays):
            array = self._arrays[name]
            array[...] = vector[at : at + array.size].reshape(array.shape)
            at += array.size
