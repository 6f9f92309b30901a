"""The arrays that the tensors of a state are read into: existing ones, or new ones."""

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct, field

from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.state.array_bytes import (
    empty,
    is_jax,
    is_torch,
    jax_array,
    source_of,
    writable_bytes,
)
from strata.checkpoint.state.containers import like, node_of
from strata.checkpoint.state.sharded_tensors import Sharded, shard_box, shard_of
from strata.checkpoint.state.state_tree import Path, by_name
from strata.checkpoint.state.stateful import SHOWN
from strata.errors import Corrupt, InvalidArgument

MISSING = object()


class WholeTensor(Struct, frozen=True):
    """A tensor with all its shards joined.

    `raw_dtype` is set where the type is known to be one that safetensors lacks.
    """

    name: str
    dtype: str
    shape: list[int]
    item_bytes: int
    raw_dtype: str | None = None

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.item_bytes


class TargetView(Struct, frozen=True):
    """A box of a tensor and the memory that it is read into, in C order."""

    tensor: WholeTensor
    box: Box
    memory: memoryview


class RestoreTargets(Struct):
    """Everything to fill for a state that is being rebuilt.

    `assignments` are arrays that cannot be filled in place (on a device, not in C order), each with
    the new array to copy from.
    """

    tensors: dict[str, WholeTensor]
    into: Any
    where: str = "the manifest"
    views: list[TargetView] = field(default_factory=list)
    assignments: list[tuple[Any, Any]] = field(default_factory=list)
    fresh: dict[tuple[str, str], Any] = field(default_factory=dict)
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    taken: dict[object, str] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)

    def leaf(self, node: dict[str, Any], path: Path) -> Any:
        """The value in the state for a `$tensor` or `$bytes` of its tree."""
        name = node.get("$tensor") or node.get("$bytes") or ""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise Corrupt(f"{self.where} names a tensor {name!r} that is in no part")
        if "$bytes" in node:
            return self._bytes(tensor)
        existing = self._found(path)
        if is_jax(existing):
            return self._jax(tensor, node, existing)
        fillable = is_fillable(existing) and node["kind"] != "scalar"
        if (isinstance(existing, Sharded) or fillable) and not self._is_taken(tensor, existing):
            self._fill(tensor, node, existing)
            return existing
        if node["kind"] == "jax" and "jax" in sys.modules:
            return self._jax(tensor, node, None)
        value = self._fresh(tensor, node["kind"], node.get("dtype"))
        return PendingValue(lambda: value[()]) if node["kind"] == "scalar" else value

    def _is_taken(self, tensor: WholeTensor, existing: Any) -> bool:
        """Whether another tensor of the checkpoint is read into the same array."""
        if shard_of(existing) is not None:
            return False
        identity = source_of(existing, "the target").identity
        other = tensor.name if identity is None else self.taken.setdefault(identity, tensor.name)
        if other != tensor.name and is_torch(existing):
            raise InvalidArgument(
                f"{other!r} and {tensor.name!r} of the checkpoint are one tensor in this state",
                hint="tie the same weights as in the model that was saved",
            )
        return other != tensor.name

    def object(self, node: dict[str, Any], path: Path, fields: dict[str, Any]) -> "PendingValue":
        """The value for an `$object`: like the existing one, or of the type that the checkpoint
        names.
        """
        existing = self._found(path)
        known = None if existing is MISSING else node_of(existing)
        if known is None or known.fields.keys() != fields.keys():
            return PendingValue(lambda: by_name(node, path, completed(fields)))
        return PendingValue(lambda: like(existing, completed(fields)))

    def _found(self, path: Path) -> Any:
        """The value of the existing state at a path."""
        state = self.into
        for key in path:
            if isinstance(state, dict):
                state = state.get(key, MISSING)
            elif isinstance(state, list) or type(state) is tuple:
                known = isinstance(key, int) and key < len(state)
                state = state[key] if known else MISSING
            else:
                state = self._fields(state).get(key, MISSING)
        return state

    def _fields(self, state: Any) -> dict[str, Any]:
        if id(state) not in self.known:
            node = None if state is MISSING else node_of(state)
            self.known[id(state)] = node.fields if node is not None else {}
        return self.known[id(state)]

    def _jax(self, tensor: WholeTensor, node: dict[str, Any], existing: Any) -> "PendingValue":
        """A new JAX array in place of the existing one, since JAX arrays are immutable."""
        if existing is not None:
            source = source_of(existing, "the target")
            self._fits(tensor, node, source.dtype, source.shape, source.raw_dtype)
        value = self._fresh(tensor, "jax", node.get("dtype"))
        return PendingValue(lambda: jax_array(value, node.get("key", ""), existing))

    def _bytes(self, tensor: WholeTensor) -> "PendingValue":
        buffer = bytearray(tensor.shape[0])
        self.views.append(TargetView(tensor, whole_box(tensor), memoryview(buffer)))
        return PendingValue(lambda: bytes(buffer))

    def _fill(self, tensor: WholeTensor, node: dict[str, Any], existing: Any) -> None:
        """Schedule the filling of an array, or of the shard that this rank holds."""
        piece = shard_of(existing)
        array = existing if piece is None else piece.array
        source = source_of(array, "the target")
        shard = None if piece is None else shard_box(piece, source)
        whole = source.shape if shard is None else shard.global_shape
        if not self._fits(tensor, node, source.dtype, whole, source.raw_dtype):
            return
        shape = source.shape
        box = Box([0] * len(shape) if shard is None else shard.offsets, shape)
        memory = writable_bytes(array)
        if memory is not None:
            self.views.append(TargetView(tensor, box, memory))
        else:
            fresh = empty(source.kind, tensor.dtype, shape, node.get("dtype"))
            self.views.append(TargetView(tensor, box, _memory(fresh)))
            self.assignments.append((array, fresh))

    def _fits(
        self,
        tensor: WholeTensor,
        node: dict[str, Any],
        dtype: str,
        shape: list[int],
        raw_dtype: str | None,
    ) -> bool:
        """Whether a tensor has the type and shape of its place; if not, it is noted."""
        fits = (tensor.dtype, tensor.shape, node.get("dtype")) == (dtype, shape, raw_dtype)
        if not fits:
            self.unfit.append(
                f"{tensor.name!r} was saved as {node.get('dtype', tensor.dtype)} {tensor.shape} "
                f"but would be loaded into {raw_dtype or dtype} {shape}"
            )
        return fits

    def require_fit(self) -> None:
        """Raise if tensors do not fit the state; nothing has been changed yet."""
        if not self.unfit:
            return
        every = len(self.unfit)
        counted = f"{every} tensors do not fit: " if every > 1 else ""
        more = f"; and {every - SHOWN} more" if every > SHOWN else ""
        raise InvalidArgument(
            f"{counted}{'; '.join(self.unfit[:SHOWN])}{more}",
            hint="restore into the model and optimizer that were saved; to begin a new run with "
            "what fits, use run.restore(..., from_=…, strict=False)",
        )

    def _fresh(self, tensor: WholeTensor, kind: str, raw_dtype: str | None) -> Any:
        key = (tensor.name, kind)
        if key not in self.fresh:
            value = memory_for(tensor, kind, tensor.shape, raw_dtype)
            self.views.append(TargetView(tensor, whole_box(tensor), _memory(value)))
            self.fresh[key] = value
        return self.fresh[key]


def memory_for(
    tensor: WholeTensor, kind: str, shape: list[int], raw_dtype: str | None = None
) -> Any:
    """A new array for a tensor or a box of it, as the checkpoint describes it."""
    try:
        return empty(kind, tensor.dtype, shape, raw_dtype)
    except (AttributeError, KeyError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise Corrupt(
            f"there is no memory for tensor {tensor.name!r} of type {raw_dtype or tensor.dtype} "
            f"and shape {shape}: {error}",
            hint="free memory, or use another checkpoint if the shape is wrong",
        ) from error


def is_fillable(existing: Any) -> bool:
    """Whether an existing array is filled in place; a read-only one is replaced."""
    if isinstance(existing, np.ndarray):
        return bool(existing.flags.writeable)
    return existing is not MISSING and is_torch(existing)


def _memory(value: Any) -> memoryview:
    view = writable_bytes(value)
    assert view is not None, "new memory is in C order"
    return view


def whole_box(tensor: WholeTensor) -> Box:
    return Box([0] * len(tensor.shape), tensor.shape)


class PendingValue(Struct):
    """A value that is created after its bytes have been read."""

    make: Callable[[], Any]


def completed(state: Any) -> Any:
    """The state with every `PendingValue` replaced by its value."""
    if isinstance(state, PendingValue):
        return state.make()
    if isinstance(state, dict):
        return {key: completed(each) for key, each in state.items()}
    if isinstance(state, list):
        return [completed(each) for each in state]
    return tuple(completed(each) for each in state) if isinstance(state, tuple) else state
