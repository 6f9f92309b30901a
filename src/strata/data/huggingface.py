"""Hugging Face datasets, through the same three methods as any format.

Takes a folder that `Dataset.save_to_disk` wrote, or a loaded `datasets.Dataset`. The library is
imported when a folder is opened; Strata does not depend on it. Rows are asked for by the batch,
which the library answers from its Arrow files.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from strata.data.base import Array, Columns, Index, Mismatch, Rows
from strata.data.files import Files
from strata.data.gather import objects


class HuggingFaceSource:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("numpy")

    def scan(self) -> Index:
        return Index(len(self._dataset), identity=str(self._dataset._fingerprint))

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
    """A folder that `save_to_disk` wrote."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise Mismatch(
            "", "the library `datasets` is not installed", "pip install datasets"
        ) from error
    return HuggingFaceSource(library.load_from_disk(str(files.path(""))))
