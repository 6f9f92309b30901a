"""Where the tensors of a state go: into arrays that exist already, or into fresh ones."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from strata.checkpoint.arrays import described, empty, is_array, writable_bytes
from strata.checkpoint.reshard import Box
from strata.checkpoint.sharded import Sharded, piece_of
from strata.errors import Corrupt, InvalidArgument

MISSING = object()


class Whole(Struct, frozen=True):
    """A tensor as it is when all its boxes are put together."""

    name: str
    dtype: str
    shape: list[int]
    item_bytes: int


class View(Struct, frozen=True):
    """A box of a tensor and the memory that it is read into, in C order."""

    tensor: Whole
    box: Box
    memory: memoryview


class Targets(Struct):
    """What must be filled, for a state that is put together again.

    `assignments` are arrays that cannot be filled in place (on a device, not in order) with the
    fresh one to copy from.
    """

    tensors: dict[str, Whole]
    into: Any
    views: list[View] = field(default_factory=list)
    assignments: list[tuple[Any, Any]] = field(default_factory=list)
    fresh: dict[tuple[str, str], Any] = field(default_factory=dict)

    def leaf(self, node: dict[str, Any], path: tuple[str, ...]) -> Any:
        """What stands in the state for a `$tensor` or `$bytes` of its tree."""
        name = node.get("$tensor") or node.get("$bytes") or ""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise Corrupt(f"the manifest names a tensor {name!r} that no part has")
        if "$bytes" in node:
            return self._bytes(tensor)
        existing = found_at(self.into, path)
        if isinstance(existing, Sharded) or (
            existing is not MISSING and is_array(existing) and node["kind"] != "scalar"
        ):
            self._fill(tensor, node, existing)
            return existing
        value = self._fresh(tensor, node["kind"], node.get("dtype"))
        return Later(lambda: value[()]) if node["kind"] == "scalar" else value

    def _bytes(self, tensor: Whole) -> "Later":
        buffer = bytearray(tensor.shape[0])
        self.views.append(View(tensor, whole_box(tensor), memoryview(buffer)))
        return Later(lambda: bytes(buffer))

    def _fill(self, tensor: Whole, node: dict[str, Any], existing: Any) -> None:
        """Has an array, or the piece of one that this rank holds, filled."""
        piece = piece_of(existing)
        array = existing if piece is None else piece.array
        dtype, shape = described(array)
        whole = shape if piece is None else [*piece.global_shape]
        if (dtype, whole) != (tensor.dtype, tensor.shape):
            raise InvalidArgument(
                f"{tensor.name!r} was saved as {tensor.dtype} {tensor.shape} and is to be loaded "
                f"into {dtype} {whole}",
                hint="give an array of the same type and shape, or load without `into`",
            )
        box = Box([0] * len(shape) if piece is None else [*piece.offsets], shape)
        memory = writable_bytes(array)
        if memory is not None:
            self.views.append(View(tensor, box, memory))
        else:
            fresh = empty(node["kind"], tensor.dtype, shape, node.get("dtype"))
            self.views.append(View(tensor, box, _memory(fresh)))
            self.assignments.append((array, fresh))

    def _fresh(self, tensor: Whole, kind: str, raw_dtype: str | None) -> Any:
        key = (tensor.name, kind)
        if key not in self.fresh:
            value = empty(kind, tensor.dtype, tensor.shape, raw_dtype)
            self.views.append(View(tensor, whole_box(tensor), _memory(value)))
            self.fresh[key] = value
        return self.fresh[key]


def _memory(value: Any) -> memoryview:
    view = writable_bytes(value)
    assert view is not None, "fresh memory lies in order"
    return view


def whole_box(tensor: Whole) -> Box:
    return Box([0] * len(tensor.shape), tensor.shape)


class Later(Struct):
    """A value that exists only when its bytes have been read."""

    make: Callable[[], Any]


def finished(state: Any) -> Any:
    """The state with every `Later` made."""
    if isinstance(state, Later):
        return state.make()
    if isinstance(state, dict):
        return {key: finished(each) for key, each in state.items()}
    if isinstance(state, list):
        return [finished(each) for each in state]
    return tuple(finished(each) for each in state) if isinstance(state, tuple) else state


def found_at(state: Any, path: tuple[str, ...]) -> Any:
    """What an existing state holds at a path; keys are compared as text."""
    for key in path:
        if isinstance(state, dict):
            state = next((v for k, v in state.items() if k == key or str(k) == key), MISSING)
        elif isinstance(state, list | tuple):
            state = state[int(key)] if key.isdigit() and int(key) < len(state) else MISSING
        else:
            return MISSING
    return state
