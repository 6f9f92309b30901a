"""Weights of other tools: tensors within the file's bytes, or an error that names the file.

The first byte says whether the rest is a safetensors file, the index of a folder, or a file of
`torch.save`.
"""

import io
import tempfile
from functools import cache
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.numpy import save

from strata.checkpoint.foreign.foreign_weights import open_foreign
from strata.config import Settings
from strata.storage.locations import open_storage
from tests.fuzz.targets import refused_naming

NAMES = ("model.safetensors", "model.safetensors.index.json", "model.pt")


@cache
def _files() -> tuple[bytes, ...]:
    arrays = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.int8)}
    written = io.BytesIO()
    torch.save({"model": {"a.weight": torch.arange(6.0), "b": torch.ones(2)}}, written)
    names = {"a.weight": NAMES[0], "b": NAMES[0]}
    index = msgspec.json.encode({"metadata": {"total_size": 27}, "weight_map": names})
    return save(arrays), index, written.getvalue()


def seeds() -> list[bytes]:
    return [bytes([number]) + content for number, content in enumerate(_files())]


def check(data: bytes) -> None:
    number = data[0] % 3 if data else 0
    chosen = NAMES[number]
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        folder = Path(made)
        if number == 1:
            (folder / NAMES[0]).write_bytes(_files()[0])
        (folder / chosen).write_bytes(data[1:])
        place = folder if number == 1 else folder / chosen
        with refused_naming(made):
            source = open_foreign(open_storage(str(place), Settings()), Settings())
            try:
                _require_within(source.tensors.values(), len(data) + 1_000)
            finally:
                source.close()


def _require_within(tensors, most_bytes: int) -> None:
    for tensor in tensors:
        assert all(size >= 0 for size in tensor.shape), f"a shape of {tensor.shape}"
        assert prod(tensor.shape) * tensor.item_bytes <= 64 * most_bytes
