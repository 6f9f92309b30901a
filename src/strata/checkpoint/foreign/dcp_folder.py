"""Weights in a folder that PyTorch's distributed checkpoint (DCP) wrote.

DCP pickles its description of the tensors (`.metadata`). It is decoded here with a list of the few
types that it consists of, so that a folder cannot run code. Each stored chunk is then loaded with
`weights_only=True`, one at a time.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from strata.checkpoint.foreign.tensor_copies import copy_box
from strata.checkpoint.foreign.torch_file import WRAPPERS, torch_module
from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.read.read_targets import TargetView, WholeTensor
from strata.checkpoint.read.weight_source import WeightSource, joined
from strata.checkpoint.state.array_bytes import source_of
from strata.errors import Corrupt, InvalidArgument

METADATA_FILE = ".metadata"
HINT = "write or download the folder again"
DCP = "torch.distributed.checkpoint"
ALLOWED = {
    (f"{DCP}.metadata", "BytesStorageMetadata"),
    (f"{DCP}.metadata", "ChunkStorageMetadata"),
    (f"{DCP}.metadata", "Metadata"),
    (f"{DCP}.metadata", "MetadataIndex"),
    (f"{DCP}.metadata", "StorageMeta"),
    (f"{DCP}.metadata", "TensorProperties"),
    (f"{DCP}.metadata", "TensorStorageMetadata"),
    (f"{DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{DCP}.filesystem", "_StorageInfo"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


class _Metadata(pickle.Unpickler):
    """Decodes the description of a folder; refuses every type that does not belong there."""

    def __init__(self, data: bytes, torch: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._torch = torch

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        found = getattr(self._torch, name, None) if module == "torch" else None
        if isinstance(found, self._torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class DcpFolder(WeightSource):
    """The tensors of a DCP folder, or those below a common key in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        self._torch = torch_module(self.url)
        self._metadata = self._decoded()
        self._stored = {
            (index.fqn, tuple(index.offset or ())): info
            for index, info in self._metadata.storage_data.items()
        }
        for name, stored in self._model_names().items():
            found = self._metadata.state_dict_metadata[stored]
            empty = self._torch.empty(0, dtype=found.properties.dtype)
            source = source_of(empty, f"{name!r} in {self.url}")
            raw_axis = [source.item_bytes] if source.raw_dtype else []
            self.tensors[name] = WholeTensor(
                name=stored,
                dtype=source.dtype,
                shape=[*found.size, *raw_axis],
                item_bytes=1 if source.raw_dtype else source.item_bytes,
                raw_dtype=source.raw_dtype,
            )

    def _decoded(self) -> Any:
        path = self._folder / METADATA_FILE
        try:
            return _Metadata(path.read_bytes(), self._torch).load()
        except Exception as error:  # pickle raises errors of many types for damaged bytes
            raise Corrupt(f"{path} is damaged, or not of DCP: {error}", hint=HINT) from error

    def _model_names(self) -> dict[str, str]:
        """The tensors of the model: their names in it, and in the folder."""
        paths = {}
        for stored, found in self._metadata.state_dict_metadata.items():
            if hasattr(found, "chunks"):
                paths[stored] = tuple((self._metadata.planner_data or {}).get(stored, (stored,)))
        for key in WRAPPERS:
            below = {joined(p[1:]): stored for stored, p in paths.items() if p[0] == key and p[1:]}
            if below:
                return below
        return {joined(path): stored for stored, path in paths.items()}

    def fill(self, views: list[TargetView]) -> None:
        for view in views:
            self._fill(view)

    def _fill(self, view: TargetView) -> None:
        name, raw = view.tensor.name, view.tensor.raw_dtype is not None
        covered = 0
        for chunk in self._metadata.state_dict_metadata[name].chunks:
            raw_axis = [view.tensor.shape[-1]] if raw else []
            box = Box([*chunk.offsets, *[0 for _ in raw_axis]], [*chunk.sizes, *raw_axis])
            common = view.box.common(box)
            if common is None:
                continue
            covered += common.size
            copy_box(self._chunk(name, chunk), box, view)
        if covered < view.box.size:
            raise Corrupt(f"{self.url} lacks chunks of tensor {name!r}", hint=HINT)

    def _chunk(self, name: str, chunk: Any) -> Any:
        """The bytes of a stored chunk."""
        info = self._stored.get((name, tuple(chunk.offsets)))
        if info is None:
            raise Corrupt(f"{self.url} lacks chunks of tensor {name!r}", hint=HINT)
        if info.transform_descriptors:
            raise InvalidArgument(
                f"{self.url} has tensors with transforms ({info.transform_descriptors}), which "
                "Strata cannot read",
                hint="save the folder without extensions",
            )
        path = self._folder / info.relative_path
        try:
            with path.open("rb") as file:
                file.seek(info.offset)
                data = io.BytesIO(file.read(info.length))
            tensor = self._torch.load(data, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise Corrupt(
                f"tensor {name!r} in {path} cannot be read: {error}", hint=HINT
            ) from error
        source = source_of(tensor, f"{name!r} in {path}")
        image = np.empty(source.size_bytes, np.uint8)
        source.copy_into(image)
        return image
