"""Export of a model for `transformers.from_pretrained`: weights, config and tokenizer files.

The config is that of a folder of the user, or the one that the script saved as `config` beside the
model, as text or as a dict (`strata.torch.train` saves it). Without a config the export is refused,
since from_pretrained could not load it.

A weight that the state has under two names (tied weights) is written once, under the first name, if
the config ties weights: that is how transformers saves, and it ties them again. If the config says
that weights are not tied, both are written.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from strata.checkpoint.export.exported_state import ExportedState, children, sub_tree, tree_of
from strata.checkpoint.export.safetensors_export import (
    FILE_MODE,
    OutputTensor,
    SafetensorsLayout,
    output_tensor,
)
from strata.checkpoint.export.tensor_filler import FilePlace
from strata.checkpoint.manifest import Manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.state_tree import rebuild
from strata.errors import InvalidArgument, NotFound
from strata.files import write_whole

MODEL = "model"
CONFIG = "config.json"
COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"}
WRAPPERS = ("_orig_mod.", "module.")
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HuggingFaceLayout:
    """The weights as safetensors files, with the config and the other files beside them."""

    def __init__(
        self,
        weights: SafetensorsLayout,
        config: dict[str, Any],
        copied: list[Path],
        notes: list[str],
    ) -> None:
        self._weights = weights
        self._config = config
        self._copied = copied
        self.size_bytes = weights.size_bytes
        self.left_out = weights.left_out
        self.notes = notes

    def write(self, folder: Path) -> list[FilePlace]:
        """Write all files but the bytes of the weights; return where these belong."""
        for file in self._copied:
            write_whole(folder / file.name, file.read_bytes(), FILE_MODE)
        write_whole(folder / CONFIG, json.dumps(self._config, indent=2).encode(), FILE_MODE)
        return self._weights.write(folder)

    def load_line(self, folder: Path) -> str:
        known = self._config.get("architectures") or ["AutoModel"]
        return f'transformers.{known[0]}.from_pretrained("{folder}")'


def model_part(manifest: Manifest) -> str:
    """The path of the model in the state: `model`, or `training.model` as a Trainer saves it."""
    tree = tree_of(manifest)
    found = [f"{key}.{MODEL}" for key, each in children(tree) if MODEL in dict(children(each))]
    return found[0] if MODEL not in dict(children(tree)) and len(found) == 1 else MODEL


def huggingface_layout(
    reader: CheckpointReader,
    state: ExportedState,
    part: str,
    shard_bytes: int,
    config_from: Path | None,
) -> HuggingFaceLayout:
    """The layout of a model; `part` is its path in the state."""
    require_plain_names(state, part)
    config = config_of(config_from) if config_from else recorded_config(reader, part)
    kept, tied = without_ties(state) if config.get("tie_word_embeddings", True) else (state, [])
    tensors = [output_tensor(reader, name, leaf) for name, leaf in kept.arrays.items()]
    return HuggingFaceLayout(
        SafetensorsLayout(tensors, shard_bytes, state.values),
        config | element_type(config, tensors),
        files_beside(config_from) if config_from else [],
        tied,
    )


def element_type(config: dict[str, Any], tensors: list[OutputTensor]) -> dict[str, str]:
    """The fields of a config that name the element type, as the tensors have it.

    A model may be trained with another type than that of the folder with its config; with the old
    value from_pretrained would convert the weights.
    """
    types = {FLOATS[each.dtype] for each in tensors if each.dtype in FLOATS}
    fields = [key for key in ("dtype", "torch_dtype") if key in config]
    return dict.fromkeys(fields, *types) if len(types) == 1 else {}


def require_plain_names(state: ExportedState, part: str) -> None:
    """Raise if all names begin with the name of a wrapper, which transformers does not know."""
    if not state.arrays:
        raise InvalidArgument(
            f"{part!r} of the state has no arrays", hint="select the model with --only"
        )
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in state.arrays):
            raise InvalidArgument(
                f"all names in {part!r} begin with {wrapper!r}, which is not part of the model",
                hint=f"leave it out with --only {part}.{wrapper.removesuffix('.')}",
            )


def without_ties(state: ExportedState) -> tuple[ExportedState, list[str]]:
    """The state with each stored array under its first name, and a sentence for each other name."""
    first: dict[str, str] = {}
    for name, leaf in state.arrays.items():
        first.setdefault(leaf.stored, name)
    kept = {name: leaf for name, leaf in state.arrays.items() if first[leaf.stored] == name}
    tied = [
        f"{name} is tied to {first[leaf.stored]}, so it is not written twice"
        for name, leaf in state.arrays.items()
        if name not in kept
    ]
    return msgspec.structs.replace(state, arrays=kept), tied


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a folder."""
    try:
        return checked_config((folder / CONFIG).read_text("utf-8"), str(folder / CONFIG))
    except FileNotFoundError:
        raise NotFound(
            f"{folder} has no {CONFIG}", hint="give the folder of a model with --config-from"
        ) from None


def recorded_config(reader: CheckpointReader, part: str) -> dict[str, Any]:
    """The config that the script saved beside the model."""
    parent, _, _ = part.rpartition(".")
    name = f"{parent}.config" if parent else "config"
    found = sub_tree(tree_of(reader.manifest), name)
    if isinstance(found, str):
        return checked_config(found, f"{name!r} of the state")
    if isinstance(found, dict):
        return checked_config(json.dumps(rebuild(found, _refused)), f"{name!r} of the state")
    raise NotFound(
        f"checkpoint {reader.manifest.checkpoint_id} has no config of its model, and "
        f"from_pretrained needs {CONFIG}",
        hint="add --config-from DIR with the folder of the model that was trained, or save "
        "model.config.to_json_string() as 'config' in the state",
    )


def checked_config(text: str, where: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{where} is not JSON: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InvalidArgument(
            f"{where} names no model_type, so it is not the config of a model",
            hint="use the config.json that save_pretrained writes",
        )
    return config


def _refused(node: dict[str, Any], path: tuple[Any, ...]) -> Any:
    raise InvalidArgument(
        "'config' of the state has arrays, so it is not the config of a model",
        hint="add --config-from DIR with the folder of the model that was trained",
    )


def files_beside(folder: Path) -> list[Path]:
    """The other files of a model's folder that are not weights, such as those of the tokenizer."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and file.suffix in COPIED_SUFFIXES
        and file.name != CONFIG
        and not file.name.endswith(".index.json")
    ]
