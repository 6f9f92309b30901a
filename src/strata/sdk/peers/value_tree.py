"""Flatten and rebuild the trees of numbers and arrays that `run.average` takes.

Supports dicts, lists, tuples and named tuples. If the script uses JAX, `jax.tree` is used instead,
so every registered pytree (Flax, Optax) keeps its type. NumPy arrays, JAX arrays, PyTorch tensors
and numbers keep their types.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidArgument


def flatten(values: Any) -> list[Any]:
    """The leaves of a tree, in a fixed order."""
    jax = sys.modules.get("jax")
    return list(_leaves(values)) if jax is None else jax.tree_util.tree_leaves(values)


def rebuild(values: Any, leaves: Sequence[NDArray[Any]]) -> Any:
    """The same tree with other leaves, each converted to the type of the leaf it replaces."""
    jax = sys.modules.get("jax")
    if jax is None:
        return _rebuilt(values, iter(leaves))
    before, structure = jax.tree_util.tree_flatten(values)
    pairs = zip(before, leaves, strict=True)
    return jax.tree_util.tree_unflatten(structure, [_like(old, new) for old, new in pairs])


def as_array(value: Any) -> NDArray[Any]:
    """A leaf as a NumPy array; integers become floating-point numbers, to have a mean."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _not_averaged(value) from error
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    # bfloat16 and others come from the package ml_dtypes and have their own kind.
    if array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")):
        return array
    raise _not_averaged(value)


def _not_averaged(value: object) -> InvalidArgument:
    return InvalidArgument(
        f"run.average cannot average a {type(value).__name__}",
        hint="pass arrays and numbers, in dicts, lists, tuples or a JAX pytree",
    )


def _leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, Mapping):
        for name in values:
            yield from _leaves(values[name])
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _leaves(each)
    else:
        yield values


def _rebuilt(values: Any, leaves: Iterator[NDArray[Any]]) -> Any:
    if isinstance(values, Mapping):
        return {name: _rebuilt(values[name], leaves) for name in values}
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_rebuilt(each, leaves) for each in values))
    if isinstance(values, list | tuple):
        return type(values)(_rebuilt(each, leaves) for each in values)
    return _like(values, next(leaves))


def _like(value: Any, leaf: NDArray[Any]) -> Any:
    """A leaf converted to the library and type of the value that it replaces."""
    if isinstance(value, np.ndarray):
        return leaf
    if hasattr(value, "sharding"):
        jax = sys.modules["jax"]
        return jax.device_put(leaf.astype(_floating(value.dtype, leaf)), value.sharding)
    if hasattr(value, "detach"):
        torch = sys.modules["torch"]
        return torch.from_numpy(leaf).to(value.device)
    return leaf.item()


def _floating(dtype: Any, leaf: NDArray[Any]) -> Any:
    """The type of the value, unless it is an integer type."""
    return leaf.dtype if np.dtype(dtype).kind in "iub" else dtype
