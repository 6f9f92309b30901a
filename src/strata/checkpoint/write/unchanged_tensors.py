"""Skips tensors that have not changed since the last save.

Frozen weights (the base of a LoRA, an embedding that is not trained) are the same in every
checkpoint. Each tensor whose first and last bytes are unchanged is hashed; if all checksums equal
those of the last committed checkpoint, the new one refers to the existing file.

This is safe with retention: the file becomes a file of the new checkpoint as well, by a hard link
or, in a bucket, by a copy on the server. Deleting the old checkpoint removes its name, not the
bytes; a file with two names is never recycled. A storage without links writes everything.
"""

from msgspec import Struct, field, structs

from strata.checkpoint.manifest import (
    PIECE_BYTES,
    CheckpointPart,
    SavedTensor,
    checksum,
    header_image,
)
from strata.checkpoint.write.staging import StateCapture
from strata.checkpoint.write.staging_copy import LARGE_BYTES, PlacedTensor
from strata.storage.backend import LinkingStorage, StorageBackend

WORTH_SHARE = 0.1
"""If less than this fraction of a state is unchanged, everything is written: a second file to read
is not worth it.
"""


class LastSave(Struct, frozen=True):
    """What a rank committed last; `edge_checksums` shows quickly which tensors have changed."""

    checkpoint_id: str
    part: CheckpointPart
    edge_checksums: dict[str, str] = field(default_factory=dict)


def edge_checksums(capture: StateCapture) -> dict[str, str]:
    """A checksum of the two ends of every tensor that is large enough to be worth referring to."""
    return {
        each.name: checksum(capture.ends(each))
        for each in capture.placed
        if each.source.size_bytes >= LARGE_BYTES
    }


def kept_tensors(
    storage: StorageBackend,
    checkpoint_id: str,
    rank: int,
    capture: StateCapture,
    last: LastSave | None,
) -> list[SavedTensor]:
    """The tensors that are already in the last checkpoint; their files are linked into this one."""
    if last is None or not isinstance(storage, LinkingStorage):
        return []
    now, before = edge_checksums(capture), {tensor.name: tensor for tensor in last.part.tensors}
    same = [
        before[each.name]
        for each in capture.placed
        if each.name in before
        and now.get(each.name, "") == last.edge_checksums.get(each.name)
        and _unchanged(capture, each, before[each.name])
    ]
    if sum(tensor.size_bytes for tensor in same) < WORTH_SHARE * capture.size_bytes:
        return []
    names: dict[str, str] = {}
    for tensor in same:
        names.setdefault(tensor.file or last.part.file, f"kept-{rank:05d}-{len(names)}.safetensors")
    for file, name in names.items():
        if not storage.link(f"{last.checkpoint_id}/{file}", f"{checkpoint_id}/{name}"):
            return []
    return [structs.replace(tensor, file=names[tensor.file or last.part.file]) for tensor in same]


def _unchanged(capture: StateCapture, each: PlacedTensor, before: SavedTensor) -> bool:
    source = each.source
    if (source.dtype, source.shape, source.shard) != (before.dtype, before.shape, before.shard):
        return False
    return all(
        checksum(capture.view(each.offset + at, min(PIECE_BYTES, source.size_bytes - at))) == digest
        for at, digest in zip(range(0, source.size_bytes, PIECE_BYTES), before.xxh3, strict=True)
    )


def image_without(capture: StateCapture, kept: list[SavedTensor]) -> StateCapture:
    """The image of a part without the tensors that are kept elsewhere."""
    gone = {tensor.name for tensor in kept}
    left = [each for each in capture.placed if each.name not in gone]
    header = header_image(
        [(e.name, e.source.dtype, e.source.shape, e.source.size_bytes) for e in left], {}
    )
    placed, offset = [], len(header)
    segments = [(0, memoryview(header))]
    for each in left:
        placed.append(PlacedTensor(each.name, each.source, offset))
        if each.source.size_bytes:
            segments.append((offset, capture.view(each.offset, each.source.size_bytes)))
        offset += each.source.size_bytes
    return StateCapture(
        tree=capture.tree, header=header, placed=placed, segments=segments, size_bytes=offset
    )
