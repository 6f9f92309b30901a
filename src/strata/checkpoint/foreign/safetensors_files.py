"""Weights in safetensors files: one file, or a Hugging Face folder with an index of several.

A file is 8 bytes with the length of its header, the header in JSON, and the bytes of the tensors.
Only the rows that are wanted are read. Neither torch nor the package safetensors is needed.
"""

from math import prod
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from strata.checkpoint.foreign.tensor_copies import copy_box
from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.read.read_targets import TargetView, WholeTensor, whole_box
from strata.checkpoint.read.weight_source import WeightSource
from strata.checkpoint.state.array_bytes import ITEM_BYTES
from strata.errors import UNDECODABLE, Corrupt, InvalidArgument, NotFound
from strata.storage.backend import ObjectReader, StorageBackend
from strata.storage.folder import LocalStorage
from strata.storage.io_threads import download, for_each

MAX_HEADER_BYTES = 100_000_000
ONE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HINT = "write or download the file again"


class _Entry(Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]


class SafetensorsFiles(WeightSource):
    """The tensors of some safetensors files in one storage."""

    def __init__(self, url: str, storage: StorageBackend, files: list[str]) -> None:
        super().__init__(url)
        self._places: dict[str, tuple[ObjectReader, int]] = {}
        self._open: list[ObjectReader] = []
        try:
            for file in files:
                self._add(storage, file)
        except BaseException:
            self.close()
            raise

    def _add(self, storage: StorageBackend, file: str) -> None:
        where = f"{storage.url}/{file}"
        place, name = _resolved(storage, file)
        reader = place.open(name)
        self._open.append(reader)
        begin, entries = _header(reader, where)
        for name, entry in entries.items():
            if name in self.tensors:
                raise Corrupt(f"{where} has tensor {name!r}, which is in another file too")
            tensor = _described(name, entry, where)
            start, stop = entry.data_offsets
            size_bytes = prod(tensor.shape) * tensor.item_bytes
            if stop - start != size_bytes or start < 0 or begin + stop > reader.size_bytes:
                raise Corrupt(
                    f"{where} is damaged: tensor {name!r} needs {size_bytes} bytes, bytes {start} "
                    f"to {stop} of {reader.size_bytes - begin} are its place",
                    hint=HINT,
                )
            self.tensors[name] = tensor
            self._places[name] = (reader, begin + start)

    def fill(self, views: list[TargetView]) -> None:
        for_each(self._fill, views)

    def _fill(self, view: TargetView) -> None:
        """Read the rows that the view touches; whole rows directly into their place."""
        tensor, box = view.tensor, view.box
        reader, offset = self._places[tensor.name]
        rows = whole_box(tensor)
        if tensor.shape:
            rows = Box([box.offsets[0], *rows.offsets[1:]], [box.shape[0], *tensor.shape[1:]])
            offset += box.offsets[0] * prod(tensor.shape[1:]) * tensor.item_bytes
        if rows.shape == box.shape:
            return download(reader, view.memory, offset)
        buffer = np.empty(rows.size * tensor.item_bytes, np.uint8)
        download(reader, buffer.data, offset)
        copy_box(buffer, rows, view)

    def close(self) -> None:
        for reader in self._open:
            reader.close()


def folder_files(storage: StorageBackend) -> list[str]:
    """The safetensors files of a Hugging Face folder; empty if it is none."""
    if not _exists(storage, INDEX_FILE):
        return [ONE_FILE] if _exists(storage, ONE_FILE) else []
    place, name = _resolved(storage, INDEX_FILE)
    try:
        index = msgspec.json.decode(place.get(name), type=_Index)
    except UNDECODABLE as error:
        raise Corrupt(f"{storage.url}/{INDEX_FILE} is damaged: {error}", hint=HINT) from error
    files = sorted(set(index.weight_map.values()))
    missing = [file for file in files if not _is_name(file) or not _exists(storage, file)]
    if missing:
        raise NotFound(
            f"{storage.url} lacks {len(missing)} of the {len(files)} files that {INDEX_FILE} "
            f"names: {', '.join(name[:80] for name in missing[:5])}",
            hint="download the folder again",
        )
    return files


def _is_name(file: str) -> bool:
    """Whether it is the name of a file directly in the folder."""
    return 0 < len(file.encode(errors="replace")) < 256 and "/" not in file and file.isprintable()


def _resolved(storage: StorageBackend, file: str) -> tuple[StorageBackend, str]:
    """Where a file is: the cache of Hugging Face consists of links that lead out of the folder."""
    if not isinstance(storage, LocalStorage):
        return storage, file
    path = Path(storage.url, file).resolve()
    return LocalStorage(path.parent), path.name


def _exists(storage: StorageBackend, file: str) -> bool:
    place, name = _resolved(storage, file)
    return place.exists(name)


def _header(reader: ObjectReader, where: str) -> tuple[int, dict[str, _Entry]]:
    """Where the data begins, and the tensors of a file by name."""
    length = bytearray(8)
    if reader.size_bytes >= 8:
        reader.read_into(0, [memoryview(length)])
    size_bytes = int.from_bytes(length, "little")
    if not 2 <= size_bytes <= min(MAX_HEADER_BYTES, reader.size_bytes - 8):
        raise Corrupt(f"{where} is not a safetensors file, or it is truncated", hint=HINT)
    header = bytearray(size_bytes)
    reader.read_into(8, [memoryview(header)])
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return 8 + size_bytes, {
            name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()
        }
    except UNDECODABLE as error:
        raise Corrupt(f"the header of {where} is damaged: {error}", hint=HINT) from error


def _described(name: str, entry: _Entry, where: str) -> WholeTensor:
    if entry.dtype not in ITEM_BYTES:
        raise InvalidArgument(
            f"tensor {name!r} in {where} has elements of type {entry.dtype}, which Strata cannot "
            "read",
            hint="convert the file to a type of NumPy or bfloat16",
        )
    return WholeTensor(
        name=name, dtype=entry.dtype, shape=entry.shape, item_bytes=ITEM_BYTES[entry.dtype]
    )
