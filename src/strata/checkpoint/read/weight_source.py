"""Sources of weights for a warm start: named tensors, of which any box can be read.

A source is a checkpoint of Strata (`CheckpointWeights`) or what another tool wrote
(`strata.checkpoint.foreign`). Tensors have the names of the keys on the way to them, joined by
dots, so that a flat state dict and a tree of the same names are the same.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.read.read_targets import TargetView, WholeTensor
from strata.checkpoint.state.state_tree import rebuild
from strata.checkpoint.state.stateful import ABSENT, children_of


class WeightSource:
    """Tensors by name, in the order of the source; `url` says where they are.

    `values` are other values by name. `is_model` means that the names are those of one model, not
    of a state with several parts.
    """

    is_model = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.tensors: dict[str, WholeTensor] = {}
        self.values: dict[str, Any] = {}

    def fill(self, views: list[TargetView]) -> None:
        """Read the boxes of all views into their memory."""
        raise NotImplementedError

    def holds(self, path: tuple[Any, ...]) -> bool:
        """Whether the source has what was saved of an object at a path."""
        return False

    def load(self, path: tuple[Any, ...], into: Any) -> Any:
        """What was saved of an object at a path, to be restored as a whole."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files of the source."""


TRAINER_MODELS = {
    "huggingface": "training.model.",
    "lightning": "training.checkpoint.state_dict.",
}
"""Where the state of a framework's trainer has the tensors of the model."""


class CheckpointWeights(WeightSource):
    """The state in a checkpoint of Strata.

    The model of a framework's trainer has the names that it has in other checkpoints: those of
    `model`.
    """

    is_model = False

    def __init__(self, url: str, reader: CheckpointReader) -> None:
        super().__init__(url)
        self._reader = reader
        state = rebuild(reader.tree, lambda node, _: _Leaf(node), lambda _, __, fields: fields)
        found = dict(leaves(state))
        trainer = TRAINER_MODELS.get(str(found.get("training.origin.framework")), "")
        for path, value in found.items():
            name = f"model.{path[len(trainer) :]}" if trainer and path.startswith(trainer) else path
            if not isinstance(value, _Leaf):
                self.values[name] = value
            elif "$tensor" in value.node and "key" not in value.node:
                whole = reader.whole(value.node["$tensor"])
                self.tensors[name] = structs.replace(whole, raw_dtype=value.node.get("dtype"))

    def fill(self, views: list[TargetView]) -> None:
        self._reader.fill_views(views)

    def holds(self, path: tuple[Any, ...]) -> bool:
        return self._tree_at(path) is not ABSENT

    def load(self, path: tuple[Any, ...], into: Any) -> Any:
        return self._reader.assemble(self._tree_at(path), into)

    def _tree_at(self, path: tuple[Any, ...]) -> Any:
        tree = self._reader.tree
        for key in path:
            tree = children_of(tree).get(key, ABSENT)
        return tree

    def close(self) -> None:
        self._reader.close()


class _Leaf:
    """A tensor or bytes in the tree of a checkpoint; not a Struct, which is a container here."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.node = node


def joined(path: tuple[Any, ...]) -> str:
    """The name of the value at a path."""
    return ".".join(str(key) for key in path)


def leaves(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The values of a nested state that are no containers, by name."""
    children = children_of(state)
    if not children and not isinstance(state, dict | list | tuple):
        yield joined(path), state
    for key, each in children.items():
        yield from leaves(each, (*path, key))
