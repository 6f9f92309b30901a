"""Export to a folder that `torch.distributed.checkpoint.load` reads.

DCP plans the export itself, over tensors without memory. Its own writer would hold every tensor of
a file until the file is complete; the writer here puts the same bytes in the same format into one
file, but leaves space for those of the tensors, which are filled in afterwards.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from strata.checkpoint.export.exported_state import ExportedState
from strata.checkpoint.export.tensor_filler import FilePlace
from strata.checkpoint.export.torch_archive import (
    TensorPlaceholders,
    record_starts,
    save_without_data,
)
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.errors import InvalidArgument

FILE = "__0_0.distcp"


class DcpLayout:
    """The folder of an export to DCP's format."""

    left_out: list[str]
    notes: list[str]

    def __init__(self, reader: CheckpointReader, state: ExportedState) -> None:
        self._content = TensorPlaceholders(reader, state)
        if not isinstance(self._content.state, dict):
            raise InvalidArgument(
                "DCP holds dicts only, and this state is not a dict", hint="use --format torch"
            )
        sizes = [reader.whole(leaf.stored).size_bytes for leaf in state.arrays.values()]
        self.size_bytes = sum(sizes)
        self.left_out, self.notes = [], []

    def write(self, folder: Path) -> list[FilePlace]:
        """Let DCP write the folder without the bytes of tensors; return where they belong."""
        names = {id(tensor): name for name, tensor in self._content.tensors.items()}
        writer = SparseWriter(folder, names)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that no process group exists
                dcp.save(self._content.state, storage_writer=writer, no_dist=True)
        except dcp.CheckpointException as error:
            cause = next(each for each, _ in error.failures.values())
            if isinstance(cause, ValueError):
                raise InvalidArgument(f"DCP refuses this state: {cause}") from cause
            raise cause from error
        return writer.places

    def load_line(self, folder: Path) -> str:
        return f'torch.distributed.checkpoint.load(state, checkpoint_id="{folder}")'


class SparseWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """Writes one file with space for the bytes of tensors; `places` says where they belong."""

    def __init__(self, folder: Path, names: dict[int, str]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._names = names
        self.places: list[FilePlace] = []

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the items of a plan, as the writer that this one replaces."""
        results = []
        draft = self._folder / "tensor.pt"
        with open(self._folder / FILE, "xb") as file:
            for item in plan.items:
                offset, data = file.tell(), planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    file.write(data.getbuffer())
                else:
                    save_without_data(data, draft)
                    self._append(file, draft, data)
                length = file.tell() - offset
                results.append(
                    WriteResult(
                        index=item.index,
                        size_in_bytes=length,
                        storage_data=_StorageInfo(FILE, offset, length),
                    )
                )
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(results)
        return future

    def _append(self, file: Any, draft: Path, tensor: Any) -> None:
        """Append a file of torch.save, with a hole in place of the tensor's bytes."""
        [start] = record_starts(draft, [tensor.nbytes])
        self.places.append(
            FilePlace(self._names[id(tensor)], self._folder / FILE, file.tell() + start)
        )
        with open(draft, "rb") as saved:
            file.write(saved.read(start))
            saved.seek(tensor.nbytes, 1)
            file.seek(tensor.nbytes, 1)
            file.write(saved.read())
        draft.unlink()  # a filesystem may write a file to disk that is overwritten
