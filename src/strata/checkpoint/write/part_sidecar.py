"""The sidecar that a rank writes beside its part, and the manifest made of all sidecars.

    step-00000100-7/part-00003.safetensors    the part
    step-00000100-7/part-00003.json           its sidecar

A sidecar holds everything that the manifest needs from a rank, so that any process that has every
sidecar can finish the checkpoint, also after a crash: the same sidecars always give the same
manifest.
"""

import time
from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
from msgspec import Struct, field

from strata.checkpoint.manifest import CheckpointPart, Manifest, SavedTensor
from strata.checkpoint.write.part_writer import part_file
from strata.checkpoint.write.replica_digests import Replicas, require_same
from strata.errors import UNDECODABLE, Corrupt, NotFound
from strata.storage.backend import StorageBackend
from strata.storage.io_threads import THREADS, for_each

NEAR_S = 0.002


class Sidecar(Struct, frozen=True, kw_only=True):
    """A rank's part and what it knew when it saved. `shapes` is equal for ranks that hold the same
    tensors (see `rank_shares.shape_digest`), `replicas` for ranks that hold the same values.
    """

    checkpoint_id: str
    step: int
    epoch: int
    attempt: int
    world_size: int
    shapes: str
    replicas: Replicas = Replicas()
    metadata: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    part: CheckpointPart


def sidecar_name(checkpoint_id: str, rank: int) -> str:
    return f"{checkpoint_id}/{part_file(rank).removesuffix('.safetensors')}.json"


def write_sidecar(storage: StorageBackend, sidecar: Sidecar) -> None:
    name = sidecar_name(sidecar.checkpoint_id, sidecar.part.rank)
    storage.put(name, msgspec.json.encode(sidecar))


def read_sidecars(
    storage: StorageBackend, checkpoint_id: str, checksums: Mapping[int, str]
) -> list[Sidecar]:
    """The sidecar of every rank, in order; each must describe the part that was acknowledged.

    The time of the first read decides whether threads are used. A thousand from a folder took 24 ms
    with one thread and 110 ms with eight, which wait for each other; from S3 threads help.
    """
    found: dict[int, Sidecar] = {}

    def read(rank: int) -> None:
        found[rank] = _read(storage, checkpoint_id, rank, checksums[rank])

    first, *others = sorted(checksums)
    begun_s = time.monotonic()
    read(first)
    near = time.monotonic() - begun_s < NEAR_S
    for_each(read, others, 1 if near else THREADS)
    return [found[rank] for rank in sorted(found)]


def _read(storage: StorageBackend, checkpoint_id: str, rank: int, checksum: str) -> Sidecar:
    name = sidecar_name(checkpoint_id, rank)
    try:
        sidecar = msgspec.json.decode(storage.get(name), type=Sidecar)
    except NotFound as error:
        raise NotFound(
            f"the part of rank {rank} is not in {storage.url}",
            hint="coordinator and workers must use the same storage: set the same CHECKPOINT_DIR "
            "for both, or use S3",
        ) from error
    except UNDECODABLE as error:
        raise Corrupt(f"{storage.url}/{name} is damaged: {error}") from error
    if sidecar.part.rank != rank or sidecar.part.xxh3 != checksum:
        raise Corrupt(f"{storage.url}/{name} does not describe the part that was acknowledged")
    return sidecar


def manifest_of(sidecars: list[Sidecar], sequence: int, created_ns: int) -> Manifest:
    """The manifest of all parts; raises for parts that do not belong together."""
    first = sidecars[0]
    for each in sidecars:
        if (each.step, each.attempt, each.shapes) != (first.step, first.attempt, first.shapes):
            raise Corrupt(
                f"rank {each.part.rank} saved different tensors, or a different step, than rank "
                f"{first.part.rank}",
                hint="every rank must save the same names, types and whole shapes; mark shards "
                "with strata.Sharded",
            )
    require_same(sidecars)
    require_whole(first.checkpoint_id, [tensor for s in sidecars for tensor in s.part.tensors])
    return Manifest(
        checkpoint_id=first.checkpoint_id,
        step=first.step,
        epoch=first.epoch,
        sequence=sequence,
        created_ns=created_ns,
        size_bytes=sum(each.part.size_bytes for each in sidecars),
        world_size=len(sidecars),
        attempt=first.attempt,
        metadata=first.metadata,
        data=first.data,
        metrics=first.metrics,
        parts=[each.part for each in sidecars],
    )


def require_whole(checkpoint_id: str, tensors: list[SavedTensor]) -> None:
    """Raise if some of a tensor was written by no rank."""
    written: dict[str, dict[tuple[int, ...], int]] = {}
    for tensor in tensors:
        offsets = tuple(tensor.shard.offsets) if tensor.shard else ()
        written.setdefault(tensor.name, {})[offsets] = prod(tensor.shape)
    for tensor in tensors:
        whole = tensor.shard.global_shape if tensor.shard else tensor.shape
        if sum(written[tensor.name].values()) < prod(whole):
            raise Corrupt(
                f"no rank wrote all of {tensor.name!r} in checkpoint {checkpoint_id}",
                hint="the pieces that ranks save must cover the whole tensor",
            )
