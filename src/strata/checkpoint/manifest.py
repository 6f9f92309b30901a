"""The format of a checkpoint in storage; docs/CHECKPOINT_FORMAT.md describes it for other tools.

    step-00000100-1f2e3d4c.json                      the manifest: the only commit point
    step-00000100-1f2e3d4c/part-00000.safetensors    one file per rank that has tensors
    step-00000100-1f2e3d4c.claim                     which process writes it, until the commit

Without a manifest there is no checkpoint. A manifest is written once, when every part is durable,
and deleted before the parts are.

A part is a safetensors file whose header is padded so that the data begins on a 4 KiB boundary: the
staging memory is then the image of the file and is written to the disk as it is. Tensors follow
each other without gaps, as safetensors requires, those with wide elements first, so that each is
aligned to its element.

Checksums are xxh3 of every 8 MiB of every tensor, counted from the tensor's beginning: a reader of
one tensor, or of some rows, verifies only what it read, in parallel.
"""

import json
import re
from typing import Annotated, Any, TypeAlias

import msgspec
import xxhash
from msgspec import Struct, field

from strata.errors import UNDECODABLE, Corrupt, UnknownKind

FORMAT = "strata-checkpoint"
VERSION = 1
ALIGNMENT = 4096
PIECE_BYTES = 8 * 1024 * 1024
MANIFEST_SUFFIX = ".json"
CLAIM_SUFFIX = ".claim"
CHECKPOINT_ID = re.compile(r"step-(\d{8,20})-[0-9a-z]{1,16}")
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
PART_FILE = re.compile(r"(part-\d{5,}|kept-\d{5,}-\d+)\.safetensors")


class SavedShard(Struct, frozen=True):
    """The box of a larger tensor that a saved tensor is."""

    global_shape: list[int]
    offsets: list[int]


class SavedTensor(Struct, frozen=True, omit_defaults=True):
    """One tensor of a part: `offset` counts from the beginning of the file. `file` is set if the
    tensor is in a file of an earlier checkpoint, because it had not changed.
    """

    name: str
    dtype: str
    shape: list[int]
    offset: int
    size_bytes: int
    xxh3: list[str]
    shard: SavedShard | None = None
    file: str = ""


class CheckpointPart(Struct, frozen=True, omit_defaults=True):
    """What one rank wrote. `tree` is the state with tensors replaced by their names; if ranks hold
    the same state, only the lowest rank has it. `local` is what the rank saved for itself.
    """

    rank: int
    file: str
    size_bytes: int
    xxh3: str
    header_bytes: int
    header_xxh3: str
    piece_bytes: int
    tensors: list[SavedTensor]
    tree: Any
    local: Any = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of unchanged tensors, which are in files of earlier checkpoints."""
        return sum(tensor.size_bytes for tensor in self.tensors if tensor.file)


class Manifest(Struct, frozen=True, kw_only=True):
    """The commit point. `sequence` grows with every commit, whatever the clock does.

    `size_bytes` were written for it; `whole_bytes` is what a full restore reads. `data` is the
    position of each dataset: the `state_dict()` of its batches. `metrics` are the values that the
    script had logged last.
    """

    format: str = FORMAT
    version: int = VERSION
    checkpoint_id: str
    step: Int64
    epoch: Int64
    sequence: Int64
    created_ns: Int64
    size_bytes: Int64
    world_size: Int64
    attempt: Int64 = 1
    metadata: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parts: list[CheckpointPart]

    @property
    def whole_bytes(self) -> int:
        """What was written for it plus what it shares with earlier checkpoints."""
        return self.size_bytes + sum(part.kept_bytes for part in self.parts)


class CheckpointInfo(Struct, frozen=True):
    """A committed checkpoint, for users. `created_at` is Unix seconds.

    `size_bytes` is the size of the whole; `new_bytes` of it were written by this save, the rest had
    not changed since an earlier one. `strata.load(info.path)` reads the state.
    """

    checkpoint_id: str
    step: int
    epoch: int
    path: str
    size_bytes: int
    created_at: float
    metadata: dict[str, Any] = field(default_factory=dict)
    new_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, where: str) -> Manifest:
    try:
        version = msgspec.json.decode(data, type=_Versioned)
        if version.format != FORMAT:
            raise Corrupt(f"{where} is not a checkpoint manifest")
        if version.version > VERSION:
            raise UnknownKind(
                f"{where} has format version {version.version}; this Strata reads {VERSION}",
                hint="update Strata",
            )
        return msgspec.json.decode(data, type=Manifest)
    except UNDECODABLE as error:
        raise Corrupt(
            f"the manifest {where} is damaged: {error}", hint="use another checkpoint"
        ) from error


class _Versioned(Struct):
    format: str = ""
    version: int = 0


def checksum(data: bytes | memoryview) -> str:
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def part_checksum(header_xxh3: str, tensors: list[SavedTensor]) -> str:
    """One checksum for a part: that of all checksums in it, in order."""
    digests = [header_xxh3, *(each for tensor in tensors for each in tensor.xxh3)]
    return checksum(bytes.fromhex("".join(digests)))


def piece_count(size_bytes: int) -> int:
    return -(-size_bytes // PIECE_BYTES)


def header_image(tensors: list[tuple[str, str, list[int], int]], metadata: dict[str, str]) -> bytes:
    """The header of a safetensors file whose tensors are (name, dtype, shape, size), in order."""
    entries: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, size_bytes in tensors:
        entries[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + size_bytes],
        }
        offset += size_bytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8
    return padded.to_bytes(8, "little") + text.ljust(padded, b" ")
