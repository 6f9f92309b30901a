"""Checks that replicated tensors are equal on all ranks.

Tensors that every rank holds are written once, some by each rank. If replicas have diverged, such a
checkpoint is a mixture that no rank ever held. So each rank computes an eight-byte digest of every
replicated tensor at the moment of the save, and the coordinator compares them before it commits.
Shards (`Sharded`, DTensor) and the random state differ between ranks and are not compared.

The cost is on the training thread, since the state must not change meanwhile. On the host, what a
rank does not write itself is hashed with xxh3, by up to four threads: one thread hashes 38 GiB/s
here and copies 21, so two ranks pause for about one and a half times as long as for their copies,
and many ranks for about half of what one rank alone would copy. What a rank writes is hashed
anyway, in the background. On a CUDA device the kernels are only started (see `device_checksums`).
"""

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from msgspec import Struct, field

from strata.checkpoint.manifest import PIECE_BYTES, CheckpointPart
from strata.checkpoint.state.array_bytes import Bytes, TensorSource, is_torch
from strata.checkpoint.write.device_checksums import RowSums
from strata.checkpoint.write.rank_shares import cut
from strata.checkpoint.write.staging_copy import COPY_THREADS, PARALLEL_BYTES
from strata.errors import InvalidArgument
from strata.storage.io_threads import for_each

if TYPE_CHECKING:
    from strata.checkpoint.write.part_sidecar import Sidecar

DIGEST_BYTES = 8
ON_HOST, ON_DEVICE = b"h", b"d"
SHOWN = 5


class Replicas(Struct, frozen=True, omit_defaults=True):
    """The digests of a rank: eight bytes for each replicated tensor, in the order of the names,
    which rank 0 sends. The last byte says where the tensor was, since that decides how it is
    hashed.
    """

    digests: bytes = b""
    names: list[str] = field(default_factory=list)


class DigestBox(Struct):
    """A part of a tensor, and the checksums of its pieces; those that this rank writes are added
    later.
    """

    source: TensorSource
    own: bool
    digests: list[bytes] = field(default_factory=list)


class ReplicaDigests:
    """The digests of one rank. The training thread calls `take` before the state may change, and
    the writing thread `finish` after the part is written.
    """

    def __init__(
        self,
        sources: dict[str, TensorSource],
        own: dict[str, TensorSource],
        rank: int,
        world_size: int,
    ) -> None:
        whole = {n: s for n, s in sources.items() if s.shard is None and world_size > 1}
        self._names = sorted(whole)
        self._rank = rank
        self._boxes = {
            name: boxes_of(source, own.get(name), rank, world_size)
            for name, source in whole.items()
            if not on_cuda(source)
        }
        self._devices: dict[Any, list[str]] = defaultdict(list)
        for name in self._names:
            if name not in self._boxes:
                self._devices[whole[name].value.device].append(name)
        self._whole = whole
        self._sums: list[tuple[list[str], RowSums]] = []

    def take(self) -> None:
        """Hash what must be hashed before the state changes; on devices only start it."""
        torch = sys.modules.get("torch")
        for device, names in self._devices.items():
            tensors = [self._whole[name].value for name in names]
            self._sums.append((names, RowSums(torch, device, tensors)))
        boxes = [box for some in self._boxes.values() for box in some if not box.own]
        total = sum(box.source.size_bytes for box in boxes)
        for_each(hash_box, boxes, COPY_THREADS if total >= PARALLEL_BYTES else 1)
        self._whole = {}  # the state may change now, and its memory be freed

    def finish(self, part: CheckpointPart) -> Replicas:
        """The digest of every replicated tensor, including those written meanwhile."""
        written = {tensor.name: tensor.xxh3 for tensor in part.tensors}
        found: dict[str, bytes] = {}
        for name, boxes in self._boxes.items():
            pieces = [
                bytes.fromhex("".join(written[name])) if box.own else b"".join(box.digests)
                for box in boxes
            ]
            found[name] = digest(b"".join(pieces), ON_HOST)
        for names, sums in self._sums:
            for name, rows in zip(names, sums.read(), strict=True):
                found[name] = digest(rows, ON_DEVICE)
        return Replicas(
            digests=b"".join(found[name] for name in self._names),
            names=self._names if self._rank == 0 else [],
        )


def on_cuda(source: TensorSource) -> bool:
    return is_torch(source.value) and bool(source.value.is_cuda)


def boxes_of(
    source: TensorSource, own: TensorSource | None, rank: int, world_size: int
) -> list[DigestBox]:
    """A tensor as it is written: whole by one rank, or some rows by each."""
    if own is None or own.shard is None:
        return [DigestBox(source, own is not None)]
    return [
        DigestBox(own if each == rank else cut(source, each, world_size), each == rank)
        for each in range(world_size)
    ]


def hash_box(box: DigestBox) -> None:
    """xxh3 of each piece, as in the part of the rank that writes it."""
    flat: Bytes | None = box.source.flat()
    if flat is None:
        flat = np.empty(box.source.size_bytes, np.uint8)
        box.source.copy_into(flat)
    box.digests = [
        xxhash.xxh3_64_digest(flat[at : at + PIECE_BYTES].data)
        for at in range(0, flat.nbytes, PIECE_BYTES)
    ]


def digest(pieces: bytes, where: bytes) -> bytes:
    return xxhash.xxh3_64_digest(pieces)[: DIGEST_BYTES - 1] + where


def require_same(sidecars: "list[Sidecar]") -> None:
    """Raise if ranks held different values; the error names the ranks and the tensors."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for each in sidecars:
        groups[each.replicas.digests].append(each.part.rank)
    if len(groups) == 1:
        return
    (most, ranks), *others = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    names = next((each.replicas.names for each in sidecars if each.replicas.names), [])
    differences = "; ".join(
        f"{numbered(those)} differs from {numbered(ranks)} in {difference(most, digests, names)}"
        for digests, those in others[:SHOWN]
    )
    raise InvalidArgument(
        f"the replicas have diverged: {differences}",
        hint="average the gradients and synchronise the buffers on every rank; "
        "save values that differ by rank as shards with strata.Sharded, or leave them out",
    )


def difference(one: bytes, other: bytes, names: list[str]) -> str:
    """The tensors that differ between two ranks, as text."""
    places = range(0, max(len(one), len(other)), DIGEST_BYTES)
    pairs = [(one[at : at + DIGEST_BYTES], other[at : at + DIGEST_BYTES]) for at in places]
    different = [at for at, (mine, yours) in enumerate(pairs) if mine != yours]
    shown = ", ".join(
        (repr(names[at]) if at < len(names) else f"tensor {at}")
        + (" (in host memory on one, on a device on the other)" if is_mixed(*pairs[at]) else "")
        for at in different[:SHOWN]
    )
    more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return f"{len(different)} of {len(pairs)} tensors: {shown}{more}"


def is_mixed(one: bytes, other: bytes) -> bool:
    return one[-1:] != other[-1:]


def numbered(ranks: list[int]) -> str:
    """Ranks as text."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return f"ranks {shown}" + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
