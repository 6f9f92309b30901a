"""Writes one rank's part and commits a checkpoint.

A part is written through `AsyncCheckpointWriter`, block by block and without a copy, while a thread
of the writer sends blocks to the storage. The part's checksums are computed meanwhile, but not
while the state is still being copied: training waits for the copy, and the copy needs the
processors. After that, two blocks are hashed for each block written, to catch up. xxh3 and the
writes release the GIL; acquiring it again is what disturbs the training thread, so blocks and
pieces are large.
"""

from collections.abc import Callable

import xxhash
from msgspec import structs

from strata.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    PIECE_BYTES,
    CheckpointPart,
    Manifest,
    SavedTensor,
    checksum,
    encode_manifest,
    part_checksum,
)
from strata.checkpoint.write.multipart_writer import BLOCK_BYTES, AsyncCheckpointWriter
from strata.checkpoint.write.staging import StateCapture
from strata.checkpoint.write.unchanged_tensors import LastSave, image_without, kept_tensors
from strata.errors import AlreadyExists, Conflict
from strata.storage.backend import StorageBackend


def part_file(rank: int) -> str:
    return f"part-{rank:05d}.safetensors"


class PartHasher:
    """The checksums of a capture's tensors, computed in the order of the file."""

    def __init__(self, capture: StateCapture) -> None:
        self._capture = capture
        self._digests: list[list[str]] = [[] for _ in capture.placed]
        self._starts = (
            (each.offset + at, min(PIECE_BYTES, each.source.size_bytes - at), digests)
            for each, digests in zip(capture.placed, self._digests, strict=True)
            for at in range(0, each.source.size_bytes, PIECE_BYTES)
        )
        self._next = next(self._starts, None)

    @property
    def reached(self) -> int:
        """The offset of the first piece that is not hashed yet."""
        return self._next[0] if self._next is not None else self._capture.size_bytes

    def up_to(self, offset: int) -> None:
        """Hash every piece that begins before `offset`."""
        while self._next is not None and self._next[0] < offset:
            start, size_bytes, digests = self._next
            digests.append(checksum(self._capture.view(start, size_bytes)))
            self._next = next(self._starts, None)

    def tensors(self) -> list[SavedTensor]:
        assert self._next is None, "every piece is hashed before the part is described"
        return [
            SavedTensor(
                name=each.name,
                dtype=each.source.dtype,
                shape=each.source.shape,
                offset=each.offset,
                size_bytes=each.source.size_bytes,
                xxh3=digests,
                shard=each.source.shard,
            )
            for each, digests in zip(self._capture.placed, self._digests, strict=True)
        ]


def write_part(
    storage: StorageBackend,
    checkpoint_id: str,
    rank: int,
    capture: StateCapture,
    *,
    recycle: str | None = None,
    progress: Callable[[int], None] = lambda written_bytes: None,
    local: object = None,
    last: LastSave | None = None,
) -> CheckpointPart:
    """Write one rank's part durably and return its description; it is not committed yet."""
    capture.complete()
    kept = kept_tensors(storage, checkpoint_id, rank, capture, last)
    if kept:
        capture, recycle = image_without(capture, kept), None
    hashing = PartHasher(capture)
    file = part_file(rank)

    with AsyncCheckpointWriter(
        storage,
        f"{checkpoint_id}/{file}",
        size_bytes=capture.size_bytes,
        recycle=recycle,
        acknowledged=progress,
    ) as writer:
        for start, segment in capture.segments:
            for at in range(0, segment.nbytes, BLOCK_BYTES):
                block = segment[at : at + BLOCK_BYTES]
                stop = start + at + block.nbytes
                capture.wait(stop)
                writer.write(block, copy=False)
                if capture.filled:
                    hashing.up_to(min(stop, hashing.reached + 2 * BLOCK_BYTES))
        hashing.up_to(capture.size_bytes)
    progress(capture.size_bytes)
    part = describe(capture, rank, hashing, local)
    return structs.replace(part, tensors=[*part.tensors, *kept]) if kept else part


def describe(
    capture: StateCapture, rank: int, hashing: PartHasher, local: object = None
) -> CheckpointPart:
    """The description of a part in the manifest, after all of it was hashed."""
    tensors = hashing.tensors()
    header_xxh3 = checksum(capture.header)
    return CheckpointPart(
        rank=rank,
        file=part_file(rank),
        size_bytes=capture.size_bytes,
        xxh3=part_checksum(header_xxh3, tensors),
        header_bytes=len(capture.header),
        header_xxh3=header_xxh3,
        piece_bytes=PIECE_BYTES,
        tensors=tensors,
        tree=capture.tree,
        local=local,
    )


def commit(storage: StorageBackend, manifest: Manifest) -> None:
    """Commit a checkpoint by writing its manifest. Repeating it with the same
    manifest is allowed.
    """
    name = manifest.checkpoint_id + MANIFEST_SUFFIX
    data = encode_manifest(manifest)
    try:
        storage.put(name, data, if_absent=True)
    except AlreadyExists:
        # A request whose answer was lost is sent again; then the manifest there is this one.
        if xxhash.xxh3_128_digest(storage.get(name)) != xxhash.xxh3_128_digest(data):
            raise Conflict(
                f"checkpoint {manifest.checkpoint_id} was committed by another process",
                hint="give the checkpoint another id",
            ) from None
