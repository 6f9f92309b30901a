"""Pieces of larger tensors: named by the user, or known from PyTorch's DTensor.

`Sharded(array, global_shape, offsets)` says which box of a tensor an array holds. A DTensor (what
FSDP2 and tensor parallelism make of parameters) knows that by itself, and also on how many ranks
the same box lies: of copies, the rank with the lowest coordinates is the one that writes.
"""

import sys
from importlib import import_module
from typing import Any

from msgspec import Struct

from strata.checkpoint.arrays import Source, source_of
from strata.checkpoint.format import Shard
from strata.checkpoint.reshard import Box
from strata.errors import InvalidArgument


class Sharded(Struct):
    """A box of a larger tensor; `array` holds it, `offsets` is where it begins along each axis."""

    array: Any
    global_shape: list[int]
    offsets: list[int]


def piece_of(value: Any) -> Sharded | None:
    """The piece that a value is; None for one that is whole."""
    if isinstance(value, Sharded):
        return value
    return _local_piece(value) if is_dtensor(value) else None


def is_dtensor(value: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_spare_copy(value: Any) -> bool:
    """Whether another rank holds the same box and is the one to write it."""
    if not is_dtensor(value):
        return False
    coordinates = value.device_mesh.get_coordinate() or []
    return any(
        placement.is_replicate() and place > 0
        for placement, place in zip(value.placements, coordinates, strict=False)
    )


def sharded_source(value: Any, where: str) -> Source | None:
    """Describes a piece of a larger tensor; None for a value that is whole."""
    piece = piece_of(value)
    if piece is None:
        return None
    source = source_of(piece.array, where)
    source.shard = boxed(piece, source)
    if not Box(source.shard.offsets, source.shape).within(source.shard.global_shape):
        raise InvalidArgument(
            f"{where} at {piece.offsets} with shape {source.shape} is not within "
            f"{piece.global_shape}",
            hint="offsets and whole shape count elements along each axis of the array",
        )
    source.spare = is_spare_copy(value)
    return source


def boxed(piece: Sharded, source: Source) -> Shard:
    """Where a piece lies; elements that are stored as bytes are one more axis, which is whole."""
    if source.raw_dtype is None:
        return Shard([*piece.global_shape], [*piece.offsets])
    return Shard([*piece.global_shape, source.item_bytes], [*piece.offsets, 0])


def _local_piece(value: Any) -> Sharded:
    """A DTensor's own box, as PyTorch computes it, whatever its placements are."""
    if any(placement.is_partial() for placement in value.placements):
        raise InvalidArgument(
            "a DTensor with a pending reduction cannot be saved", hint="redistribute it first"
        )
    compute = import_module("torch.distributed.tensor._utils").compute_local_shape_and_global_offset
    shape, offsets = compute(value.shape, value.device_mesh, value.placements)
    local = value.to_local()
    if [*local.shape] != [*shape]:
        raise InvalidArgument(
            f"a DTensor holds {[*local.shape]} where {value.placements} means {[*shape]}",
            hint="save it with Shard and Replicate placements",
        )
    for axis in {each.dim for each in value.placements if hasattr(each, "split_factor")}:
        require_run(value, axis)
    if 0 in shape:  # PyTorch says that an empty box begins at the end, or beyond
        offsets = [min(o, n) for o, n in zip(offsets, value.shape, strict=True)]
    return Sharded(local, [*value.shape], [*offsets])


def require_run(value: Any, axis: int) -> None:
    """Refuses a DTensor whose indices along an axis are not one run, so that it is not a box.

    FSDP2 over tensor parallelism cuts an axis twice, the inner mesh dimension first (PyTorch's
    `_StridedShard`), and gets runs; other orders deal the indices out like cards.
    """
    torch: Any = sys.modules["torch"]
    indices = torch.arange(value.shape[axis])
    coordinates = value.device_mesh.get_coordinate()
    for dimension, placement in enumerate(value.placements):
        if getattr(placement, "dim", None) == axis:
            factor = getattr(placement, "split_factor", None)
            first = {"dim": 0} if factor is None else {"dim": 0, "split_factor": factor}
            pieces, _ = type(placement)(**first)._split_tensor(
                indices, value.device_mesh.size(dimension), with_padding=False, contiguous=False
            )
            indices = pieces[coordinates[dimension]]
    if len(indices) and int(indices[-1] - indices[0]) != len(indices) - 1:
        raise InvalidArgument(
            f"a DTensor with placements {value.placements} holds indices of axis {axis} that do "
            f"not lie side by side",
            hint="cut an axis with FSDP2 over tensor parallelism, or into equal parts",
        )
