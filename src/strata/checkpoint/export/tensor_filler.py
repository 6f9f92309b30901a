"""Fills the files of an export with the bytes of the tensors.

A format lays out its files first, with space for each tensor. Then the saved boxes are streamed
into place, whichever ranks saved them. The bytes of most boxes (some rows, or all) are contiguous
in the whole tensor: each verified piece is written where it belongs, so memory holds only the
pieces in flight. A tensor that was cut along another axis is joined in memory first, one tensor at
a time.
"""

import os
import threading
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.read.checkpoint_reader import CheckpointReader, StoredTensor, box_of
from strata.checkpoint.read.read_targets import WholeTensor
from strata.checkpoint.read.tensor_stream import STREAM_BYTES, boxes_of, stream_pieces
from strata.storage.io_threads import for_each


class FilePlace(Struct, frozen=True):
    """Where the bytes of a stored tensor go: a file, and the offset in it."""

    stored: str
    file: Path
    offset: int


def fill_files(
    reader: CheckpointReader, places: list[FilePlace], progress: Callable[[int], None]
) -> None:
    """Write every tensor to its places and sync the files; `progress` gets the bytes written."""
    by_name: dict[str, list[FilePlace]] = {}
    for place in places:
        by_name.setdefault(place.stored, []).append(place)
    rows: list[StoredTensor] = []
    row_places: dict[tuple[int, str], list[FilePlace]] = {}
    cut: dict[str, list[StoredTensor]] = {}
    for name, targets in by_name.items():
        boxes, whole = boxes_of(reader, name), reader.whole(name)
        starts = [contiguous_start(box_of(each.tensor), whole) for each in boxes]
        if None in starts:
            cut[name] = boxes
            continue
        rows += boxes
        for each, start in zip(boxes, starts, strict=True):
            row_places[each.part.rank, name] = [moved(place, start or 0) for place in targets]
    with OutputFiles({place.file for place in places}, progress) as files:

        def put(stored: StoredTensor, at: int, data: memoryview) -> None:
            for place in row_places[stored.part.rank, stored.tensor.name]:
                files.write(moved(place, at), data)

        stream_pieces(reader, rows, put)
        for name, boxes in cut.items():
            data = joined(reader, reader.whole(name), boxes)
            for place in by_name[name]:
                files.write_parallel(place, data)
        files.sync()


def moved(place: FilePlace, by_bytes: int) -> FilePlace:
    return FilePlace(place.stored, place.file, place.offset + by_bytes)


def contiguous_start(box: Box, whole: WholeTensor) -> int | None:
    """The byte of the whole tensor at which a box begins; None if the box is not contiguous."""
    axis = next((i for i, length in enumerate(box.shape) if length != 1), len(box.shape))
    if box.shape[axis + 1 :] != whole.shape[axis + 1 :]:
        return None
    strides = [prod(whole.shape[i + 1 :]) for i in range(len(whole.shape))]
    elements = sum(o * stride for o, stride in zip(box.offsets, strides, strict=True))
    return elements * whole.item_bytes


def joined(reader: CheckpointReader, whole: WholeTensor, boxes: list[StoredTensor]) -> memoryview:
    """The bytes of a tensor that was cut along any axes."""
    array = np.empty(whole.shape, f"u{whole.item_bytes}")

    def put(stored: StoredTensor, at: int, data: memoryview) -> None:
        values = np.frombuffer(data, array.dtype)
        scatter(array[box_of(stored.tensor).slices], at // whole.item_bytes, values)

    stream_pieces(reader, boxes, put)
    return array.reshape(-1).view(np.uint8).data


def scatter(target: NDArray[Any], start: int, values: NDArray[Any]) -> None:
    """Copy values to a target of any shape, from its element `start` on, in C order."""
    if target.ndim == 1:
        target[start : start + values.size] = values
        return
    row_size = prod(target.shape[1:])
    row, skipped = divmod(start, row_size)
    if skipped:
        head = values[: row_size - skipped]
        scatter(target[row], skipped, head)
        row, values = row + 1, values[head.size :]
    count = values.size // row_size
    body, tail = values[: count * row_size], values[count * row_size :]
    target[row : row + count] = body.reshape(count, *target.shape[1:])
    if tail.size:
        scatter(target[row + count], 0, tail)


class OutputFiles:
    """Open files of an export; threads write to any place of them."""

    def __init__(self, files: set[Path], progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._written_bytes = 0
        self._counting = threading.Lock()
        self._open: dict[Path, int] = {}
        try:
            for file in sorted(files):
                self._open[file] = fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
                if size_bytes := os.fstat(fd).st_size:
                    os.posix_fallocate(fd, 0, size_bytes)  # a full disk fails here, not later
        except BaseException:
            self.close()
            raise

    def write(self, place: FilePlace, data: memoryview) -> None:
        done = 0
        while done < data.nbytes:
            done += os.pwrite(self._open[place.file], data[done:], place.offset + done)
        with self._counting:
            self._written_bytes += data.nbytes
            self._progress(self._written_bytes)

    def write_parallel(self, place: FilePlace, data: memoryview) -> None:
        def write(at: int) -> None:
            self.write(moved(place, at), data[at : at + STREAM_BYTES])

        for_each(write, range(0, data.nbytes, STREAM_BYTES))

    def sync(self) -> None:
        for_each(os.fsync, self._open.values())

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
