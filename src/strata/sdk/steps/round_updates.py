"""The updates of local steps: compression, and the outer optimizer that applies their mean.

An *update* is the change of a worker's weights since the round began, as one float32 vector. It is
sent as eight-bit codes with one scale per `BLOCK` values, of all values or only the largest. The
worker adds the compression error to its next update (error feedback). Values at the end of the
vector, such as running statistics, can be sent exactly: they are averaged, not learned.

`Weights` is the protocol of weights that are read and set as one float32 vector. The outer
optimizer uses the mean update as a gradient and steps with Nesterov momentum.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.errors import UNDECODABLE, Corrupt, InvalidArgument

Vector: TypeAlias = NDArray[np.float32]

BLOCK = 1_024
LEVELS = 127
MAX_SIZE = 1 << 32


class Update(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An encoded update. `begun` is the checksum of the state at the start of the author's round.

    The first values are `codes` times the scale of their block, at `indexes` if only some are sent;
    the last values are `exact`. `size` counts all values. `weight` is the update's weight.
    """

    author: str
    begun: str
    size: int
    weight: float
    scales: bytes
    codes: bytes
    indexes: bytes
    exact: bytes


def packed(
    vector: Vector, author: str, begun: str, weight: float, *, keep: float, exact: int
) -> bytes:
    """Encode the fraction `keep` of the values in eight bits, and the last `exact` ones exactly."""
    if not np.isfinite(vector).all():
        raise InvalidArgument(
            "the weights contain NaN or infinity after this round",
            hint="lower the inner learning rate",
        )
    learned, last = vector[: vector.size - exact], vector[vector.size - exact :]
    indexes = _largest(learned, keep)
    scales, codes = _quantized(learned if indexes is None else learned[indexes])
    return msgspec.msgpack.encode(
        Update(
            author=author,
            begun=begun,
            size=vector.size,
            weight=weight,
            scales=scales.tobytes(),
            codes=codes.tobytes(),
            indexes=b"" if indexes is None else indexes.astype("<u4").tobytes(),
            exact=last.astype("<f4").tobytes(),
        )
    )


def read_update(data: bytes | bytearray) -> Update:
    """Decode an update; raises `Corrupt` if it is invalid."""
    try:
        update = msgspec.msgpack.decode(data, type=Update)
    except UNDECODABLE as error:
        raise Corrupt(f"an update cannot be read: {error}") from error
    if not (0 <= update.weight < float("inf") and 0 <= update.size <= MAX_SIZE):
        raise Corrupt(f"an update has weight {update.weight} and {update.size} values")
    return update


def unpacked(update: Update) -> Vector:
    """The vector of an update, the same on every worker."""
    exact = np.frombuffer(update.exact, "<f4") if len(update.exact) % 4 == 0 else None
    scales = np.frombuffer(update.scales, "<f4") if len(update.scales) % 4 == 0 else None
    sent = len(update.codes)
    if exact is None or scales is None or scales.size != -(-sent // BLOCK):
        raise Corrupt("the parts of an update do not fit together")
    if not (np.isfinite(exact).all() and np.isfinite(scales).all()):
        raise Corrupt("an update contains NaN or infinity")
    learned = update.size - exact.size
    values = np.frombuffer(update.codes, np.int8).astype(np.float32)
    values *= np.repeat(scales, BLOCK)[:sent]
    vector = np.zeros(update.size, np.float32)
    if update.indexes:
        indexes = np.frombuffer(update.indexes, "<u4") if len(update.indexes) == 4 * sent else None
        if indexes is None or learned <= 0 or indexes.max() >= learned:
            raise Corrupt("an update has indexes out of range")
        vector[indexes] = values
    elif sent == learned:
        vector[:learned] = values
    else:
        raise Corrupt(f"an update has {sent} codes for {learned} values")
    vector[learned:] = exact
    return vector


def _largest(vector: Vector, keep: float) -> NDArray[Any] | None:
    """The sorted indexes of the largest values; None if all are kept."""
    count = max(int(vector.size * keep), 1)
    if count >= vector.size:
        return None
    return np.sort(np.argpartition(np.abs(vector), -count)[-count:])


def _quantized(values: Vector) -> tuple[Vector, NDArray[np.int8]]:
    """The scale of each block, and the eight-bit codes."""
    blocks = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values
    scales = (np.abs(blocks).max(axis=1) / LEVELS).astype("<f4")
    blocks /= np.where(scales > 0, scales, 1)[:, None]
    return scales, np.rint(blocks).astype(np.int8).reshape(-1)[: values.size]


class Outer:
    """The outer optimizer: gradient descent with Nesterov momentum on the mean update."""

    def __init__(self, size: int, exact: int, rate: float, momentum: float) -> None:
        if not (0 < rate <= 2 and 0 <= momentum < 1):
            raise InvalidArgument(
                f"LocalSteps got rate={rate:g} and momentum={momentum:g}",
                hint="use a rate above 0 and at most 2, such as 0.7, and a momentum in [0, 1)",
            )
        self.velocity: Vector = np.zeros(size - exact, np.float32)
        self._rate, self._momentum = np.float32(rate), np.float32(momentum)

    def step(self, start: Vector, mean: Vector) -> Vector:
        """The weights after a round that began with `start`."""
        stepped = start + mean  # final for the values that are averaged and not learned
        learned = self.velocity.size
        self.velocity *= self._momentum
        self.velocity += mean[:learned]
        stepped[:learned] = start[:learned] + self._rate * (
            mean[:learned] + self._momentum * self.velocity
        )
        return stepped


class Weights(Protocol):
    """Weights to train. The last `exact` values are averaged over the workers, not learned."""

    @property
    def exact(self) -> int: ...

    def read(self) -> Vector:
        """A copy of all values."""

    def write(self, vector: Vector) -> None:
        """Set all values in place."""


class Arrays:
    """A dict of NumPy arrays; each may be replaced by another of the same shape."""

    exact = 0

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                raise InvalidArgument(
                    f"weight {name!r} is not a NumPy array of floating-point numbers",
                    hint="pass a dict of NumPy arrays; for a torch module use "
                    "strata.torch.LocalSteps",
                )

    def read(self) -> Vector:
        """A copy of all values, in the order of the names."""
        parts = [self._arrays[name].reshape(-1) for name in sorted(self._arrays)]
        return np.concatenate([np.empty(0, np.float32), *parts], dtype=np.float32)

    def write(self, vector: Vector) -> None:
        """Set all values in place."""
        at = 0
        for name in sorted(self._arrays):
            array = self._arrays[name]
            array[...] = vector[at : at + array.size].reshape(array.shape)
            at += array.size
