"""Checks of a manifest before anything is read by it.

Manifests come from storage that others may write, and have no checksum. So what they say about
tensors must be consistent before memory is allocated for them, and a tree must have the form that
`checkpoint/state/state_tree` describes before a state is built from it.
"""

from math import prod
from typing import Any

from strata.checkpoint.manifest import PART_FILE, CheckpointPart, Manifest, SavedTensor
from strata.checkpoint.state.array_bytes import ITEM_BYTES
from strata.checkpoint.state.state_tree import MAX_DEPTH
from strata.errors import Corrupt

HINT = "use another checkpoint"
KINDS = ("numpy", "torch", "jax", "scalar")
MOST_BYTES = 2**60


def check_manifest(manifest: Manifest, where: str) -> None:
    """Raise if a manifest contradicts itself about its tensors."""
    whole: dict[str, tuple[str, list[int]]] = {}
    for part in manifest.parts:
        for tensor in part.tensors:
            shape = tensor.shard.global_shape if tensor.shard is not None else tensor.shape
            if not (
                _is_sound(part, tensor)
                and whole.setdefault(tensor.name, (tensor.dtype, shape)) == (tensor.dtype, shape)
            ):
                raise _damaged(where, f"tensor {tensor.name!r} is described inconsistently")


def _is_sound(part: CheckpointPart, tensor: SavedTensor) -> bool:
    shard = tensor.shard
    begins = shard.offsets if shard is not None else [0] * len(tensor.shape)
    whole = shard.global_shape if shard is not None else tensor.shape
    stop = tensor.offset + tensor.size_bytes
    return (
        PART_FILE.fullmatch(tensor.file or part.file) is not None
        and tensor.dtype in ITEM_BYTES
        and len(begins) == len(whole) == len(tensor.shape)
        and all(
            0 <= begin <= begin + size <= end
            for begin, size, end in zip(begins, tensor.shape, whole, strict=True)
        )
        and tensor.size_bytes == prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        and 0 <= part.header_bytes <= part.size_bytes <= MOST_BYTES
        and 0 <= tensor.offset <= stop <= (MOST_BYTES if tensor.file else part.size_bytes)
        and part.piece_bytes > 0
        and part.piece_bytes % ITEM_BYTES[tensor.dtype] == 0
        and len(tensor.xxh3) == -(-tensor.size_bytes // part.piece_bytes)
    )


def check_tree(tree: Any, where: str) -> None:
    """Raise if a tree does not have the form of a state."""
    try:
        known = _is_state(tree, 0)
    except ValueError:  # a number that is none
        known = False
    if not known:
        raise _damaged(where, "it does not describe a state")


def _is_state(node: Any, depth: int) -> bool:
    """Whether a node is a value of a state, with everything below it."""
    if depth > MAX_DEPTH + 1:
        return False
    if isinstance(node, list):
        return all(_is_state(each, depth + 1) for each in node)
    if not isinstance(node, dict):
        return True
    if "$tensor" in node:
        return isinstance(node["$tensor"], str) and _is_tensor(node)
    if "$bytes" in node:
        return isinstance(node["$bytes"], str)
    if "$object" in node:
        fields = node.get("fields")
        named = isinstance(node["$object"], str) and isinstance(node.get("kind"), str)
        return named and isinstance(fields, dict) and _is_state(list(fields.values()), depth)
    if "$tuple" in node:
        return isinstance(node["$tuple"], list) and _is_state(node["$tuple"], depth)
    if "$float" in node or "$int" in node:
        return _is_number(node)
    if "$dict" in node:
        return _are_pairs(node["$dict"], depth)
    return _is_state(list(node.values()), depth)


def _is_tensor(node: dict[str, Any]) -> bool:
    raw_dtype, key = node.get("dtype"), node.get("key", "")
    raw = raw_dtype is None or (isinstance(raw_dtype, str) and raw_dtype != "")
    return node.get("kind") in KINDS and raw and isinstance(key, str)


def _is_number(node: dict[str, Any]) -> bool:
    if "$float" in node:
        return isinstance(node["$float"], str) and float(node["$float"]) is not None
    return isinstance(node["$int"], str) and int(node["$int"]) is not None


def _are_pairs(pairs: Any, depth: int) -> bool:
    """Whether these are the keys and values of a dict; a key is text, a number or a tuple."""
    return isinstance(pairs, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and _is_key(pair[0], depth + 1)
        and _is_state(pair[1], depth + 1)
        for pair in pairs
    )


def _is_key(node: Any, depth: int) -> bool:
    if isinstance(node, dict):
        within = node.get("$tuple", [])
        known = node.keys() & {"$tuple", "$int", "$float"}
        return (
            bool(known)
            and _is_state(node, depth)
            and all(_is_key(each, depth + 1) for each in within)
        )
    return not isinstance(node, list)


def _damaged(where: str, what: str) -> Corrupt:
    return Corrupt(f"the manifest {where} is damaged: {what}", hint=HINT)
