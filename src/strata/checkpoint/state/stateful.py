"""States made of objects with `state_dict`: models, optimizers and others.

A script may pass `{"model": model, "optimizer": optimizer}` itself. The result of `state_dict()` is
saved; restoring fills those tensors in place and then passes everything to `load_state_dict`, which
also accepts what did not exist before an optimizer's first step.

Containers stay the same objects if possible: a dict, a list or a dataclass that was passed is
filled in place, so other references to it see the restored state. Immutable objects (tuples,
NamedTuples, frozen dataclasses, JAX arrays) are replaced by new ones of the same type.

Values that the checkpoint lacks stay as they are, with a warning, except the tensors of a model:
restoring only part of a model raises an error before anything is changed.
"""

import logging
from collections.abc import Callable
from copy import copy
from typing import Any, Protocol, runtime_checkable

from strata.checkpoint.state.array_bytes import is_array
from strata.checkpoint.state.containers import Container, filled, is_mutable, like, node_of
from strata.checkpoint.state.sharded_tensors import is_dtensor
from strata.errors import InvalidArgument

log = logging.getLogger(__name__)

ABSENT = object()
SHOWN = 5


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def plain(state: Any) -> Any:
    """The state with every object replaced by its own state."""
    if isinstance(state, Stateful):
        return plain(state.state_dict())
    if isinstance(state, dict):
        return {key: plain(each) for key, each in state.items()}
    if isinstance(state, list):
        return [plain(each) for each in state]
    if type(state) is tuple:
        return tuple(plain(each) for each in state)
    node = node_of(state)
    if node is None:
        return state
    fields = {name: plain(each) for name, each in node.fields.items()}
    same = all(fields[name] is each for name, each in node.fields.items())
    return state if same else like(state, fields)


def restore_target(state: Any) -> Any:
    """The `plain` state to restore into: an optimizer of sharded parameters has its moments.

    An optimizer creates them at its first step. Without them they would be read whole on every
    rank, as tensors that it cannot use.
    """
    if isinstance(state, dict):
        return {key: restore_target(each) for key, each in state.items()}
    if hasattr(state, "param_groups") and not state.state_dict()["state"]:
        _make_moments(state)
    return plain(state)


def _make_moments(optimizer: Any) -> None:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(is_dtensor(each) for each in parameters):
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    gradients = [each.grad for each in parameters]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for each in parameters:
        each.grad = each.detach() * 0 if each.requires_grad else None
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for each, gradient in zip(parameters, gradients, strict=True):
        each.grad = gradient


def restore_into(
    state: Any, loaded: Any, placed: Callable[[Any], None] = lambda value: None
) -> Any:
    """Put loaded values into an existing state; return the state, the same object if possible.

    `placed` is called with each value that is in its place.
    """
    missing = missing_tensors(state, loaded)
    if missing:
        shown = ", ".join(missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InvalidArgument(
            f"the checkpoint has no values for {len(missing)} tensors of the model: {shown}{more}",
            hint="restore into the model that was saved; to begin a new run with what fits, use "
            "run.restore(..., from_=…, strict=False)",
        )
    putting = StateRestorer(placed)
    state, kept = putting.put(state, loaded, ()), putting.kept
    if kept:
        shown = ", ".join(kept[:SHOWN]) + (f" and {len(kept) - SHOWN} more" * (len(kept) > SHOWN))
        log.warning("the checkpoint has no %s: not restored", shown)
    return state


def missing_tensors(state: Any, loaded: Any, path: tuple[str, ...] = ()) -> list[str]:
    """The tensors of models in a state for which nothing was loaded."""
    if isinstance(state, Stateful):
        if not hasattr(state, "named_parameters"):
            return []
        known = loaded if isinstance(loaded, dict) else {}
        tensors = [name for name, each in state.state_dict().items() if is_array(each)]
        return [shown((*path, name)) for name in tensors if name not in known]
    children, found = children_of(state), children_of(loaded)
    return [
        name
        for key, each in children.items()
        for name in missing_tensors(each, found.get(key, ABSENT), (*path, str(key)))
    ]


def children_of(state: Any) -> dict[Any, Any]:
    """The content of a container, by key, position or field; empty for other values."""
    if isinstance(state, dict):
        return state
    if isinstance(state, list) or type(state) is tuple:
        return dict(enumerate(state))
    node = node_of(state)
    return node.fields if node is not None else {}


def shown(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


class StateRestorer:
    """Puts loaded values into a state; `kept` names what the checkpoint lacks.

    A container that occurs several times in the state is filled once. At its other places a copy is
    filled, since different values may have been loaded for them: one tree of zeros may be both
    moments of an optimizer before its first step, but not later.
    """

    def __init__(self, placed: Callable[[Any], None]) -> None:
        self.kept: list[str] = []
        self._placed = placed
        self._filled: set[int] = set()

    def put(self, state: Any, loaded: Any, path: tuple[str, ...]) -> Any:
        """The new value of the state at a path; the same object if it can be changed.

        What is `ABSENT` stays as it is.
        """
        if loaded is ABSENT:
            return state
        if isinstance(state, Stateful):
            state.load_state_dict(loaded)
            self._placed(loaded)
            return state
        if isinstance(state, dict) and isinstance(loaded, dict):
            return self._put_dict(self._own(state), loaded, path)
        plain = isinstance(state, list | tuple) and not is_node(state)
        if plain and isinstance(loaded, type(state)):
            return self._put_sequence(state, loaded, path)
        node = node_of(state)
        if node is None or not (isinstance(loaded, dict | list | tuple) or is_node(loaded)):
            self._placed(loaded)
            return loaded
        return self._put_object(state, node, fields_from(node, loaded, path), path)

    def _own(self, state: Any) -> Any:
        """The container itself the first time, then copies of it."""
        if id(state) in self._filled:
            return copy(state)
        self._filled.add(id(state))
        return state

    def _put_dict(
        self, state: dict[Any, Any], loaded: dict[Any, Any], path: tuple[str, ...]
    ) -> dict[Any, Any]:
        self.kept += [shown((*path, str(key))) for key in state if key not in loaded]
        for key, each in loaded.items():
            state[key] = self.put(state.get(key), each, (*path, str(key)))
        return state

    def _put_sequence(self, state: Any, loaded: Any, path: tuple[str, ...]) -> Any:
        known = [*state, *[None] * (len(loaded) - len(state))]
        values = [
            self.put(was, each, (*path, str(index)))
            for index, (was, each) in enumerate(zip(known, loaded, strict=False))
        ]
        if isinstance(state, tuple):
            return tuple(values)
        state = self._own(state)
        state[:] = values
        return state

    def _put_object(
        self, state: Any, node: Container, fields: dict[str, Any], path: tuple[str, ...]
    ) -> Any:
        self.kept += [shown((*path, name)) for name in node.fields if name not in fields]
        new = {
            name: self.put(was, fields[name], (*path, name)) if name in fields else was
            for name, was in node.fields.items()
        }
        if is_mutable(state) and node.kind != "pytree":
            return filled(self._own(state), new)
        return like(state, new)


def is_node(state: Any) -> bool:
    return node_of(state) is not None


def fields_from(node: Container, loaded: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """What was loaded for an object, by field.

    An object that cannot be built without an original was loaded as a dict; NamedTuples were once
    saved as plain tuples.
    """
    if type(loaded) in (tuple, list) and len(loaded) == len(node.fields):
        return dict(zip(node.fields, loaded, strict=True))
    found = children_of(loaded)
    if not found.keys() <= node.fields.keys():
        raise InvalidArgument(
            f"{shown(path)} is a {node.type} with {', '.join(node.fields) or 'nothing'}, but the "
            f"checkpoint has {', '.join(map(str, found))}",
            hint="restore into a state of the types that were saved",
        )
    return found
