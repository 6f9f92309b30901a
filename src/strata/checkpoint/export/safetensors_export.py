"""Export to safetensors files: one, or several with an index if the tensors exceed the shard size.

    model.safetensors                     or    model-00001-of-00002.safetensors
                                                model-00002-of-00002.safetensors
                                                model.safetensors.index.json

The names and the index are those of Hugging Face's libraries. An array that the state has under two
names is written under both.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from strata.checkpoint.export.exported_state import ArrayLeaf, ExportedState
from strata.checkpoint.export.tensor_filler import FilePlace
from strata.checkpoint.manifest import header_image
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.array_bytes import ITEM_BYTES
from strata.errors import InvalidArgument
from strata.files import write_whole

NAME = "model"
FILE_MODE = 0o666
RAW_NAMES = {"float8_e8m0fnu": "F8_E8M0"}
"""Types that are stored as bytes although safetensors has a name for them."""


class OutputTensor(Struct, frozen=True, kw_only=True):
    """A tensor in a safetensors file."""

    name: str
    stored: str
    dtype: str
    shape: list[int]
    size_bytes: int


class SafetensorsLayout:
    """The files of an export to safetensors."""

    def __init__(self, tensors: list[OutputTensor], shard_bytes: int, left_out: list[str]) -> None:
        shards = split(tensors, shard_bytes)
        names = [f"{NAME}-{i:05d}-of-{len(shards):05d}" for i in range(1, len(shards) + 1)]
        names = [NAME] if len(shards) == 1 else names
        self.shards = {f"{n}.safetensors": shard for n, shard in zip(names, shards, strict=True)}
        self.size_bytes = sum(tensor.size_bytes for tensor in tensors)
        self.left_out = left_out
        self.notes: list[str] = []

    def write(self, folder: Path) -> list[FilePlace]:
        """Write the headers and the index; return where the tensors belong."""
        places: list[FilePlace] = []
        for file, shard in self.shards.items():
            described = [(each.name, each.dtype, each.shape, each.size_bytes) for each in shard]
            header = header_image(described, {"format": "pt"})
            offset = len(header)
            for each in shard:
                places.append(FilePlace(each.stored, folder / file, offset))
                offset += each.size_bytes
            with open(folder / file, "xb") as opened:
                opened.write(header)
                opened.truncate(offset)
        if len(self.shards) > 1:
            write_whole(folder / f"{NAME}.safetensors.index.json", self.index(), FILE_MODE)
        return places

    def index(self) -> bytes:
        weight_map = {each.name: file for file, shard in self.shards.items() for each in shard}
        content = {"metadata": {"total_size": self.size_bytes}, "weight_map": weight_map}
        return msgspec.json.format(msgspec.json.encode(content), indent=2)

    def load_line(self, folder: Path) -> str:
        first, *others = self.shards
        more = f" and {len(others)} more files" if others else ""
        return f'safetensors.torch.load_file("{folder / first}"){more}'


def safetensors_layout(
    reader: CheckpointReader, state: ExportedState, shard_bytes: int
) -> SafetensorsLayout:
    """The layout of all arrays of a state."""
    tensors = [output_tensor(reader, name, leaf) for name, leaf in state.arrays.items()]
    return SafetensorsLayout(tensors, shard_bytes, state.values)


def output_tensor(reader: CheckpointReader, name: str, leaf: ArrayLeaf) -> OutputTensor:
    """The description of an array; raises if safetensors has no such type."""
    whole = reader.whole(leaf.stored)
    size_bytes = whole.size_bytes
    if leaf.raw_dtype is None:
        dtype, shape = whole.dtype, whole.shape
    elif leaf.raw_dtype in RAW_NAMES:
        dtype, shape = RAW_NAMES[leaf.raw_dtype], whole.shape[:-1]
    else:
        raise InvalidArgument(
            f"safetensors has no type for {name!r}, whose elements are {leaf.raw_dtype}",
            hint="use --format torch, or select another part of the state with --only",
        )
    return OutputTensor(
        name=name, stored=leaf.stored, dtype=dtype, shape=shape, size_bytes=size_bytes
    )


def split(tensors: list[OutputTensor], shard_bytes: int) -> list[list[OutputTensor]]:
    """The tensors of each file, in order; a larger tensor has a file of its own."""
    shards: list[list[OutputTensor]] = [[]]
    used_bytes = 0
    for tensor in tensors:
        if shards[-1] and used_bytes + tensor.size_bytes > shard_bytes:
            shards.append([])
            used_bytes = 0
        shards[-1].append(tensor)
        used_bytes += tensor.size_bytes
    return [sorted(shard, key=element_bytes, reverse=True) for shard in shards]


def element_bytes(tensor: OutputTensor) -> int:
    """The size of an element: tensors with wide elements come first, so that each is aligned."""
    return ITEM_BYTES.get(tensor.dtype, 1)
