"""Objects that hold parts of a state under names: NamedTuples, dataclasses, Structs, JAX pytrees.

`node_of` returns the parts of such an object, and `like` makes an object of the same type with
other parts, without calling `__init__`: frozen objects are built again, and what is not part of the
state (the static fields of a flax dataclass, the auxiliary data of a pytree) is taken from the
original.

A checkpoint names the type. Without an original, `revived` builds it from a class that the program
has already imported; a checkpoint never causes an import or runs code.
"""

import copy
import dataclasses
import logging
import sys
from collections import namedtuple
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from strata.checkpoint.state.array_bytes import is_jax, is_torch
from strata.checkpoint.state.sharded_tensors import Sharded

log = logging.getLogger(__name__)

PLAIN = (type, dict, list, str, bytes, int, float, np.ndarray, np.generic, Sharded)


class Container(Struct, frozen=True):
    """The kind of an object, the name of its type, and the parts of the state that it holds."""

    kind: str
    type: str
    fields: dict[str, Any]


def node_of(value: Any) -> Container | None:
    """The parts of an object; None if it has none, and for plain dicts, lists and tuples."""
    if value is None or isinstance(value, PLAIN) or is_torch(value) or is_jax(value):
        return None
    fields, kind = None, ""
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            kind, fields = "namedtuple", dict(zip(value._fields, value, strict=True))
    elif (children := _pytree_children(value)) is not None:
        kind, fields = "pytree", children
    elif dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
        kind, fields = "dataclass", {n: getattr(value, n) for n in names if hasattr(value, n)}
    elif isinstance(value, Struct):
        kind, fields = "struct", {n: getattr(value, n) for n in value.__struct_fields__}
    if fields is None:
        return None
    return Container(kind, f"{type(value).__module__}:{type(value).__qualname__}", fields)


def _pytree_children(value: Any) -> dict[str, Any] | None:
    """The parts of an object that is registered with JAX; None for any other."""
    trees = sys.modules.get("jax.tree_util")
    if trees is None:
        return None
    children, definition = trees.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    if trees.treedef_is_leaf(definition):
        return None
    named: dict[str, Any] = {}
    for (key,), child in children:
        name = next(
            (str(getattr(key, each)) for each in ("name", "key", "idx") if hasattr(key, each)),
            str(key),
        )
        named[name if name not in named else f"{name}#{len(named)}"] = child
    return named


def like(value: Any, fields: dict[str, Any]) -> Any:
    """An object of the same type that holds these parts instead."""
    node = node_of(value)
    assert node is not None, "an original holds parts"
    assert fields.keys() == node.fields.keys(), "another like it holds the same parts"
    if node.kind == "namedtuple":
        return type(value)._make(fields[name] for name in value._fields)
    if node.kind == "pytree":
        trees = sys.modules["jax.tree_util"]
        definition = trees.tree_structure(value, is_leaf=lambda x: x is not value)
        return trees.tree_unflatten(definition, [fields[name] for name in node.fields])
    return filled(copy.copy(value), fields)


def filled(value: Any, fields: dict[str, Any]) -> Any:
    """A dataclass or Struct, frozen or not, with its fields set in place."""
    put = msgspec.structs.force_setattr if isinstance(value, Struct) else object.__setattr__
    for name, each in fields.items():
        put(value, name, each)
    return value


def is_mutable(value: Any) -> bool:
    """Whether an object's parts can be replaced in place."""
    if isinstance(value, Struct):
        return not value.__struct_config__.frozen
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and not parameters.frozen


def revived(kind: str, type_name: str, fields: dict[str, Any]) -> Any:
    """An object of the type that a checkpoint names, or a plain substitute if
    it cannot be built.
    """
    found = _imported(type_name)
    if isinstance(found, type) and _names_of(found, kind) == fields.keys():
        if kind == "namedtuple":
            return found._make(fields[name] for name in found._fields)  # type: ignore[attr-defined]
        if kind == "struct":
            return found(**fields)
        return filled(object.__new__(found), fields)
    instead = "a NamedTuple of the same fields" if kind == "namedtuple" else "a dict"
    log.warning(
        "%s cannot be built without an object to restore into: loaded as %s", type_name, instead
    )
    if kind == "namedtuple":
        return namedtuple(type_name.rpartition(".")[2].rpartition(":")[2], fields)(**fields)
    return fields


def _imported(type_name: str) -> Any:
    module, _, path = type_name.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _names_of(found: type, kind: str) -> set[str] | None:
    """The names of the parts of a class's objects; None if it is not of that kind."""
    if kind == "namedtuple" and issubclass(found, tuple) and hasattr(found, "_fields"):
        return {*found._fields}
    if kind == "dataclass" and dataclasses.is_dataclass(found):
        return {each.name for each in dataclasses.fields(found)}
    return {*found.__struct_fields__} if kind == "struct" and issubclass(found, Struct) else None
