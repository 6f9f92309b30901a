"""Weights in a file that `torch.save` wrote, read without running code from it.

PyTorch loads it with `weights_only=True`, and maps the file into memory where its format allows, so
that tensors which are not used are not read.
"""

from errno import EINVAL
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from strata.checkpoint.foreign.tensor_copies import copy_box
from strata.checkpoint.read.read_targets import TargetView, WholeTensor, whole_box
from strata.checkpoint.read.weight_source import WeightSource, leaves
from strata.checkpoint.state.array_bytes import TensorSource, is_torch, source_of
from strata.errors import Corrupt, InvalidArgument

WRAPPERS = ("model", "state_dict", "model_state_dict", "module")
"""Keys under which training scripts commonly save the state dict of a model."""


def torch_module(url: str) -> Any:
    """PyTorch, which reading its own formats needs."""
    try:
        return import_module("torch")
    except ImportError:
        raise InvalidArgument(
            f"{url} is a file of PyTorch, which is not installed here",
            hint="install torch, or convert the file to safetensors",
        ) from None


class TorchFile(WeightSource):
    """The state dict in a file of `torch.save`, or the one below a common key in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        loaded = _loaded(torch_module(self.url), path)
        self._sources: dict[str, TensorSource] = {}
        known: dict[object, str] = {}
        for name, value in leaves(unwrapped(loaded)):
            if is_torch(value):
                source = source_of(value, f"{name!r} in {self.url}")
                stored = known.setdefault(source.identity or name, name)
                self._sources.setdefault(stored, source)
                self.tensors[name] = WholeTensor(
                    name=stored,
                    dtype=source.dtype,
                    shape=source.shape,
                    item_bytes=1 if source.raw_dtype else source.item_bytes,
                    raw_dtype=source.raw_dtype,
                )

    def fill(self, views: list[TargetView]) -> None:
        for view in views:
            source = self._sources[view.tensor.name]
            data = source.flat()
            if data is None:
                data = np.empty(source.size_bytes, np.uint8)
                source.copy_into(data)
            copy_box(data, whole_box(view.tensor), view)


def unwrapped(state: Any) -> Any:
    """The state dict of a model, without the dict around it that scripts commonly save."""
    if isinstance(state, dict):
        for key in WRAPPERS:
            if isinstance(state.get(key), dict) and any(
                is_torch(value) for _, value in leaves(state[key])
            ):
                return state[key]
    return state


def _loaded(torch: Any, path: Path) -> Any:
    def load(**how: Any) -> Any:
        return torch.load(path, map_location="cpu", weights_only=True, **how)

    try:
        try:
            return load(mmap=True)
        except (RuntimeError, ValueError, OSError):
            return load()  # written in PyTorch's older format, which cannot be mapped
    except UnpicklingError as error:
        raise InvalidArgument(
            f"{path} is not a file of torch.save with only weights: {_first_line(error)}",
            hint="save model.state_dict() with torch.save, or use safetensors",
        ) from error
    except Exception as error:  # PyTorch raises errors of many types for damaged bytes
        if isinstance(error, OSError) and error.errno != EINVAL:
            raise  # the disk, or permissions
        raise Corrupt(
            f"{path} is damaged, or is not a file of torch.save: {_first_line(error)}",
            hint="write or download the file again",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
