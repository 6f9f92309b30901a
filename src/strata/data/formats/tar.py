"""WebDataset tars: files that share a name up to the first dot are one sample.

The scan reads the tars once and stores the offset of each member's bytes; members are then read at
random from the mapped tar, so a global shuffle needs no buffer. Columns are the extensions, with
codecs by extension (`cls` a number, `txt` text, `json`, `npy`, else bytes) unless `decode` names
others, such as `{"bin": "uint8"}` for values that are arrays of one size. Compressed tars are
unpacked into the host's cache (`data/cache/decompression`).
"""

import tarfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from strata.data.cache.dataset_files import Files
from strata.data.cache.decompression import UnpackedMaps, with_compressed
from strata.data.formats.mapped_rows import MappedRows
from strata.data.formats.source import (
    Array,
    Columns,
    Damaged,
    DatasetIndex,
    FileEntry,
    Mismatch,
    Rows,
)
from strata.data.formats.value_codecs import check_codec, check_columns, is_matrix, read_values

_SUFFIXES = with_compressed(".tar")
_BY_EXTENSION = {"cls": "int", "index": "int", "id": "int"} | {
    "txt": "str",
    "json": "json",
    "npy": "npy",
}


class TarSource:
    def __init__(self, files: Files, *, decode: Mapping[str, str] | None = None) -> None:
        self._files, self._maps = files, UnpackedMaps(files)
        self._codecs = dict(decode or {})
        for column, codec in self._codecs.items():
            check_codec(codec, column)

    def scan(self) -> DatasetIndex:
        entries, places = [], dict[str, list[tuple[int, int, int, int]]]()
        rows = 0
        for number, name in enumerate(self._files.names(*_SUFFIXES)):
            first, entry = rows, self._maps.entry(name)
            for members in self._samples(entry):
                for column, (begin, size) in members.items():
                    places.setdefault(column, []).append((rows, number, begin, size))
                rows += 1
            entries.append(FileEntry(name, entry.size_bytes, rows - first))
        if not rows:
            raise Mismatch("", "no samples in any .tar file")
        check_columns(self._codecs, places)
        tables = {}
        for column, found in places.items():
            table = np.full((3, rows), -1, np.int64)
            listed = np.array(found, np.int64).T
            table[:, listed[0]] = listed[1:]
            tables[column] = table
        shard = max(entry.rows for entry in entries) if len(entries) > 1 else 0
        return DatasetIndex(rows=rows, shard_rows=shard, files=entries, tables=tables)

    def _samples(self, entry: FileEntry) -> Iterator[dict[str, tuple[int, int]]]:
        """For each sample of a tar, the offsets and sizes of its columns."""
        key, members = "", dict[str, tuple[int, int]]()
        try:
            with tarfile.open(self._maps.path(entry), "r:") as tar:
                for member in tar:
                    if not member.isreg():
                        continue
                    tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
                    folder, _, base = member.name.rpartition("/")
                    stem, _, column = base.partition(".")
                    if not stem or not column:
                        continue
                    if f"{folder}/{stem}" != key and members:
                        yield members
                        members = {}
                    key = f"{folder}/{stem}"
                    members[column] = (member.offset_data, member.size)
        except tarfile.TarError as error:
            raise Mismatch(entry.name, f"is not a tar file: {error}") from error
        if members:
            yield members

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        return {column: self._column(index, rows, column) for column in columns}

    def _column(self, index: DatasetIndex, rows: Rows, column: str) -> Array:
        table = index.tables[column]
        files, begins, sizes = (of_all.take(rows) for of_all in table)
        missing = np.flatnonzero(files < 0)
        if missing.size:
            raise Damaged(rows[missing], "", f"the sample has no .{column} file")
        codec = self._codec(column)
        width = int(table[2, 0]) if is_matrix(codec) else 0
        parts = MappedRows(self._maps, index.files, files, rows)
        return read_values(parts, codec, width, begins, sizes)

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return {column: self._codec(column) for column in index.tables}

    def _codec(self, column: str) -> str:
        return self._codecs.get(column) or _BY_EXTENSION.get(column.rpartition(".")[2], "bytes")
