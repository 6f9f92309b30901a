"""Where the tensors of a state go: into arrays that exist already, or into fresh ones."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from strata.checkpoint.arrays import described, empty, is_array, writable_bytes
from strata.checkpoint.format import Tensor
from strata.errors import Corrupt, InvalidArgument

MISSING = object()


class Targets(Struct):
    """What must be filled, for a state that is put together again.

    `views` are tensors with the memory they are read into; `assignments` are arrays that cannot be
    filled in place (on a device, not in order) with the fresh one to copy from.
    """

    tensors: dict[str, Tensor]
    into: Any
    views: list[tuple[Tensor, memoryview]] = field(default_factory=list)
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
        if existing is not MISSING and is_array(existing) and node["kind"] != "scalar":
            return self._existing(tensor, node, existing)
        value = self._fresh(tensor, node["kind"], node.get("dtype"))
        return Later(lambda: value[()]) if node["kind"] == "scalar" else value

    def _bytes(self, tensor: Tensor) -> "Later":
        buffer = bytearray(tensor.size_bytes)
        self.views.append((tensor, memoryview(buffer)))
        return Later(lambda: bytes(buffer))

    def _existing(self, tensor: Tensor, node: dict[str, Any], existing: Any) -> Any:
        if described(existing) != (tensor.dtype, tensor.shape):
            dtype, shape = described(existing)
            raise InvalidArgument(
                f"{tensor.name!r} was saved as {tensor.dtype} {tensor.shape} and is to be loaded "
                f"into {dtype} {shape}",
                hint="give an array of the same type and shape, or load without `into`",
            )
        view = writable_bytes(existing)
        if view is not None:
            self.views.append((tensor, view))
        else:
            self.assignments.append(
                (existing, self._fresh(tensor, node["kind"], node.get("dtype")))
            )
        return existing

    def _fresh(self, tensor: Tensor, kind: str, raw_dtype: str | None) -> Any:
        key = (tensor.name, kind)
        if key not in self.fresh:
            value = empty(kind, tensor.dtype, tensor.shape, raw_dtype)
            view = writable_bytes(value)
            assert view is not None, "fresh memory lies in order"
            self.views.append((tensor, view))
            self.fresh[key] = value
        return self.fresh[key]


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
