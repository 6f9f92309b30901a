"""Reads a checkpoint: only the requested parts, in parallel, verified, directly into place.

A read consists of *units*: pieces of tensors with their checksum and target memory. Units that are
adjacent in a file are read by one call that scatters them over their targets, so nothing is copied
twice. Each is hashed while it is in the processor's cache and compared with the manifest; a
mismatch raises an error that names checkpoint, part and tensor.
"""

import threading
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from msgspec import Struct

from strata.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    CheckpointPart,
    Manifest,
    SavedTensor,
    checksum,
)
from strata.checkpoint.read.box_overlaps import Box, overlaps
from strata.checkpoint.read.manifest_checks import check_manifest, check_tree
from strata.checkpoint.read.read_targets import (
    RestoreTargets,
    TargetView,
    WholeTensor,
    completed,
    memory_for,
)
from strata.checkpoint.state.array_bytes import ITEM_BYTES, assign
from strata.checkpoint.state.state_tree import rebuild
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.storage.backend import ObjectReader
from strata.storage.io_threads import for_each

READ_BYTES = 16 * 1024 * 1024
HINT = "restore the file from a copy, or use another checkpoint"


class StoredTensor(Struct, frozen=True):
    """A tensor and the part it is in."""

    part: CheckpointPart
    tensor: SavedTensor


class ReadUnit(Struct, frozen=True):
    """One piece to read: its place in the file, its target memory, and its checksum."""

    part: CheckpointPart
    tensor: SavedTensor
    piece: int
    offset: int
    target: memoryview

    @property
    def file(self) -> str:
        return self.tensor.file or self.part.file

    @property
    def size_bytes(self) -> int:
        return self.target.nbytes


class BufferedCopy(Struct, frozen=True):
    """A region that was read into a temporary buffer, and the box of the target to copy it to."""

    view: TargetView
    target: Box
    values: Any
    inner: Box

    def run(self) -> None:
        tensor, box = self.view.tensor, self.view.box
        whole = np.frombuffer(self.view.memory, f"V{tensor.item_bytes}").reshape(box.shape)
        whole[self.target.slices] = self.values[self.inner.slices]


class OpenParts(Protocol):
    """A source of parts: a storage, or a peer that holds them in memory."""

    url: str

    def open(self, name: str) -> ObjectReader: ...


class CheckpointReader:
    """One committed checkpoint, open for reading. Parts are opened when they are first read."""

    def __init__(
        self,
        storage: OpenParts,
        manifest: Manifest,
        on_close: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda read_bytes: None,
    ) -> None:
        self.manifest = manifest
        self._where = f"{storage.url}/{manifest.checkpoint_id}{MANIFEST_SUFFIX}"
        check_manifest(manifest, self._where)
        self._progress = progress
        self._read_bytes = 0
        self._storage = storage
        self._on_close = on_close
        self._open: dict[str, ObjectReader] = {}
        self._opening = threading.Lock()
        self._tensors: dict[str, list[StoredTensor]] = {}
        for part in manifest.parts:
            for tensor in part.tensors:
                self._tensors.setdefault(tensor.name, []).append(StoredTensor(part, tensor))

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Any:
        """One whole tensor as a NumPy array; the shards of a sharded tensor are joined."""
        shape = self.whole(name).shape
        return self.slice(name, [0] * len(shape), shape)

    def slice(self, name: str, offsets: list[int], shape: list[int]) -> Any:
        """The box of a tensor that begins at `offsets`, across the ranks that saved it.

        Reads only the rows that the box touches, and only the parts that hold some of them.
        """
        whole, wanted = self.whole(name), Box(offsets, shape)
        if not wanted.within(whole.shape):
            raise InvalidArgument(
                f"{offsets} + {shape} is not within tensor {name!r}, whose shape is {whole.shape}"
            )
        result = memory_for(whole, "numpy", shape)
        self.fill_views([TargetView(whole, wanted, result.reshape(-1).view(np.uint8).data)])
        return result

    def load(self, into: Any = None, rank: int = 0) -> Any:
        """The state as a rank saved it, with whole tensors, whichever ranks wrote them.

        With `into`, arrays that fit are filled in place; for tensors that are shards there, only
        those shards are read.
        """
        part = self._part(rank)
        return self.assemble(part.tree, into)

    @property
    def tree(self) -> Any:
        """The state as rank 0 saved it, with tensors replaced by their names."""
        return self._part(0).tree

    def load_local(self, rank: int) -> Any:
        """What a rank saved for itself; None if it saved nothing or did not exist."""
        found = [part for part in self.manifest.parts if part.rank == rank]
        return self.assemble(found[0].local, None) if found else None

    def _part(self, rank: int) -> CheckpointPart:
        for part in self.manifest.parts:
            if part.rank == rank:
                return part
        raise NotFound(
            f"checkpoint {self.manifest.checkpoint_id} has no part of rank {rank}",
            hint="read its tensors by name instead: open(id).tensor(name)",
        )

    def assemble(self, tree: Any, into: Any) -> Any:
        """The state that a tree of this checkpoint, or a part of one, describes."""
        check_tree(tree, self._where)
        targets = RestoreTargets(
            tensors={name: self.whole(name) for name in self._tensors},
            into=into,
            where=f"the manifest {self._where}",
        )
        state = rebuild(tree, targets.leaf, targets.object)
        targets.require_fit()
        self.fill_views(targets.views)
        for target, value in targets.assignments:
            assign(target, value)
        return completed(state)

    def fill_views(self, views: list[TargetView]) -> None:
        """Read all views together, so that adjacent pieces are read by one call."""
        units: list[ReadUnit] = []
        copies: list[BufferedCopy] = []
        for view in views:
            self._plan(view, units, copies)
        self._fill(units)
        for each in copies:
            each.run()

    def _plan(self, view: TargetView, units: list[ReadUnit], copies: list["BufferedCopy"]) -> None:
        """Plan the units of a view: a saved box whose rows are contiguous in the target is read in
        place, any other into a buffer.
        """
        stored = self.stored(view.tensor.name)
        found = overlaps([box_of(each.tensor) for each in stored], view.box)
        if sum(hit.common.size for hit in found) < view.box.size:
            raise Corrupt(
                f"checkpoint {self.manifest.checkpoint_id} is missing parts of {view.tensor.name!r}"
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
                copies.append(
                    BufferedCopy(
                        view=view,
                        target=hit.target,
                        values=values,
                        inner=hit.inner.relative_to(box),
                    )
                )

    def _rows(
        self, stored: StoredTensor, inner: Box, item_bytes: int
    ) -> tuple[list[ReadUnit], Box, Any]:
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
        """Read everything once and compare it; return the verified bytes."""
        total = 0
        for part in self.manifest.parts:
            total += part.header_bytes
            header = bytearray(part.header_bytes)
            self._reader(part, part.file).read_into(0, [memoryview(header)])
            if checksum(bytes(header)) != part.header_xxh3:
                raise self._damage(part.file, "its header does not match its checksum")
            for tensor in part.tensors:
                buffer = memoryview(bytearray(tensor.size_bytes))
                self._fill(self._units(StoredTensor(part, tensor), buffer))
                total += tensor.size_bytes
                progress(total)
        return total

    def whole(self, name: str) -> WholeTensor:
        """The type and shape of a tensor with all its shards joined."""
        first = self.stored(name)[0].tensor
        return WholeTensor(
            name=name,
            dtype=first.dtype,
            shape=whole_shape(first),
            item_bytes=ITEM_BYTES[first.dtype],
        )

    def stored(self, name: str) -> list[StoredTensor]:
        """The boxes of a tensor as they were saved, copies included."""
        found = self._tensors.get(name)
        if not found:
            raise NotFound(
                f"checkpoint {self.manifest.checkpoint_id} has no tensor {name!r}",
                hint="open(id).names lists its tensors",
            )
        return found

    def _units(self, stored: StoredTensor, target: memoryview) -> list[ReadUnit]:
        piece = stored.part.piece_bytes
        return [
            unit_of(stored, at, target[at : at + piece])
            for at in range(0, stored.tensor.size_bytes, piece)
        ]

    def _fill(self, units: Iterable[ReadUnit]) -> None:
        ordered = sorted(units, key=lambda unit: (unit.file, unit.offset))
        self.open_files({unit.file: unit.part for unit in ordered})
        for_each(self.read_run, runs(ordered, READ_BYTES))

    def open_files(self, files: dict[str, CheckpointPart]) -> None:
        """Open files before the first read, so that a missing one is reported early."""
        for file, part in files.items():
            self._reader(part, file)

    def read_run(self, run: list[ReadUnit]) -> None:
        """Read adjacent pieces by one call, and verify them."""
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

    def _reader(self, part: CheckpointPart, file: str) -> ObjectReader:
        with self._opening:
            if file not in self._open:
                try:
                    reader = self._storage.open(f"{self.manifest.checkpoint_id}/{file}")
                except NotFound as error:
                    raise self._damage(file, "the file does not exist") from error
                self._open[file] = reader
                if file == part.file and reader.size_bytes != part.size_bytes:
                    raise self._damage(
                        file, f"it has {reader.size_bytes} bytes, but {part.size_bytes} were saved"
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

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def unit_of(stored: StoredTensor, at: int, target: memoryview) -> ReadUnit:
    piece = at // stored.part.piece_bytes
    return ReadUnit(
        part=stored.part,
        tensor=stored.tensor,
        piece=piece,
        offset=stored.tensor.offset + at,
        target=target,
    )


class FileRange(Protocol):
    """A range of bytes of a file."""

    @property
    def file(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


Range = TypeVar("Range", bound=FileRange)


def runs(ordered: list[Range], most_bytes: int) -> list[list[Range]]:
    """Ranges that are adjacent in one file, joined up to a size."""
    found: list[list[Range]] = []
    stop, size_bytes = -1, 0
    for each in ordered:
        joined = bool(found) and each.file == found[-1][-1].file and each.offset == stop
        if joined and size_bytes + each.size_bytes <= most_bytes:
            found[-1].append(each)
            size_bytes += each.size_bytes
        else:
            found.append([each])
            size_bytes = each.size_bytes
        stop = each.offset + each.size_bytes
    return found


def box_of(tensor: SavedTensor) -> Box:
    offsets = tensor.shard.offsets if tensor.shard is not None else [0] * len(tensor.shape)
    return Box(offsets, tensor.shape)


def whole_shape(tensor: SavedTensor) -> list[int]:
    return tensor.shard.global_shape if tensor.shard is not None else tensor.shape
