"""Exports a checkpoint: selects the state, lays out the files of the format, and fills them.

Everything is checked before the target folder is created, each byte is verified against the
manifest while it is read, and the folder appears only when it is complete and synced.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from strata.checkpoint.export.export_folder import new_folder, require_absent
from strata.checkpoint.export.exported_state import ExportedState, exported_state, tree_of
from strata.checkpoint.export.huggingface_export import huggingface_layout, model_part
from strata.checkpoint.export.safetensors_export import safetensors_layout
from strata.checkpoint.export.tensor_filler import FilePlace, fill_files
from strata.checkpoint.manifest import Manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.errors import InvalidArgument

Format = Literal["safetensors", "hf", "torch", "dcp"]
SHARD_BYTES = 5_000_000_000


class ExportRequest(Struct, frozen=True, kw_only=True):
    """What to export: the format, the target folder, and the path of a part of the state."""

    format: Format
    out: Path
    only: str = ""
    shard_bytes: int = SHARD_BYTES
    config_from: Path | None = None


class ExportReport(Struct, frozen=True, kw_only=True):
    """What was exported. `left_out` names the values that the format cannot hold."""

    checkpoint_id: str
    format: str
    path: str
    size_bytes: int
    left_out: list[str]
    notes: list[str]
    load: str


class Layout(Protocol):
    """The files of one format."""

    size_bytes: int
    left_out: list[str]
    notes: list[str]

    def write(self, folder: Path) -> list[FilePlace]: ...

    def load_line(self, folder: Path) -> str: ...


class CheckpointExport:
    """An export that was checked and can be run; `size_bytes` is the size of its tensors."""

    def __init__(self, reader: CheckpointReader, request: ExportRequest) -> None:
        require_absent(request.out)
        self._reader = reader
        self._request = request
        self._layout = layout_of(reader, request)
        self.size_bytes = self._layout.size_bytes

    def run(self, progress: Callable[[int], None] = lambda written_bytes: None) -> ExportReport:
        """Write the folder; `progress` gets the bytes of tensors written so far."""
        request, layout = self._request, self._layout
        with new_folder(request.out) as folder:
            fill_files(self._reader, layout.write(folder), progress)
            size_bytes = sum(file.stat().st_size for file in folder.iterdir())
        return ExportReport(
            checkpoint_id=self._reader.manifest.checkpoint_id,
            format=request.format,
            path=str(request.out),
            size_bytes=size_bytes,
            left_out=layout.left_out,
            notes=layout.notes + rank_notes(self._reader.manifest),
            load=layout.load_line(request.out),
        )


def layout_of(reader: CheckpointReader, request: ExportRequest) -> Layout:
    """The layout of the requested format."""
    if request.config_from is not None and request.format != "hf":
        raise InvalidArgument(
            f"--config-from is not used by format {request.format}", hint="use --format hf"
        )
    part = request.only or (model_part(reader.manifest) if request.format == "hf" else "")
    state = exported_state(reader.manifest, part)
    if not state.arrays:
        raise InvalidArgument(
            f"{part!r} of the state has no arrays" if part else "the state has no arrays",
            hint="strata.load(path) reads its values",
        )
    if request.format == "hf":
        return huggingface_layout(reader, state, part, request.shard_bytes, request.config_from)
    if request.format == "safetensors":
        return safetensors_layout(reader, state, request.shard_bytes)
    return torch_layout(reader, state, request.format)


def torch_layout(
    reader: CheckpointReader, state: ExportedState, wanted: Literal["torch", "dcp"]
) -> Layout:
    """The layout of a format that needs torch, which is imported only here."""
    module, name = {
        "torch": ("torch_archive", "TorchLayout"),
        "dcp": ("dcp_export", "DcpLayout"),
    }[wanted]
    found = import_module(f"strata.checkpoint.export.{module}")
    layout: Layout = getattr(found, name)(reader, state)
    return layout


def rank_notes(manifest: Manifest) -> list[str]:
    """What ranks saved that is not in the export."""
    tree = tree_of(manifest)
    others = [part.rank for part in manifest.parts if part.tree not in (None, tree)]
    notes = []
    if others:
        ranks = ", ".join(map(str, others))
        notes.append(f"the values that ranks {ranks} saved differently are not exported")
    if any(part.local is not None for part in manifest.parts):
        notes.append("the states of the ranks' random generators are not exported")
    return notes
