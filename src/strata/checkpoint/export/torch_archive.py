"""Export to one file that `torch.load(weights_only=True)` reads: the nested state with its values.

`torch.save` would need the whole state in memory. Here it writes the state with tensors that have
no memory (`FakeTensor`) and leaves space for their bytes (`torch.serialization.skip_data`); they
are filled in afterwards. Each tensor's bytes are a record of the zip file, numbered in the order in
which the state names the tensors. As with `torch.serialization.set_crc32_options(False)`, the zip
checksums of these records are not set; torch does not read them.

NumPy and JAX arrays become tensors, NumPy scalars become Python numbers, and objects with named
fields become dicts, because torch.load reads nothing else without running code.
"""

import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from strata.checkpoint.export.exported_state import ArrayLeaf, ExportedState, leaf_of
from strata.checkpoint.export.tensor_filler import FilePlace
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.array_bytes import EXTENDED, NAMES_NUMPY, TORCH_RAW
from strata.checkpoint.state.state_tree import rebuild
from strata.errors import InvalidArgument, Unavailable

FILE = "checkpoint.pt"
LOCAL_HEADER = struct.Struct("<26xHH")


class TensorPlaceholders:
    """A state for torch.save, in which each array is a tensor without memory.

    `tensors` has them by stored name, in the order in which the state names them first.
    """

    def __init__(self, reader: CheckpointReader, state: ExportedState) -> None:
        self._reader = reader
        self._mode = FakeTensorMode()
        self.tensors: dict[str, Any] = {}
        self.state = rebuild(state.tree, self._leaf, lambda node, path, fields: fields)

    @property
    def size_bytes(self) -> int:
        return sum(self._reader.whole(name).size_bytes for name in self.tensors)

    def _leaf(self, node: dict[str, Any], path: tuple[Any, ...]) -> Any:
        leaf = leaf_of(node)
        if leaf.kind == "bytes":
            return self._reader.tensor(leaf.stored).tobytes()
        native = self._reader.whole(leaf.stored).dtype not in EXTENDED
        if leaf.kind == "scalar" and leaf.raw_dtype is None and native:
            return self._reader.tensor(leaf.stored).item()
        if leaf.stored not in self.tensors:
            self.tensors[leaf.stored] = self._placeholder(leaf)
        return self.tensors[leaf.stored]

    def _placeholder(self, leaf: ArrayLeaf) -> Any:
        whole = self._reader.whole(leaf.stored)
        raw = leaf.raw_dtype
        name = NAMES_NUMPY[whole.dtype] if raw is None else TORCH_RAW.get(raw)
        if name is None:
            raise InvalidArgument(
                f"torch has no type for {leaf.stored!r}, whose elements are {raw}",
                hint="select another part of the state with --only",
            )
        with self._mode:
            shape = whole.shape if raw is None else whole.shape[:-1]
            tensor = torch.empty(shape, dtype=getattr(torch, name))
        assert tensor.nbytes == whole.size_bytes, f"{leaf.stored} has the size of its type"
        return tensor


class TorchLayout:
    """The file of an export to torch's format."""

    left_out: list[str]
    notes: list[str]

    def __init__(self, reader: CheckpointReader, state: ExportedState) -> None:
        self._content = TensorPlaceholders(reader, state)
        self.size_bytes = self._content.size_bytes
        self.left_out, self.notes = [], []

    def write(self, folder: Path) -> list[FilePlace]:
        """Write the file without the bytes of its tensors; return where they belong."""
        file = folder / FILE
        save_without_data(self._content.state, file)
        names = [*self._content.tensors]
        sizes = [tensor.nbytes for tensor in self._content.tensors.values()]
        starts = record_starts(file, sizes)
        return [FilePlace(name, file, at) for name, at in zip(names, starts, strict=True)]

    def load_line(self, folder: Path) -> str:
        return f'torch.load("{folder / FILE}")'


def save_without_data(content: Any, file: Path) -> None:
    """`torch.save` of tensors without memory; the space for their bytes stays empty."""
    try:
        with torch.serialization.skip_data(materialize_fake_tensors=True):
            torch.save(content, file)
    except RuntimeError as error:  # torch reports a full disk without the reason
        raise Unavailable(
            f"torch could not write {file.name}: {error}",
            hint="check the free space of the disk, and ulimit -f",
        ) from error


def record_starts(file: Path, sizes: list[int]) -> list[int]:
    """Where the bytes of each tensor begin in a file of torch.save."""
    starts = []
    with zipfile.ZipFile(file) as archive, open(file, "rb") as opened:
        records = {each.filename.partition("/")[2]: each for each in archive.infolist()}
        for number, size_bytes in enumerate(sizes):
            record = records[f"data/{number}"]
            assert record.file_size == size_bytes, "records are in the order of the tensors"
            opened.seek(record.header_offset)
            name_bytes, extra_bytes = LOCAL_HEADER.unpack(opened.read(LOCAL_HEADER.size))
            starts.append(record.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes)
    return starts
