"""A state as JSON, with its arrays replaced by names.

`flatten` walks a nested state and gives each array a name made of the keys on the way to it
(`model.layers.0.weight`). The rest is plain JSON, in which an object with one key that begins with
`$` represents what JSON lacks:

    {"$tensor": name, "kind": "numpy" | "torch" | "jax" | "scalar", "dtype": …}   an array in a part
    {"$object": type, "kind": …, "fields": {…}}    a NamedTuple, dataclass, Struct or JAX pytree
    {"$bytes": name}      bytes in a part           {"$tuple": […]}        a tuple
    {"$dict": [[k, v]]}   keys that are not text    {"$float": "nan"}      not finite
    {"$int": "…"}         beyond 64 bits

Any other type raises an error with its path. Nothing is pickled, so reading a checkpoint needs no
trust. An array that occurs twice (tied weights) is stored once.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from strata.checkpoint.state.array_bytes import TensorSource, is_array, source_of
from strata.checkpoint.state.containers import node_of, revived
from strata.checkpoint.state.sharded_tensors import Sharded, sharded_source
from strata.errors import InvalidArgument

MAX_DEPTH = 64
INT64 = range(-(2**63), 2**63)


class FlatState(Struct):
    """A flattened state: its tree, and its arrays by name."""

    tree: Any
    sources: dict[str, TensorSource]


def flatten(state: object) -> FlatState:
    """Flatten a state without copying anything."""
    flat = FlatState(None, {})
    flat.tree = _flatten_value(state, (), flat.sources, {})
    return flat


def _flatten_value(
    value: Any, path: tuple[str, ...], sources: dict[str, TensorSource], seen: dict[object, str]
) -> Any:
    if len(path) > MAX_DEPTH:
        raise InvalidArgument(f"the state is nested deeper than {MAX_DEPTH} at {_shown(path)}")
    if value is None or isinstance(value, str | bool):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int) and not isinstance(value, np.generic):
        return int(value) if int(value) in INT64 else {"$int": str(int(value))}
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, bytes | bytearray | memoryview):
        source = source_of(np.frombuffer(value, np.uint8), _shown(path))
        return {"$bytes": _named(path, source, sources, seen)}
    if isinstance(value, dict):
        return _flatten_dict(value, path, sources, seen)
    if isinstance(value, list):
        return [_flatten_value(v, (*path, str(i)), sources, seen) for i, v in enumerate(value)]
    if is_array(value) or isinstance(value, Sharded):
        source = sharded_source(value, _shown(path)) or source_of(value, _shown(path))
        return {"$tensor": _named(path, source, sources, seen), "kind": source.kind} | source.extra
    node = node_of(value)
    if node is not None:
        fields = {n: _flatten_value(v, (*path, n), sources, seen) for n, v in node.fields.items()}
        return {"$object": node.type, "kind": node.kind, "fields": fields}
    if isinstance(value, tuple):
        return {
            "$tuple": [
                _flatten_value(v, (*path, str(i)), sources, seen) for i, v in enumerate(value)
            ]
        }
    raise InvalidArgument(
        f"{_shown(path)} is a {type(value).__module__}.{type(value).__qualname__}, which a "
        f"checkpoint cannot hold",
        hint="save arrays, tensors, bytes, text, numbers, None, and dicts, lists, tuples, "
        "NamedTuples, dataclasses and objects with state_dict of them",
    )


def _flatten_dict(
    value: dict[Any, Any],
    path: tuple[str, ...],
    sources: dict[str, TensorSource],
    seen: dict[object, str],
) -> Any:
    plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
    if plain:
        return {str(k): _flatten_value(v, (*path, k), sources, seen) for k, v in value.items()}
    pairs = []
    for key, each in value.items():
        if not isinstance(key, str | int | float | bool | None | tuple):
            raise InvalidArgument(
                f"{_shown(path)} has a key of type {type(key).__name__}",
                hint="keys are text, numbers or tuples of them",
            )
        arrays: dict[str, TensorSource] = {}
        left = _flatten_value(key, (*path, "key"), arrays, {})
        if arrays:
            raise InvalidArgument(f"{_shown(path)} has an array or bytes within a key")
        pairs.append([left, _flatten_value(each, (*path, str(key)), sources, seen)])
    return {"$dict": pairs}


def _named(
    path: tuple[str, ...],
    source: TensorSource,
    sources: dict[str, TensorSource],
    seen: dict[object, str],
) -> str:
    if source.identity is not None and source.identity in seen:
        return seen[source.identity]
    wanted = ".".join(path) or "data"
    name, number = wanted, 1
    while name in sources or name == "__metadata__":
        number += 1
        name = f"{wanted}#{number}"
    sources[name] = source
    if source.identity is not None:
        seen[source.identity] = name
    return name


Path = tuple[Any, ...]
Leaf = Callable[[dict[str, Any], Path], Any]
Make = Callable[[dict[str, Any], Path, dict[str, Any]], Any]


def by_name(node: dict[str, Any], path: Path, fields: dict[str, Any]) -> Any:
    """An `$object`, built from the type that it names."""
    return revived(node["kind"], node["$object"], fields)


def rebuild(tree: Any, leaf: Leaf, make: Make = by_name) -> Any:
    """Rebuild a state; `leaf` returns the value for a `$tensor` or `$bytes`, and `make` for an
    `$object`. Paths are made of the keys themselves.
    """
    return _rebuild_value(tree, (), leaf, make)


def _rebuild_value(node: Any, path: Path, leaf: Leaf, make: Make) -> Any:
    if isinstance(node, list):
        return [_rebuild_value(each, (*path, i), leaf, make) for i, each in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node or "$bytes" in node:
        return leaf(node, path)
    if "$object" in node:
        fields = {
            n: _rebuild_value(each, (*path, n), leaf, make) for n, each in node["fields"].items()
        }
        return make(node, path, fields)
    if "$tuple" in node:
        return tuple(
            _rebuild_value(e, (*path, i), leaf, make) for i, e in enumerate(node["$tuple"])
        )
    if "$float" in node:
        return float(node["$float"])
    if "$int" in node:
        return int(node["$int"])
    if "$dict" in node:
        pairs = [(_rebuild_value(key, path, leaf, make), each) for key, each in node["$dict"]]
        return {key: _rebuild_value(each, (*path, key), leaf, make) for key, each in pairs}
    return {key: _rebuild_value(each, (*path, key), leaf, make) for key, each in node.items()}


def _shown(path: tuple[str, ...]) -> str:
    return repr(".".join(path)) if path else "the state"
