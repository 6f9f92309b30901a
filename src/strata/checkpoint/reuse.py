"""Tensors that have not changed since the last save are not written again.

Frozen weights (the base of a LoRA, an embedding that is not trained) are the same in every
checkpoint. Each tensor that looks unchanged (its first and last bytes are) is hashed; if every
checksum is that of the last committed checkpoint, the new one refers to where it lies already.

Safely with retention: the file that holds it becomes a file of the new checkpoint, too, by a hard
link or, in a bucket, by a copy that the server makes. Deleting the old checkpoint takes its name
away, not the bytes; a file with two names is never recycled. A storage without links writes
everything.
"""

from msgspec import Struct, field, structs

from strata.checkpoint.filling import LARGE_BYTES, Placed
from strata.checkpoint.format import PIECE_BYTES, Part, Tensor, checksum, header_image
from strata.checkpoint.staging import Capture
from strata.storage.base import Linking, StorageBackend

WORTH_SHARE = 0.1
"""Less than this part of a state is not worth a second file to read from."""


class Saved(Struct, frozen=True):
    """What a rank committed last; `glances` tells quickly which tensors have changed."""

    checkpoint_id: str
    part: Part
    glances: dict[str, str] = field(default_factory=dict)


def glances(capture: Capture) -> dict[str, str]:
    """A checksum of the two ends of every tensor that is large enough to be worth referring to."""
    return {
        each.name: checksum(capture.ends(each))
        for each in capture.placed
        if each.source.size_bytes >= LARGE_BYTES
    }


def kept_tensors(
    storage: StorageBackend, checkpoint_id: str, rank: int, capture: Capture, last: Saved | None
) -> list[Tensor]:
    """The tensors that lie in the last checkpoint already; their files have names here, too."""
    if last is None or not isinstance(storage, Linking):
        return []
    now, before = glances(capture), {tensor.name: tensor for tensor in last.part.tensors}
    same = [
        before[each.name]
        for each in capture.placed
        if each.name in before
        and now.get(each.name, "") == last.glances.get(each.name)
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


def _unchanged(capture: Capture, each: Placed, before: Tensor) -> bool:
    source = each.source
    if (source.dtype, source.shape, source.shard) != (before.dtype, before.shape, before.shard):
        return False
    return all(
        checksum(capture.view(each.offset + at, min(PIECE_BYTES, source.size_bytes - at))) == digest
        for at, digest in zip(range(0, source.size_bytes, PIECE_BYTES), before.xxh3, strict=True)
    )


def without(capture: Capture, kept: list[Tensor]) -> Capture:
    """The image of a part that leaves out what is kept elsewhere."""
    gone = {tensor.name for tensor in kept}
    left = [each for each in capture.placed if each.name not in gone]
    header = header_image(
        [(e.name, e.source.dtype, e.source.shape, e.source.size_bytes) for e in left], {}
    )
    placed, offset = [], len(header)
    segments = [(0, memoryview(header))]
    for each in left:
        placed.append(Placed(each.name, each.source, offset))
        if each.source.size_bytes:
            segments.append((offset, capture.view(each.offset, each.source.size_bytes)))
        offset += each.source.size_bytes
    return Capture(capture.tree, header, placed, segments, offset)
