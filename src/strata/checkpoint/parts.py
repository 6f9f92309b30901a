"""Writing one rank's part and committing a checkpoint.

A part goes out through `AsyncCheckpointWriter`, block by block and without a copy, while a thread
of the writer carries blocks to the storage. The part's checksums are taken meanwhile. As long as
the state is still being copied none are: training waits for that, and the processors are needed for
it. Afterwards two blocks are hashed for each that goes out, so as to catch up. xxh3 and the writes
let go of the GIL; what disturbs the training thread is how often they ask for it again, so blocks
and pieces are large.
"""

from collections.abc import Callable

import xxhash
from msgspec import structs

from strata.checkpoint.format import (
    MANIFEST_SUFFIX,
    PIECE_BYTES,
    Manifest,
    Part,
    Tensor,
    checksum,
    encode_manifest,
    part_checksum,
)
from strata.checkpoint.reuse import Saved, kept_tensors, without
from strata.checkpoint.staging import Capture
from strata.checkpoint.writer import BLOCK_BYTES, AsyncCheckpointWriter
from strata.errors import AlreadyExists, Conflict
from strata.storage.base import StorageBackend


def part_file(rank: int) -> str:
    return f"part-{rank:05d}.safetensors"


class Hashing:
    """The checksums of a capture's tensors, taken in the order of the file."""

    def __init__(self, capture: Capture) -> None:
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
        """Where the first piece begins that is not hashed."""
        return self._next[0] if self._next is not None else self._capture.size_bytes

    def up_to(self, offset: int) -> None:
        """Hashes every piece that begins before `offset`."""
        while self._next is not None and self._next[0] < offset:
            start, size_bytes, digests = self._next
            digests.append(checksum(self._capture.view(start, size_bytes)))
            self._next = next(self._starts, None)

    def tensors(self) -> list[Tensor]:
        assert self._next is None, "every piece is hashed before the part is described"
        return [
            Tensor(
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
    capture: Capture,
    *,
    recycle: str | None = None,
    progress: Callable[[int], None] = lambda written_bytes: None,
    local: object = None,
    last: Saved | None = None,
) -> Part:
    """Makes one rank's part durable; it is described by what is returned, and not committed."""
    capture.complete()
    kept = kept_tensors(storage, checkpoint_id, rank, capture, last)
    if kept:
        capture, recycle = without(capture, kept), None
    hashing = Hashing(capture)
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


def describe(capture: Capture, rank: int, hashing: Hashing, local: object = None) -> Part:
    """A part as the manifest tells it, when all of it is hashed."""
    tensors = hashing.tensors()
    header_xxh3 = checksum(capture.header)
    return Part(
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
    """Makes a checkpoint real. Doing it again with the same manifest changes nothing."""
    name = manifest.checkpoint_id + MANIFEST_SUFFIX
    data = encode_manifest(manifest)
    try:
        storage.put(name, data, if_absent=True)
    except AlreadyExists:
        # A request that was answered too late is sent again; then the manifest there is this one.
        if xxhash.xxh3_128_digest(storage.get(name)) != xxhash.xxh3_128_digest(data):
            raise Conflict(
                f"checkpoint {manifest.checkpoint_id} was committed by somebody else",
                hint="give the checkpoint another id",
            ) from None
