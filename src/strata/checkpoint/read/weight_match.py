"""Which tensors of a source go where in a state, decided before anything is read.

Names and shapes must be equal. Elements are cast between floating-point types, and to a type that
holds every value; any other cast is refused. An object with a state of its own (an optimizer) is
taken as a whole, and only if all tensors fit in the same order: its state refers to them by their
position.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct, field

from strata.checkpoint.read.read_targets import WholeTensor
from strata.checkpoint.read.weight_names import (
    Name,
    Rename,
    StateLeaf,
    below,
    model_part,
    parts_of,
    renaming,
    state_leaves,
)
from strata.checkpoint.read.weight_source import WeightSource
from strata.checkpoint.state.array_bytes import (
    EXTENDED,
    NAMES_NUMPY,
    TensorSource,
    is_torch,
    source_of,
)
from strata.checkpoint.state.sharded_tensors import shard_box, shard_of
from strata.checkpoint.state.stateful import SHOWN
from strata.errors import InvalidArgument

EIGHT_BITS = {"F8_E4M3", "F8_E5M2"}
FLOATS = {"F64", "F32", "F16", "BF16", *EIGHT_BITS}


class TensorMatch(Struct, frozen=True):
    """A tensor of the state, described, and the tensor of the source that it is read from."""

    leaf: StateLeaf
    target: TensorSource
    tensor: WholeTensor

    @property
    def cast(self) -> str:
        """The change of type, as text; empty if there is none."""
        here, there = self.target.dtype, self.tensor.dtype
        return "" if here == there else f"{there} to {here}"


class WeightMatch(Struct):
    """What a warm start takes, keeps and ignores, by name."""

    taken: list[TensorMatch] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    objects: list[StateLeaf] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    objects_fit: bool = True

    @property
    def casts(self) -> list[str]:
        """The number of tensors for each change of type, as text: `8 from F32 to BF16`."""
        counts = Counter(each.cast for each in self.taken if each.cast)
        return [f"{count} from {cast}" for cast, count in counts.items()]


def match_weights(source: WeightSource, state: Any, rename: Rename | None) -> WeightMatch:
    """Match the tensors of a source with those of a state."""
    leaves, name_of = state_leaves(state), renaming(rename)
    part = model_part(state) if source.is_model else ""
    objects = [leaf for leaf in leaves if leaf.kind == "object"]
    tensors = _renamed(source.tensors, name_of, part)
    tensors = {n: t for n, t in tensors.items() if not any(below(n, o.name) for o in objects)}
    values = _renamed(source.values, name_of, part)
    found = WeightMatch(
        values={leaf.name: values[leaf.name] for leaf in leaves if leaf.name in values},
        objects=[o for o in objects if name_of(o.name) == o.name and source.holds(o.path)],
    )
    for leaf in leaves:
        if leaf.kind == "tensor" and below(leaf.name, part):
            _match(found, leaf, tensors.get(leaf.name))
    _settle_tied(found, leaves)
    used = {each.leaf.name: each for each in found.taken}
    parts = parts_of(state) or [""]
    found.ignored = [
        name
        for name in tensors
        if name not in used
        and name not in found.differing
        and any(below(name, each) for each in parts)
    ]
    in_order = [name for name in tensors if name in used] == [*used]
    found.objects_fit = in_order and not (found.kept or found.ignored or found.differing)
    return found


def _renamed(given: dict[str, Any], name_of: Name, part: str) -> dict[str, Any]:
    """What the source has, by its names in the state."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in given.items():
        new = name_of(name)
        if new is None:
            continue
        new = f"{part}.{new}" if part else new
        if new in found:
            raise InvalidArgument(
                f"rename maps both {origin[new]!r} and {name!r} to {new!r}",
                hint="map one of them to another name, or to None to leave it out",
            )
        found[new], origin[new] = value, name
    return found


def _match(found: WeightMatch, leaf: StateLeaf, tensor: WholeTensor | None) -> None:
    piece = shard_of(leaf.value)
    target = source_of(leaf.value if piece is None else piece.array, f"{leaf.name!r}")
    if target.key:
        return  # a random key of JAX: the script's own seed stays
    if tensor is None:
        found.kept.append(leaf.name)
        return
    shape = target.shape if piece is None else shard_box(piece, target).global_shape
    here, there = (target.raw_dtype, target.dtype), (tensor.raw_dtype, tensor.dtype)
    if tensor.shape != shape:
        found.differing[leaf.name] = f"{leaf.name!r} is {tensor.shape} there and {shape} here"
    elif here != there and not _castable(there, here):
        raise InvalidArgument(
            f"{leaf.name!r} is {there[0] or there[1]} in the source and {here[0] or here[1]} here: "
            "the cast could lose values",
            hint="give it the type of the source, or leave it out with strict=False and rename, "
            "which maps its name to None",
        )
    else:
        found.taken.append(TensorMatch(leaf=leaf, target=target, tensor=tensor))


def _castable(there: tuple[str | None, str], here: tuple[str | None, str]) -> bool:
    """Whether a cast keeps every value, up to the precision of floating-point types.

    Types of eight bits need a scale, which a cast does not compute.
    """
    (raw, old), (new_raw, new) = there, here
    if raw is not None or new_raw is not None or new in EIGHT_BITS:
        return False
    if old in FLOATS and new in FLOATS:
        return True
    return not {old, new} & EXTENDED and np.can_cast(NAMES_NUMPY[old], NAMES_NUMPY[new])


def _settle_tied(found: WeightMatch, leaves: Iterable[StateLeaf]) -> None:
    """A tied weight of PyTorch that has a value under one of its names lacks none."""
    taken = {each.target.identity for each in found.taken if is_torch(each.target.value)}
    values = {leaf.name: leaf.value for leaf in leaves}

    def tied(name: str) -> bool:
        value = values[name]
        whole = is_torch(value) and shard_of(value) is None
        return whole and source_of(value, name).identity in taken - {None}

    found.kept = [name for name in found.kept if not tied(name)]


def require_whole(found: WeightMatch, url: str) -> None:
    """Raise unless every tensor has a value, every value is used, and all objects fit."""
    problems = [
        f"{len(names)} {what}: {listed(names)}"
        for what, names in (
            ("missing in the source", [repr(name) for name in found.kept]),
            ("not in the state", [repr(name) for name in found.ignored]),
            ("of another shape", [*found.differing.values()]),
        )
        if names
    ]
    if problems:
        raise InvalidArgument(
            f"the tensors of {url} and of the state differ: {'; '.join(problems)}",
            hint="restore into the model that was saved, map names with rename={...}, or take what "
            "fits with strict=False",
        )
    if found.objects and not found.objects_fit:
        names = [repr(leaf.name) for leaf in found.objects]
        raise InvalidArgument(
            f"{url} has the tensors in another order than the state, and the state of "
            f"{listed(names)} refers to them by their position",
            hint=f"leave it out: rename={{{names[0]}: None}}",
        )


def require_any(found: WeightMatch, source: WeightSource) -> None:
    """Raise if no tensor of the source fits."""
    if not found.taken and not (found.objects and found.objects_fit):
        raise InvalidArgument(
            f"no tensor of {source.url} fits the state: {len(source.tensors)} there"
            f"{_such_as(source.tensors)}, {len(found.kept) + len(found.differing)} here"
            f"{_such_as([*found.kept, *found.differing])}",
            hint="map the names of the source with rename={...}",
        )


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    every = [*names]
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def _such_as(names: Iterable[str]) -> str:
    every = [repr(name) for name in names]
    return f" ({listed(every)})" if every else ""
