"""Reading a checkpoint: only what is asked for, in parallel, verified, where it is wanted.

A read becomes *units*: pieces of tensors with their checksum and the memory they go to. Units that
lie side by side in a file are read by one call that scatters them over their targets, so nothing
is copied a second time. Each is hashed while it is warm and compared with the manifest; what does
not match is reported with checkpoint, part and tensor, never handed out.
"""

import threading
from collections.abc import Callable, Iterable
from math import prod
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from msgspec import Struct

from strata.checkpoint.arrays import ITEM_BYTES, assign, numpy_dtype
from strata.checkpoint.format import Manifest, Part, Tensor, checksum
from strata.checkpoint.reshard import Box, overlaps
from strata.checkpoint.targets import Targets, View, Whole, finished
from strata.checkpoint.tree import rebuild
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.storage.base import ObjectReader
from strata.storage.parallel import for_each

READ_BYTES = 16 * 1024 * 1024
HINT = "restore the file from a copy, or use another checkpoint"


class Stored(Struct, frozen=True):
    """A tensor and the part it is in."""

    part: Part
    tensor: Tensor


class Unit(Struct, frozen=True):
    """One piece to read: where it is, where it goes, what it must hash to."""

    part: Part
    tensor: Tensor
    piece: int
    offset: int
    target: memoryview

    @property
    def file(self) -> str:
        return self.tensor.file or self.part.file


class Copy(Struct, frozen=True):
    """A region that was read beside its place, and the box of the target that it goes to."""

    view: View
    target: Box
    values: Any
    inner: Box

    def run(self) -> None:
        tensor, box = self.view.tensor, self.view.box
        whole = np.frombuffer(self.view.memory, f"V{tensor.item_bytes}").reshape(box.shape)
        whole[self.target.slices] = self.values[self.inner.slices]


class Parts(Protocol):
    """Where a reader finds parts: a storage, or a peer that holds them in memory."""

    url: str

    def open(self, name: str) -> ObjectReader: ...


class CheckpointReader:
    """One committed checkpoint, held open. Parts are opened when something of them is read."""

    def __init__(
        self,
        storage: Parts,
        manifest: Manifest,
        on_close: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda read_bytes: None,
    ) -> None:
        self.manifest = manifest
        self._progress = progress
        self._read_bytes = 0
        self._storage = storage
        self._on_close = on_close
        self._open: dict[str, ObjectReader] = {}
        self._opening = threading.Lock()
        self._tensors: dict[str, list[Stored]] = {}
        for part in manifest.parts:
            for tensor in part.tensors:
                self._tensors.setdefault(tensor.name, []).append(Stored(part, tensor))

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Any:
        """One whole tensor as a NumPy array; a sharded one is put together."""
        shape = self._whole(name).shape
        return self.slice(name, [0] * len(shape), shape)

    def slice(self, name: str, offsets: list[int], shape: list[int]) -> Any:
        """The box of a tensor that begins at `offsets`, whoever saved which piece of it.

        Reads only the rows that the box touches, from only the parts that hold some of it.
        """
        whole, wanted = self._whole(name), Box(offsets, shape)
        if not wanted.within(whole.shape):
            raise InvalidArgument(
                f"{offsets} + {shape} is not within tensor {name!r}, whose shape is {whole.shape}"
            )
        result = np.empty(shape, numpy_dtype(whole.dtype))
        self._fill_views([View(whole, wanted, result.reshape(-1).view(np.uint8).data)])
        return result

    def load(self, into: Any = None, rank: int = 0) -> Any:
        """The state as a rank saved it, with its tensors whole, whoever wrote which piece.

        With `into`, arrays that fit are filled in place, and of tensors that are pieces there only
        those pieces are read.
        """
        part = self._part(rank)
        return self._assemble(part.tree, into)

    def load_local(self, rank: int) -> Any:
        """What a rank saved for itself alone; None where it saved nothing, or was not there."""
        found = [part for part in self.manifest.parts if part.rank == rank]
        return self._assemble(found[0].local, None) if found else None

    def _part(self, rank: int) -> Part:
        for part in self.manifest.parts:
            if part.rank == rank:
                return part
        raise NotFound(
            f"checkpoint {self.manifest.checkpoint_id} has no part of rank {rank}",
            hint="read its tensors by name instead: open(id).tensor(name)",
        )

    def _assemble(self, tree: Any, into: Any) -> Any:
        targets = Targets({name: self._whole(name) for name in self._tensors}, into)
        state = rebuild(tree, targets.leaf, targets.object)
        self._fill_views(targets.views)
        for target, value in targets.assignments:
            assign(target, value)
        return finished(state)

    def _fill_views(self, views: list[View]) -> None:
        """Reads every view, all pieces together, so that what lies side by side is read as one."""
        units: list[Unit] = []
        copies: list[Copy] = []
        for view in views:
            self._plan(view, units, copies)
        self._fill(units)
        for each in copies:
            each.run()

    def _plan(self, view: View, units: list[Unit], copies: list["Copy"]) -> None:
        """A saved box whose rows lie in order in the target is read right there, any other
        beside it."""
        stored = self._stored(view.tensor.name)
        found = overlaps([box_of(each.tensor) for each in stored], view.box)
        if sum(hit.common.size for hit in found) < view.box.size:
            raise Corrupt(
                f"checkpoint {self.manifest.checkpoint_id} lacks some of {view.tensor.name!r}"
            )
        for hit in found:
            saved = stored[hit.index]
            if hit.inner.shape == saved.tensor.shape and hit.inner.shape[1:] == view.box.shape[1:]:
                row_bytes = prod(view.box.shape[1:]) * view.tensor.item_bytes
                start = hit.target.offsets[0] * row_bytes if hit.target.offsets else 0
                region = view.memory[start : start + saved.tensor.size_bytes]
                units += self._units(saved, region)
            else:
                some, box, values = self._rows(saved, hit.inner, view.tensor.item_bytes)
                units += some
                copies.append(Copy(view, hit.target, values, hit.inner.relative_to(box)))

    def _rows(self, stored: Stored, inner: Box, item_bytes: int) -> tuple[list[Unit], Box, Any]:
        """Units for the rows (along the first axis) that a box of a stored tensor touches."""
        tensor = stored.tensor
        row_bytes = tensor.size_bytes // max(tensor.shape[0], 1)
        first, count = inner.offsets[0], inner.shape[0]
        start, stop = first * row_bytes, (first + count) * row_bytes
        piece = stored.part.piece_bytes
        begin = start // piece * piece
        end = min(-(-stop // piece) * piece, tensor.size_bytes)
        buffer = np.empty(end - begin, np.uint8)
        units = [
            unit_of(stored, at, buffer.data[at - begin : min(at + piece, end) - begin])
            for at in range(begin, end, piece)
        ]
        shape = [count, *tensor.shape[1:]]
        # Pieces are a multiple of every element's size, so the rows are aligned in the buffer.
        values = buffer[start - begin : stop - begin].view(f"V{item_bytes}").reshape(shape)
        return units, Box([first] + [0] * (len(shape) - 1), shape), values

    def verify(self, progress: Callable[[int], None] = lambda verified_bytes: None) -> int:
        """Reads everything once and compares; returns the bytes that were verified."""
        total = 0
        for part in self.manifest.parts:
            total += part.header_bytes
            header = bytearray(part.header_bytes)
            self._reader(part, part.file).read_into(0, [memoryview(header)])
            if checksum(bytes(header)) != part.header_xxh3:
                raise self._damage(part.file, "its header does not match its checksum")
            for tensor in part.tensors:
                buffer = memoryview(bytearray(tensor.size_bytes))
                self._fill(self._units(Stored(part, tensor), buffer))
                total += tensor.size_bytes
                progress(total)
        return total

    def _whole(self, name: str) -> Whole:
        first = self._stored(name)[0].tensor
        return Whole(name, first.dtype, whole_shape(first), ITEM_BYTES[first.dtype])

    def _stored(self, name: str) -> list[Stored]:
        found = self._tensors.get(name)
        if not found:
            raise NotFound(
                f"checkpoint {self.manifest.checkpoint_id} has no tensor {name!r}",
                hint="its names are those of open(id).names",
            )
        return found

    def _units(self, stored: Stored, target: memoryview) -> list[Unit]:
        piece = stored.part.piece_bytes
        return [
            unit_of(stored, at, target[at : at + piece])
            for at in range(0, stored.tensor.size_bytes, piece)
        ]

    def _fill(self, units: Iterable[Unit]) -> None:
        ordered = sorted(units, key=lambda unit: (unit.file, unit.offset))
        for file, part in {unit.file: unit.part for unit in ordered}.items():
            self._reader(part, file)  # opened here, so that a missing one is told before any read
        for_each(self._read_run, runs(ordered))

    def _read_run(self, run: list[Unit]) -> None:
        part, file = run[0].part, run[0].file
        try:
            self._reader(part, file).read_into(run[0].offset, [unit.target for unit in run])
        except Corrupt as error:
            raise self._damage(file, error.message) from error
        for unit in run:
            if checksum(unit.target) != unit.tensor.xxh3[unit.piece]:
                stop = unit.offset + unit.target.nbytes
                raise self._damage(
                    file,
                    f"bytes {unit.offset} to {stop}, in tensor {unit.tensor.name!r}, do not match "
                    f"their checksum",
                )
        with self._opening:
            self._read_bytes += sum(unit.target.nbytes for unit in run)
        self._progress(self._read_bytes)

    def _reader(self, part: Part, file: str) -> ObjectReader:
        with self._opening:
            if file not in self._open:
                try:
                    reader = self._storage.open(f"{self.manifest.checkpoint_id}/{file}")
                except NotFound as error:
                    raise self._damage(file, "it is not there") from error
                self._open[file] = reader
                if file == part.file and reader.size_bytes != part.size_bytes:
                    raise self._damage(
                        file, f"it has {reader.size_bytes} bytes where {part.size_bytes} were saved"
                    )
            return self._open[file]

    def _damage(self, file: str, what: str) -> Corrupt:
        where = f"{self._storage.url}/{self.manifest.checkpoint_id}/{file}"
        return Corrupt(f"the part {where} is damaged: {what}", hint=HINT)

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self._on_close()
        self._on_close = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def unit_of(stored: Stored, at: int, target: memoryview) -> Unit:
    piece = at // stored.part.piece_bytes
    return Unit(stored.part, stored.tensor, piece, stored.tensor.offset + at, target)


def runs(ordered: list[Unit]) -> list[list[Unit]]:
    """Units that lie side by side in one file, read together up to `READ_BYTES`."""
    found: list[list[Unit]] = []
    stop, size_bytes = -1, 0
    for unit in ordered:
        joined = bool(found) and unit.file == found[-1][-1].file and unit.offset == stop
        if joined and size_bytes + unit.target.nbytes <= READ_BYTES:
            found[-1].append(unit)
            size_bytes += unit.target.nbytes
        else:
            found.append([unit])
            size_bytes = unit.target.nbytes
        stop = unit.offset + unit.target.nbytes
    return found


def box_of(tensor: Tensor) -> Box:
    offsets = tensor.shard.offsets if tensor.shard is not None else [0] * len(tensor.shape)
    return Box(offsets, tensor.shape)


def whole_shape(tensor: Tensor) -> list[int]:
    return tensor.shard.global_shape if tensor.shard is not None else tensor.shape
