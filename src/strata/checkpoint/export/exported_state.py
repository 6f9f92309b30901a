"""The part of a checkpoint's state that is exported: its arrays by name, and its other values.

A part of the state is selected by its path, such as `model`. The keys of a state dict contain dots
themselves, so a path may also end within a key: of `{"model": {"encoder.weight": …}}` the path
`model.encoder` selects `weight`.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from strata.checkpoint.manifest import Manifest
from strata.checkpoint.state.state_tree import Path, rebuild
from strata.errors import NotFound

SHOWN_KEYS = 10


class ArrayLeaf(Struct, frozen=True):
    """An array of the state: the name it is stored under, its kind and its type as in the tree."""

    stored: str
    kind: str
    raw_dtype: str | None = None


class ExportedState(Struct, frozen=True):
    """The selected tree. `values` names everything that is not an array."""

    tree: Any
    arrays: dict[str, ArrayLeaf]
    values: list[str]


def exported_state(manifest: Manifest, only: str) -> ExportedState:
    """The state that the lowest rank saved, or the part of it that a path selects."""
    tree = tree_of(manifest)
    selected = sub_tree(tree, only) if only else tree
    if only and selected is None:
        keys = ", ".join(name for name, _ in children(tree)[:SHOWN_KEYS])
        raise NotFound(
            f"the state of checkpoint {manifest.checkpoint_id} has no {only!r}",
            hint=f"choose another part with --only; the state has: {keys or 'no keys'}",
        )
    arrays: dict[str, ArrayLeaf] = {}
    values: list[str] = []
    for path, value in leaves(rebuild(selected, _leaf, _fields), ()):
        name = ".".join(path) or "data"
        if isinstance(value, ArrayLeaf) and value.kind != "bytes":
            arrays[unused(name, arrays)] = value
        else:
            values.append(name)
    return ExportedState(tree=selected, arrays=arrays, values=values)


def tree_of(manifest: Manifest) -> Any:
    """The state of the lowest rank that has one."""
    trees = [part.tree for part in sorted(manifest.parts, key=lambda part: part.rank)]
    return next((tree for tree in trees if tree is not None), None)


def sub_tree(tree: Any, path: str) -> Any:
    """The part of a tree at a path; None if there is none."""
    found = children(tree)
    for key, child in found:
        if key == path:
            return child
    for key, child in found:
        if path.startswith(f"{key}."):
            deeper = sub_tree(child, path[len(key) + 1 :])
            if deeper is not None:
                return deeper
    within = [[key[len(path) + 1 :], each] for key, each in found if key.startswith(f"{path}.")]
    return {"$dict": within} if within else None


def children(node: Any) -> list[tuple[str, Any]]:
    """The named parts of a node of a tree."""
    if isinstance(node, dict) and "$tuple" in node:
        node = node["$tuple"]
    if isinstance(node, list):
        return [(str(index), each) for index, each in enumerate(node)]
    if not isinstance(node, dict):
        return []
    if "$dict" in node:
        return [(str(rebuild(key, _leaf)), each) for key, each in node["$dict"]]
    if "$object" in node:
        return [*node["fields"].items()]
    return [] if any(key.startswith("$") for key in node) else [*node.items()]


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything in a rebuilt state that is not a container, with its path."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, str(index)))
    else:
        yield path, value


def unused(name: str, taken: dict[str, ArrayLeaf]) -> str:
    """A name that is not taken; the second array of one name ends in `#2`, as in the manifest."""
    found, number = name, 1
    while found in taken or found == "__metadata__":
        number += 1
        found = f"{name}#{number}"
    return found


def leaf_of(node: dict[str, Any]) -> ArrayLeaf:
    """The array of a `$tensor` or `$bytes` in a tree."""
    if "$bytes" in node:
        return ArrayLeaf(node["$bytes"], "bytes")
    return ArrayLeaf(node["$tensor"], node["kind"], node.get("dtype"))


def _leaf(node: dict[str, Any], path: Path) -> ArrayLeaf:
    return leaf_of(node)


def _fields(node: dict[str, Any], path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    return fields
