"""Reads whole tensors piece by piece, verified, with memory that does not grow with the tensors.

`boxes_of` finds the saved boxes that form a tensor, whichever ranks wrote them. `stream_pieces`
reads boxes in parallel, in the order of their files, and passes on each piece once its checksum was
compared. Each thread reads into its own 8 MiB.
"""

import threading
from collections.abc import Callable, Iterable
from math import prod

import numpy as np
from msgspec import Struct

from strata.checkpoint.read.box_overlaps import Box, BoxIndex
from strata.checkpoint.read.checkpoint_reader import (
    CheckpointReader,
    StoredTensor,
    box_of,
    runs,
    unit_of,
    whole_shape,
)
from strata.errors import Corrupt
from strata.storage.io_threads import for_each

STREAM_BYTES = 8 * 1024 * 1024

PutPiece = Callable[[StoredTensor, int, memoryview], None]


class StoredPiece(Struct, frozen=True):
    """A piece of a stored tensor; `start` counts from the tensor's beginning."""

    stored: StoredTensor
    start: int
    size_bytes: int

    @property
    def file(self) -> str:
        return self.stored.tensor.file or self.stored.part.file

    @property
    def offset(self) -> int:
        return self.stored.tensor.offset + self.start


def boxes_of(reader: CheckpointReader, name: str) -> list[StoredTensor]:
    """The saved boxes that form a tensor, without copies and empty ones; raises unless they cover
    it exactly.
    """
    stored, whole = reader.stored(name), reader.whole(name)
    index = BoxIndex([box_of(each.tensor) for each in stored])
    hits = index.overlaps(Box([0] * len(whole.shape), whole.shape))
    found = [stored[hit.index] for hit in hits]
    alike = all(
        (each.tensor.dtype, whole_shape(each.tensor)) == (whole.dtype, whole.shape)
        and box_of(each.tensor).within(whole.shape)
        for each in found
    )
    apart = all(len(index.overlaps(box_of(each.tensor))) == 1 for each in found)
    covered = sum(prod(each.tensor.shape) for each in found)
    if not (alike and apart and covered == prod(whole.shape)):
        raise Corrupt(
            f"the saved parts of {name!r} in checkpoint {reader.manifest.checkpoint_id} do not "
            f"form one tensor of shape {whole.shape}",
            hint="the boxes that ranks save must cover the whole tensor and must not overlap",
        )
    return found


def stream_pieces(reader: CheckpointReader, tensors: Iterable[StoredTensor], put: PutPiece) -> None:
    """Read stored tensors; `put` is called from several threads with each verified piece: its
    tensor, its offset in the tensor, and its bytes, whose memory is used again afterwards.
    """
    pieces = [
        StoredPiece(each, at, min(each.part.piece_bytes, each.tensor.size_bytes - at))
        for each in tensors
        for at in range(0, each.tensor.size_bytes, each.part.piece_bytes)
    ]
    pieces.sort(key=lambda piece: (piece.file, piece.offset))
    reader.open_files({piece.file: piece.stored.part for piece in pieces})
    own = threading.local()

    def copy(run: list[StoredPiece]) -> None:
        size_bytes = sum(piece.size_bytes for piece in run)
        memory: memoryview = getattr(own, "memory", memoryview(b""))
        if memory.nbytes < size_bytes:
            own.memory = memory = np.empty(max(size_bytes, STREAM_BYTES), np.uint8).data
        units, at = [], 0
        for piece in run:
            target = memory[at : at + piece.size_bytes]
            units.append(unit_of(piece.stored, piece.start, target))
            at += piece.size_bytes
        reader.read_run(units)
        for piece, unit in zip(run, units, strict=True):
            put(piece.stored, piece.start, unit.target)

    for_each(copy, runs(pieces, STREAM_BYTES))
