"""Who writes what of a state that several ranks hold.

A piece of a sharded tensor is written by its owner. What every rank holds alike is written once:
a tensor that is large against a rank's fair share is cut into rows, the rest go, largest first, to
whoever has the least. Every rank computes the same from names and sizes, so nobody has to ask.
"""

import heapq

from strata.checkpoint.arrays import Source
from strata.checkpoint.format import Shard, checksum
from strata.checkpoint.reshard import even_cuts
from strata.checkpoint.tree import Flat

CUT_SHARE = 0.5
"""A tensor above this part of a rank's fair share is cut, so that parts come out about equal."""


def own_share(flat: Flat, rank: int, world_size: int) -> dict[str, Source]:
    """The sources that a rank writes, by name."""
    whole = {name: source for name, source in flat.sources.items() if source.shard is None}
    own = {
        name: source
        for name, source in flat.sources.items()
        if source.shard is not None and not source.spare
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
    own.update({name: whole[name] for name in dealt(rest, world_size)[rank]})
    return own


def rows(source: Source) -> int:
    """How many pieces a source can be cut into along its first axis."""
    return int(source.value.shape[0]) if len(source.value.shape) else 1


def cut(source: Source, rank: int, world_size: int) -> Source:
    """A rank's rows of a source."""
    edges = even_cuts(rows(source), world_size)
    start, stop = int(edges[rank]), int(edges[rank + 1])
    shape = [stop - start, *source.shape[1:]]
    return Source(
        value=source.value[start:stop],
        kind=source.kind,
        dtype=source.dtype,
        shape=shape,
        size_bytes=source.size_bytes // source.shape[0] * (stop - start),
        item_bytes=source.item_bytes,
        raw_dtype=source.raw_dtype,
        shard=Shard(source.shape, [start] + [0] * (len(shape) - 1)),
    )


def dealt(sizes: dict[str, int], world_size: int) -> list[list[str]]:
    """Names by rank, so that sizes come out about equal."""
    hands: list[list[str]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        load, rank = heapq.heappop(loads)
        hands[rank].append(name)
        heapq.heappush(loads, (load + sizes[name], rank))
    return hands


def shape_digest(flat: Flat) -> str:
    """The same for ranks that hold the same tensors: names, types and whole shapes."""
    described = sorted(
        f"{name} {source.dtype} {source.shard.global_shape if source.shard else source.shape}"
        for name, source in flat.sources.items()
    )
    return checksum("\n".join(described).encode())
