"""Reads the matched tensors of a source into a state, and casts those of another type.

A tensor of the same type is read directly into its place. Others are read into temporary memory,
some at a time, and then converted; a value that becomes infinite by a cast raises an error.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash
from msgspec import Struct

from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.read.read_targets import TargetView, is_fillable
from strata.checkpoint.read.weight_match import TensorMatch, WeightMatch
from strata.checkpoint.read.weight_names import is_model
from strata.checkpoint.read.weight_source import WeightSource, joined
from strata.checkpoint.state.array_bytes import (
    assign,
    empty,
    is_jax,
    is_torch,
    jax_array,
    writable_bytes,
)
from strata.checkpoint.state.sharded_tensors import shard_box, shard_of
from strata.checkpoint.state.stateful import (
    ABSENT,
    Stateful,
    StateRestorer,
    children_of,
    restore_target,
)
from strata.errors import InvalidArgument

BATCH_BYTES = 256 * 1024 * 1024

Progress = Callable[[int], None]


class TensorRead(Struct):
    """One tensor to read; `fresh` is the temporary array if it is not read in place."""

    match: TensorMatch
    view: TargetView
    fresh: Any = None


class ReadDigest(Struct, frozen=True):
    """Digests of the tensors that were read whole: of their names, and of their bytes."""

    names: str
    bytes: str


class WeightTransfer:
    """Reads one source into one state."""

    def __init__(self, source: WeightSource, found: WeightMatch, progress: Progress) -> None:
        self._source, self._found = source, found
        self._progress, self._read_bytes = progress, 0
        self._values = dict(found.values)
        self._names, self._bytes = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._filled: dict[object, TensorMatch] = {}

    @property
    def digest(self) -> ReadDigest:
        return ReadDigest(names=self._names.hexdigest(), bytes=self._bytes.hexdigest())

    def run(self, state: Any) -> Any:
        """Fill the state; returns it, the same object if possible."""
        for batch in self._batches():
            self._source.fill([each.view for each in batch])
            for each in batch:
                self._finish(each)
        return StateRestorer(lambda value: None).put(state, self._loaded(state, ()), ())

    def _batches(self) -> Iterator[list[TensorRead]]:
        """The reads, with at most `BATCH_BYTES` of temporary memory at a time."""
        batch: list[TensorRead] = []
        size_bytes = 0
        for match in self._found.taken:
            each = self._planned(match)
            size_bytes += 0 if each.fresh is None else each.view.memory.nbytes
            batch.append(each)
            if size_bytes >= BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
        yield batch

    def _planned(self, match: TensorMatch) -> TensorRead:
        target, tensor = match.target, match.tensor
        piece = shard_of(match.leaf.value)
        array = match.leaf.value if piece is None else piece.array
        offsets = [0] * len(target.shape)
        if piece is not None:
            offsets = shard_box(piece, target).offsets
        box = Box(offsets, target.shape)
        again = piece is None and target.identity in self._filled
        fillable = is_fillable(array) and not match.cast and not again
        memory = writable_bytes(array) if fillable else None
        if piece is None and target.identity is not None:
            self._filled.setdefault(target.identity, match)
        if memory is not None:
            return TensorRead(match, TargetView(tensor, box, memory))
        kind = "torch" if is_torch(array) else "numpy"
        fresh = empty(kind, tensor.dtype, target.shape, tensor.raw_dtype)
        view = writable_bytes(fresh)
        assert view is not None, "new memory is in C order"
        return TensorRead(match, TargetView(tensor, box, view), fresh)

    def _finish(self, read: TensorRead) -> None:
        """Convert what was read into temporary memory, and note the digest of the bytes."""
        match, name = read.match, read.match.leaf.name
        piece = shard_of(match.leaf.value)
        if piece is None:
            self._names.update(f"{name} {read.view.tensor.dtype} {read.view.box.shape}\n".encode())
            self._bytes.update(read.view.memory)
        self._read_bytes += read.view.memory.nbytes
        self._progress(self._read_bytes)
        if read.fresh is None:
            self._values[name] = match.leaf.value
            return
        array = match.leaf.value if piece is None else piece.array
        first = self._filled.get(match.target.identity)
        if piece is None and first is not None and first is not match and is_torch(array):
            return self._require_equal(first, match, read.fresh)
        value = converted(read.fresh, array, name)
        if is_fillable(array) and (first is None or first is match or piece is not None):
            assign(array, value)
            self._values[name] = match.leaf.value
        else:
            self._values[name] = jax_array(value, "", array) if is_jax(array) else value

    def _require_equal(self, first: TensorMatch, match: TensorMatch, fresh: Any) -> None:
        """Raise if two tensors of the source differ that are one tensor in the state."""
        self._values[match.leaf.name] = match.leaf.value
        if first.tensor.name == match.tensor.name:
            return
        other = fresh.new_empty(fresh.shape)
        view = writable_bytes(other)
        assert view is not None, "new memory is in C order"
        box = Box([0] * len(match.target.shape), match.target.shape)
        self._source.fill([TargetView(first.tensor, box, view)])
        if view != writable_bytes(fresh):
            raise InvalidArgument(
                f"{first.leaf.name!r} and {match.leaf.name!r} are one tensor in this state, but "
                f"differ in {self._source.url}",
                hint="tie the same weights as in the model that was saved",
            )

    def _loaded(self, state: Any, path: tuple[Any, ...], whole: bool = False) -> Any:
        """The new values in the structure of the state; `whole` if values that stay are given."""
        if isinstance(state, Stateful):
            if is_model(state):
                return self._loaded(state.state_dict(), path, whole=True)
            taken = joined(path) in {leaf.name for leaf in self._found.objects}
            return self._source.load(path, restore_target(state)) if taken else ABSENT
        children = children_of(state)
        if not children and not isinstance(state, dict | list | tuple):
            return self._values.get(joined(path), state if whole else ABSENT)
        loaded = {key: self._loaded(each, (*path, key), whole) for key, each in children.items()}
        if isinstance(state, list) or type(state) is tuple:
            return type(state)(loaded.values())
        return loaded


def converted(value: Any, array: Any, name: str) -> Any:
    """A value that was read, as the type of an array; raises if numbers become infinite."""
    if is_torch(array):
        new = value.to(array.dtype)
        lost = new is not value and bool((_finite(value) & ~_finite(new)).any())
    else:
        with np.errstate(over="ignore"):
            new = value.astype(array.dtype, copy=False)
        lost = new is not value and _overflows(value, new)
    if lost:
        raise InvalidArgument(
            f"{name!r} has numbers beyond the range of {array.dtype}",
            hint="use a type with a larger range for it, such as float32 or bfloat16",
        )
    return new[()] if isinstance(array, np.generic) else new


def _finite(tensor: Any) -> Any:
    return tensor.double().isfinite() if tensor.is_floating_point() else tensor == tensor


def _overflows(value: Any, new: Any) -> bool:
    if new.dtype.kind in "biuSUmMc":
        return False
    return bool((np.isfinite(value) & ~np.isfinite(new)).any())
