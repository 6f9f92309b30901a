"""Shards of larger tensors: given by the user, or known from PyTorch's DTensor.

`Sharded(array, global_shape, offsets)` says which box of a tensor an array holds. A DTensor (which
FSDP2 and tensor parallelism make of parameters) knows that itself, and also on how many ranks the
same box is: of copies, the rank with the lowest coordinates writes.
"""

import sys
from importlib import import_module
from typing import Any

from msgspec import Struct

from strata.checkpoint.manifest import SavedShard
from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.state.array_bytes import TensorSource, source_of
from strata.errors import InvalidArgument


class Sharded(Struct):
    """A box of a larger tensor; `array` holds it, `offsets` is its start along each axis."""

    array: Any
    global_shape: list[int]
    offsets: list[int]


def shard_of(value: Any) -> Sharded | None:
    """The shard that a value is; None for a whole array."""
    if isinstance(value, Sharded):
        return value
    return _local_piece(value) if is_dtensor(value) else None


def is_dtensor(value: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_duplicate_shard(value: Any) -> bool:
    """Whether another rank holds the same box and writes it."""
    if not is_dtensor(value):
        return False
    coordinates = value.device_mesh.get_coordinate() or []
    return any(
        placement.is_replicate() and place > 0
        for placement, place in zip(value.placements, coordinates, strict=False)
    )


def sharded_source(value: Any, where: str) -> TensorSource | None:
    """The description of a shard of a larger tensor; None for a whole array."""
    piece = shard_of(value)
    if piece is None:
        return None
    source = source_of(piece.array, where)
    source.shard = shard_box(piece, source)
    if not Box(source.shard.offsets, source.shape).within(source.shard.global_shape):
        raise InvalidArgument(
            f"{where} at {piece.offsets} with shape {source.shape} is not within "
            f"{piece.global_shape}",
            hint="offsets and whole shape count elements along each axis of the array",
        )
    source.duplicate = is_duplicate_shard(value)
    return source


def shard_box(piece: Sharded, source: TensorSource) -> SavedShard:
    """The box of a shard; elements that are stored as bytes add one axis, which is whole."""
    if source.raw_dtype is None:
        return SavedShard([*piece.global_shape], [*piece.offsets])
    return SavedShard([*piece.global_shape, source.item_bytes], [*piece.offsets, 0])


def _local_piece(value: Any) -> Sharded:
    """A DTensor's own box, as PyTorch computes it, for any placements."""
    if any(placement.is_partial() for placement in value.placements):
        raise InvalidArgument(
            "a DTensor with a pending reduction cannot be saved", hint="redistribute it first"
        )
    compute = import_module("torch.distributed.tensor._utils").compute_local_shape_and_global_offset
    shape, offsets = compute(value.shape, value.device_mesh, value.placements)
    local = value.to_local()
    if [*local.shape] != [*shape]:
        raise InvalidArgument(
            f"a DTensor holds {[*local.shape]}, but {value.placements} means {[*shape]}",
            hint="save it with Shard and Replicate placements",
        )
    for axis in {each.dim for each in value.placements if hasattr(each, "split_factor")}:
        require_contiguous(value, axis)
    if 0 in shape:  # for an empty box PyTorch returns an offset at the end, or beyond
        offsets = [min(o, n) for o, n in zip(offsets, value.shape, strict=True)]
    return Sharded(local, [*value.shape], [*offsets])


def require_contiguous(value: Any, axis: int) -> None:
    """Raise for a DTensor whose indices along an axis are not contiguous, so that it is not a box.

    FSDP2 over tensor parallelism cuts an axis twice, the inner mesh dimension first (PyTorch's
    `_StridedShard`), and gets contiguous ranges; other orders interleave the indices.
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
            f"a DTensor with placements {value.placements} holds indices of axis {axis} that "
            "are not contiguous",
            hint="cut an axis with FSDP2 over tensor parallelism, or into equal parts",
        )
