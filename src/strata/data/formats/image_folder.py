"""A folder of images: each subfolder is a class.

Columns: `image`, `label` (the class's number, in the order of names) and `path`. Images are
returned as height × width × RGB, as objects because sizes differ; `size` ([height, width]) resizes
them into one array. `decode=False` returns the files' bytes. Several threads decode, since Pillow
releases the interpreter lock. Images outside of a class folder have label 0.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from strata.data.cache.dataset_files import Files
from strata.data.formats.row_gather import objects
from strata.data.formats.source import (
    Array,
    Columns,
    Damaged,
    DatasetIndex,
    Mismatch,
    Positive,
    Rows,
)
from strata.data.formats.value_codecs import decode_image

_SUFFIXES = tuple(
    suffix
    for lower in (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
    for suffix in (lower, lower.upper())
)


class ImageFolderSource:
    def __init__(
        self,
        files: Files,
        *,
        size: tuple[Positive, Positive] | None = None,
        decode: bool = True,
        threads: Positive = 4,
    ) -> None:
        self._files = files
        self._size = None if size is None else (size[0], size[1])  # JSON has no tuples
        self._decode = decode
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def scan(self) -> DatasetIndex:
        names = [name for name in self._files.names(*_SUFFIXES) if name.endswith(_SUFFIXES)]
        if not names:
            raise Mismatch("", "no images found", f"known suffixes: {', '.join(_SUFFIXES[::2])}")
        classes = sorted({name.rpartition("/")[0] for name in names})
        numbers = {each: number for number, each in enumerate(classes)}
        labels = np.array([numbers[name.rpartition("/")[0]] for name in names], np.int64)
        entries = [self._files.entry(name, 1) for name in names]
        notes = {str(number): each for each, number in numbers.items()}
        return DatasetIndex(
            rows=len(names), shard_rows=0, files=entries, notes=notes, tables={"labels": labels}
        )

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        found: Columns = {}
        if "image" in columns:
            found["image"] = self._images(index, rows)
        if "label" in columns:
            found["label"] = index.tables["labels"][rows]
        if "path" in columns:
            names = [index.files[row].name for row in rows.tolist()]
            found["path"] = objects(names, len(names))
        return found

    def _images(self, index: DatasetIndex, rows: Rows) -> Array:
        # Created on first use, so that a forked process has its own threads.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "strata-images")
        images = list(self._pool.map(self._image, [index.files[row].name for row in rows], rows))
        if self._size is not None and self._decode:
            stacked = np.empty((len(rows), *self._size, 3), np.uint8)
            for place, image in enumerate(images):
                stacked[place] = image
            return stacked
        return objects(images, len(images))

    def _image(self, name: str, row: int) -> Any:
        try:
            raw = self._files.path(name).read_bytes()
            return decode_image(raw, self._size) if self._decode else raw
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all three
            raise Damaged([row], name, f"cannot be read as an image: {error}") from error

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        image = "bytes" if not self._decode else "uint8[height, width, 3]"
        if self._size is not None and self._decode:
            image = f"uint8[{self._size[0]}, {self._size[1]}, 3]"
        return {"image": image, "label": "int64", "path": "str"}
