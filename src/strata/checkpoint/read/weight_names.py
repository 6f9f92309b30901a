"""The names of a state's values, and the names of a source mapped to them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from strata.checkpoint.read.weight_source import joined
from strata.checkpoint.state.array_bytes import is_array
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.state.stateful import Stateful, children_of
from strata.errors import InvalidArgument

Rename: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None]
Name = Callable[[str], str | None]


class StateLeaf(Struct, frozen=True):
    """A value of a state that is matched by name.

    An `object` (an optimizer, a scheduler) has a state of its own, which is restored as a whole.
    """

    name: str
    path: tuple[Any, ...]
    kind: Literal["tensor", "value", "object"]
    value: Any


def is_model(state: Any) -> bool:
    """Whether an object is a model, whose tensors are matched one by one."""
    return isinstance(state, Stateful) and hasattr(state, "named_parameters")


def state_leaves(state: Any) -> list[StateLeaf]:
    """The values of a state, each with a name of its own."""
    found: dict[str, StateLeaf] = {}
    for leaf in _leaves(state, ()):
        if leaf.name in found:
            raise InvalidArgument(
                f"two values of the state are called {leaf.name!r}",
                hint="use keys without dots for nested values",
            )
        found[leaf.name] = leaf
    return [*found.values()]


def _leaves(state: Any, path: tuple[Any, ...]) -> Iterator[StateLeaf]:
    if isinstance(state, Stateful):
        if not is_model(state):
            yield StateLeaf(name=joined(path), path=path, kind="object", value=state)
            return
        state = state.state_dict()
    children = children_of(state)
    if children or isinstance(state, dict | list | tuple):
        for key, each in children.items():
            yield from _leaves(each, (*path, key))
    else:
        tensor = is_array(state) or isinstance(state, Sharded)
        kind: Literal["tensor", "value"] = "tensor" if tensor else "value"
        yield StateLeaf(name=joined(path), path=path, kind=kind, value=state)


def model_part(state: Any) -> str:
    """The key of the model in a state; empty if the state is one model or one tree."""
    if not isinstance(state, dict):
        return ""
    if is_model(state.get("model")) or children_of(state.get("model")):
        return "model"
    models = [key for key, each in state.items() if is_model(each)]
    return str(models[0]) if len(models) == 1 else ""


def parts_of(state: Any) -> list[str]:
    """The keys of a state all of whose entries are models, objects or containers; else none."""
    if not isinstance(state, dict):
        return []
    nested = [isinstance(each, Stateful) or bool(children_of(each)) for each in state.values()]
    return [str(key) for key in state] if all(nested) else []


def below(name: str, prefix: str) -> bool:
    """Whether a name is that of a value at or below a prefix; an empty prefix is above all."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def renaming(rename: Rename | None) -> Name:
    """The function that maps names; the longest name or prefix of a mapping applies."""
    if rename is None:
        return lambda name: name
    if not isinstance(rename, Mapping):
        return rename
    table = {key.strip("."): new for key, new in rename.items()}

    def renamed(name: str) -> str | None:
        found = [key for key in table if below(name, key)]
        if not found:
            return name
        prefix = max(found, key=len)
        new, rest = table[prefix], name[len(prefix) :].strip(".")
        return None if new is None else ".".join(part for part in (new.strip("."), rest) if part)

    return renamed
