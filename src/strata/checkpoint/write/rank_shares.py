"""Divides a state that several ranks hold among the ranks that write it.

A shard of a sharded tensor is written by its owner. Tensors that every rank holds are written once:
one that is large compared with a rank's fair share is cut into rows, the others go, largest first,
to the rank with the least. Every rank computes the same result from names and sizes, without
communication.
"""

import heapq

from strata.checkpoint.manifest import SavedShard, checksum
from strata.checkpoint.read.box_overlaps import even_cuts
from strata.checkpoint.state.array_bytes import TensorSource
from strata.checkpoint.state.state_tree import FlatState

CUT_SHARE = 0.5
"""A tensor above this fraction of a rank's fair share is cut, so that parts
have about equal sizes.
"""


def own_share(flat: FlatState, rank: int, world_size: int) -> dict[str, TensorSource]:
    """The sources that a rank writes, by name."""
    whole = {name: source for name, source in flat.sources.items() if source.shard is None}
    own = {
        name: source
        for name, source in flat.sources.items()
        if source.shard is not None and not source.duplicate
    }
    fair_bytes = sum(source.size_bytes for source in whole.values()) / world_size
    large = {
        name
        for name, source in whole.items()
        if source.size_bytes > fair_bytes * CUT_SHARE and rows(source) >= world_size > 1
    }
    for name in large:
        own[name] = cut(whole[name], rank, world_size)
    rest = {name: whole[name].size_bytes for name in whole if name not in large}
    own.update({name: whole[name] for name in assigned_names(rest, world_size)[rank]})
    return own


def rows(source: TensorSource) -> int:
    """The number of rows that a source can be cut into along its first axis."""
    return int(source.value.shape[0]) if len(source.value.shape) else 1


def cut(source: TensorSource, rank: int, world_size: int) -> TensorSource:
    """A rank's rows of a source."""
    edges = even_cuts(rows(source), world_size)
    start, stop = int(edges[rank]), int(edges[rank + 1])
    shape = [stop - start, *source.shape[1:]]
    return TensorSource(
        value=source.value[start:stop],
        kind=source.kind,
        dtype=source.dtype,
        shape=shape,
        size_bytes=source.size_bytes // source.shape[0] * (stop - start),
        item_bytes=source.item_bytes,
        raw_dtype=source.raw_dtype,
        shard=SavedShard(source.shape, [start] + [0] * (len(shape) - 1)),
    )


def assigned_names(sizes: dict[str, int], world_size: int) -> list[list[str]]:
    """The names for each rank, with about equal total sizes."""
    hands: list[list[str]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        load, rank = heapq.heappop(loads)
        hands[rank].append(name)
        heapq.heappush(loads, (load + sizes[name], rank))
    return hands


def shape_digest(flat: FlatState) -> str:
    """A digest that is equal for ranks that hold the same tensors: names, types
    and whole shapes.
    """
    described = sorted(
        f"{name} {source.dtype} {source.shard.global_shape if source.shard else source.shape}"
        for name, source in flat.sources.items()
    )
    return checksum("\n".join(described).encode())
