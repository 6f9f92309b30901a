"""Saves a state as N ranks do, in one process: each writes its share and its sidecar."""

from collections.abc import Callable

from strata.checkpoint.manifest import Manifest
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.state.stateful import plain
from strata.checkpoint.write.part_sidecar import (
    Sidecar,
    manifest_of,
    read_sidecars,
    write_sidecar,
)
from strata.checkpoint.write.part_writer import commit, write_part
from strata.checkpoint.write.rank_shares import own_share, shape_digest
from strata.checkpoint.write.staging import Staging
from strata.storage.backend import StorageBackend

CHECKPOINT = "step-00000007-1"


def save_as_ranks(
    storage: StorageBackend,
    state_of: Callable[[int], object],
    world_size: int = 4,
    checkpoint_id: str = CHECKPOINT,
) -> Manifest:
    """Commit the checkpoint of a step; `state_of(rank)` is what a rank holds."""
    checksums = {}
    for rank in range(world_size):
        flat = flatten(plain(state_of(rank)))
        sources = own_share(flat, rank, world_size)
        capture = Staging().capture(FlatState(flat.tree if rank == 0 else None, sources), {})
        part = write_part(storage, checkpoint_id, rank, capture)
        sidecar = Sidecar(
            checkpoint_id=checkpoint_id,
            step=7,
            epoch=0,
            attempt=1,
            world_size=world_size,
            shapes=shape_digest(flat),
            part=part,
        )
        write_sidecar(storage, sidecar)
        checksums[rank] = part.xxh3
    manifest = manifest_of(read_sidecars(storage, checkpoint_id, checksums), 1, 1)
    commit(storage, manifest)
    return manifest
