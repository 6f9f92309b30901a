"""Hugging Face datasets, through the same three methods as any format.

Takes a folder that `Dataset.save_to_disk` wrote, here or in object storage, or a loaded
`datasets.Dataset`. The library is imported when a folder is opened; Strata does not depend on it.
Rows are asked for by the batch, which the library answers from its Arrow files. It keeps all of
them open, so those of object storage are brought to this host at once.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from strata.data.base import Array, Columns, Index, Mismatch, Rows
from strata.data.files import Files
from strata.data.gather import objects

STATE = "state.json"


class HuggingFaceSource:
    def __init__(self, dataset: Any, identity: str = "") -> None:
        self._dataset = dataset.with_format("numpy")
        self._identity = identity or str(dataset._fingerprint)

    def scan(self) -> Index:
        return Index(len(self._dataset), identity=self._identity)

    def read(self, index: Index, rows: Rows, columns: Sequence[str]) -> Columns:
        batch = self._dataset.select_columns(list(columns))[rows.tolist()]
        return {name: _settled(value, len(rows)) for name, value in batch.items()}

    def describe(self, index: Index) -> Mapping[str, str]:
        return {name: str(feature) for name, feature in self._dataset.features.items()}


def _settled(values: Any, count: int) -> Array:
    """Texts as objects: their width as arrays would differ from batch to batch."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "SU":
        return values
    return objects(values.tolist() if isinstance(values, np.ndarray) else values, count)


def open_folder(files: Files) -> HuggingFaceSource:
    """A folder that `save_to_disk` wrote; its files come to this host when it is opened."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise Mismatch(
            "", "the library `datasets` is not installed", "pip install datasets"
        ) from error
    try:
        with files.open(STATE) as file:
            saved = msgspec.json.decode(file.read(), type=_Saved)
    except (OSError, msgspec.MsgspecError) as error:
        hint = "give the folder of one split, which Dataset.save_to_disk wrote"
        raise Mismatch(
            STATE, f"is not there, or says nothing of data files: {error}", hint
        ) from error
    parts = [library.Dataset.from_file(str(files.path(each.filename))) for each in saved.files]
    return HuggingFaceSource(library.concatenate_datasets(parts), saved.fingerprint)


class _File(msgspec.Struct):
    filename: str


class _Saved(msgspec.Struct):
    """What `state.json` says: the Arrow files in order, and what tells the data apart."""

    files: list[_File] = msgspec.field(name="_data_files")
    fingerprint: str = msgspec.field(name="_fingerprint")
