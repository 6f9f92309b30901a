"""What a worker learned in a round, as a vector: made small, added up, and applied.

An *update* is how far a worker's weights have come since the round began, as one vector of float32.
It travels as eight-bit codes with one scale for every `BLOCK` values, of all values or of the
largest only. What that leaves out is not lost: the worker adds it to its next update (error
feedback). Values at the vector's end may be sent exactly: running statistics, which are averaged
and not learned.

The outer optimizer takes the mean update for a gradient and steps with Nesterov momentum.
"""

from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.errors import Corrupt, InvalidArgument

Vector: TypeAlias = NDArray[np.float32]

BLOCK = 1_024
LEVELS = 127
MAX_SIZE = 1 << 32


class Update(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An update as it travels. `begun` is the checksum of what its author's round began with.

    The first `size` - `exact` values are `codes` times the scale of their block, at `indexes` where
    only some were sent; the last ones are `exact` as they are. `weight` is how much it counts.
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
    """An update that sends this share of the values in eight bits, and the last ones exactly."""
    if not np.isfinite(vector).all():
        raise InvalidArgument(
            "the weights are not finite after this round", hint="lower the inner learning rate"
        )
    learned, last = vector[: vector.size - exact], vector[vector.size - exact :]
    indexes = _largest(learned, keep)
    scales, codes = _quantized(learned if indexes is None else learned[indexes])
    return msgspec.msgpack.encode(
        Update(
            author,
            begun,
            vector.size,
            weight,
            scales.tobytes(),
            codes.tobytes(),
            b"" if indexes is None else indexes.astype("<u4").tobytes(),
            last.astype("<f4").tobytes(),
        )
    )


def read_update(data: bytes | bytearray) -> Update:
    """What travelled, taken apart; raises `Corrupt` where that makes no sense."""
    try:
        update = msgspec.msgpack.decode(data, type=Update)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"an update cannot be read: {error}") from error
    if not (0 <= update.weight < float("inf") and 0 <= update.size <= MAX_SIZE):
        raise Corrupt(f"an update counts {update.weight} and has {update.size} values")
    return update


def unpacked(update: Update) -> Vector:
    """The vector of an update, as everyone sees it."""
    exact = np.frombuffer(update.exact, "<f4") if len(update.exact) % 4 == 0 else None
    scales = np.frombuffer(update.scales, "<f4") if len(update.scales) % 4 == 0 else None
    sent = len(update.codes)
    if exact is None or scales is None or scales.size != -(-sent // BLOCK):
        raise Corrupt("the parts of an update do not fit together")
    if not (np.isfinite(exact).all() and np.isfinite(scales).all()):
        raise Corrupt("an update has values that are not finite")
    learned = update.size - exact.size
    values = np.frombuffer(update.codes, np.int8).astype(np.float32)
    values *= np.repeat(scales, BLOCK)[:sent]
    vector = np.zeros(update.size, np.float32)
    if update.indexes:
        indexes = np.frombuffer(update.indexes, "<u4") if len(update.indexes) == 4 * sent else None
        if indexes is None or learned <= 0 or indexes.max() >= learned:
            raise Corrupt("an update names values that it does not have")
        vector[indexes] = values
    elif sent == learned:
        vector[:learned] = values
    else:
        raise Corrupt(f"an update of {learned} values has {sent}")
    vector[learned:] = exact
    return vector


def _largest(vector: Vector, keep: float) -> NDArray[Any] | None:
    """Where the largest values are, in order; None when all are wanted."""
    count = max(int(vector.size * keep), 1)
    if count >= vector.size:
        return None
    return np.sort(np.argpartition(np.abs(vector), -count)[-count:])


def _quantized(values: Vector) -> tuple[Vector, NDArray[np.int8]]:
    """Eight-bit codes, and the scale of each block of them."""
    blocks = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values
    scales = (np.abs(blocks).max(axis=1) / LEVELS).astype("<f4")
    blocks /= np.where(scales > 0, scales, 1)[:, None]
    return scales, np.rint(blocks).astype(np.int8).reshape(-1)[: values.size]


class Outer:
    """Steps with the mean of all updates, as with a gradient: descent with Nesterov momentum."""

    def __init__(self, size: int, exact: int, rate: float, momentum: float) -> None:
        if not (0 < rate <= 2 and 0 <= momentum < 1):
            raise InvalidArgument(
                f"outer rate {rate:g} and momentum {momentum:g}",
                hint="use a rate above 0, such as 0.7, and a momentum from 0 to below 1",
            )
        self.velocity: Vector = np.zeros(size - exact, np.float32)
        self._rate, self._momentum = np.float32(rate), np.float32(momentum)

    def step(self, start: Vector, mean: Vector) -> Vector:
        """The weights after a round that began with `start`."""
        stepped = start + mean  # right for what is averaged and not learned
        learned = self.velocity.size
        self.velocity *= self._momentum
        self.velocity += mean[:learned]
        stepped[:learned] = start[:learned] + self._rate * (
            mean[:learned] + self._momentum * self.velocity
        )
        return stepped
