"""Reads the matched tensors of a source into a state, and casts those of another type.

Some tensors at a time are read. Those of the same type are read directly into their place, others
into temporary memory and then converted; a value that becomes infinite by a cast raises an error.
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
    """One tensor to read; `fresh` is the temporary array if it is not read in place.

    `first` is the tensor that was read before into the same memory, if there is one.
    """

    match: TensorMatch
    view: TargetView
    array: Any
    fresh: Any = None
    first: TensorMatch | None = None


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
        """The reads, about `BATCH_BYTES` at a time."""
        batch: list[TensorRead] = []
        for match in self._found.taken:
            batch.append(self._planned(match))
            if sum(each.view.memory.nbytes for each in batch) >= BATCH_BYTES:
                yield batch
                batch = []
        yield batch

    def _planned(self, match: TensorMatch) -> TensorRead:
        target, tensor, value = match.target, match.tensor, match.leaf.value
        piece, first = shard_of(value), None
        array, offsets = value, [0] * len(target.shape)
        if piece is not None:
            array, offsets = piece.array, shard_box(piece, target).offsets
        elif target.identity is not None:
            earlier = self._filled.setdefault(target.identity, match)
            first = earlier if earlier is not match else None
        box = Box(offsets, target.shape)
        in_place = is_fillable(array) and not match.cast and first is None
        memory = writable_bytes(array) if in_place else None
        if memory is not None:
            view = TargetView(tensor, box, memory)
            return TensorRead(match=match, view=view, array=array)
        kind = "torch" if is_torch(array) else "numpy"
        fresh = empty(kind, tensor.dtype, target.shape, tensor.raw_dtype)
        view = TargetView(tensor, box, new_memory(fresh))
        return TensorRead(match=match, view=view, array=array, fresh=fresh, first=first)

    def _finish(self, read: TensorRead) -> None:
        """Put what was read into its place, and note the digest of the bytes."""
        leaf, array, value = read.match.leaf, read.array, read.match.leaf.value
        if shard_of(value) is None:
            described = f"{leaf.name} {read.view.tensor.dtype} {read.view.box.shape}\n"
            self._names.update(described.encode())
            self._bytes.update(read.view.memory)
        self._read_bytes += read.view.memory.nbytes
        self._progress(self._read_bytes)
        if read.first is not None and is_torch(array):
            self._require_equal(read.first, read)
        elif read.fresh is not None:
            new = converted(read.fresh, array, leaf.name)
            if is_fillable(array) and read.first is None:
                assign(array, new)
            else:
                value = jax_array(new, "", array) if is_jax(array) else new
        self._values[leaf.name] = value

    def _require_equal(self, first: TensorMatch, read: TensorRead) -> None:
        """Raise if two tensors of the source differ that are one tensor in the state."""
        if first.tensor.name == read.match.tensor.name:
            return
        other = read.fresh.new_empty(read.fresh.shape)
        self._source.fill([TargetView(first.tensor, read.view.box, new_memory(other))])
        if new_memory(other) != read.view.memory:
            raise InvalidArgument(
                f"{first.leaf.name!r} and {read.match.leaf.name!r} are one tensor in this state, "
                f"but differ in {self._source.url}",
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


def new_memory(array: Any) -> memoryview:
    """The memory of an array that was just created."""
    memory = writable_bytes(array)
    assert memory is not None, "new memory is in C order"
    return memory


def converted(value: Any, array: Any, name: str) -> Any:
    """A value that was read, as the type of an array; raises if numbers become infinite."""
    if is_torch(array):
        new = value.to(array.dtype)
        lost = new is not value and new.is_floating_point() and _overflows(value, new)
    else:
        with np.errstate(over="ignore"):
            new = value.astype(array.dtype, copy=False)
        # Types of ml_dtypes, such as bfloat16, are of kind V.
        lost = new is not value and new.dtype.kind in "fV" and _overflows(value, new)
    if lost:
        raise InvalidArgument(
            f"{name!r} has numbers beyond the range of {array.dtype}",
            hint="use a type with a larger range for it",
        )
    return new[()] if isinstance(array, np.generic) else new


def _overflows(value: Any, new: Any) -> bool:
    """Whether a finite number became infinite."""
    if is_torch(new):
        # The extremes of a tensor with a NaN are NaN. Comparing them is several times faster than
        # looking at each element.
        if not new.numel() or all(bool(each.isfinite()) for each in new.aminmax()):
            return False
        value = value.float() if value.element_size() == 1 else value
        return bool((value.isfinite() & ~new.isfinite()).any())
    return bool((np.isfinite(value) & ~np.isfinite(new)).any())
