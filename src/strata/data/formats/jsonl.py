"""JSON lines: one object per line.

The scan finds where lines begin; the lines of a batch are joined into one JSON array and decoded in
one call, into a type made from the columns. The types come from the first lines (`types` overrides:
`{"score": "float"}`), and every row must fit them: a number that becomes text in the middle of a
file is an error that names the row. Blank lines are ignored. Compressed files are unpacked into the
host's cache (`data/cache/decompression`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from strata.data.cache.dataset_files import Files
from strata.data.cache.decompression import UnpackedMaps, with_compressed
from strata.data.formats.mapped_rows import MappedRows
from strata.data.formats.row_gather import objects
from strata.data.formats.source import (
    Array,
    Columns,
    DatasetIndex,
    FileEntry,
    Mismatch,
    RowLayout,
    Rows,
)
from strata.errors import UNDECODABLE

_SUFFIXES = with_compressed(".jsonl", ".ndjson", ".json")
_REFUSED = (".xz", ".lzma", ".7z", ".zip")
_SAMPLED_LINES = 100
_CHUNK_BYTES = 16 << 20
_INT64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_TYPES: dict[str, Any] = {"bool": bool, "int": _INT64, "float": float, "str": str, "any": Any}
_LISTS: dict[str, Any] = {"int": list[_INT64], "float": list[float]}
_DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}


class JsonLinesSource:
    def __init__(self, files: Files, *, types: Mapping[str, str] | None = None) -> None:
        self._files, self._maps = files, UnpackedMaps(files)
        self._types = dict(types or {})
        for column, kind in self._types.items():
            if kind not in _TYPES:
                raise Mismatch("", f"column {column!r} cannot be {kind!r}", f"one of {[*_TYPES]}")
        self._layout: RowLayout | None = None
        self._decoder: msgspec.json.Decoder[list[Any]] | None = None

    def scan(self) -> DatasetIndex:
        entries, found = list[FileEntry](), list[tuple[Rows, Rows]]()
        kinds: dict[str, str] = {}
        for name in self._files.names(*_SUFFIXES, *_REFUSED):
            if name.endswith(_REFUSED):
                raise Mismatch(name, "has an unsupported compression", "unpack it")
            entry = self._maps.entry(name)
            raw = self._maps(entry)
            begins, sizes = _lines(raw)
            kinds = _merged(kinds, self._sampled(name, raw, begins, sizes))
            found.append((begins, sizes))
            entries.append(FileEntry(name, entry.size_bytes, len(begins)))
        rows = sum(entry.rows for entry in entries)
        if not rows:
            raise Mismatch("", "no lines in any .jsonl file")
        shard = max(entry.rows for entry in entries) if len(entries) > 1 else 0
        begins, sizes = (np.concatenate(each) for each in zip(*found, strict=True))
        tables = {"begins": begins, "sizes": sizes}
        return DatasetIndex(
            rows=rows, shard_rows=shard, files=entries, notes=kinds | self._types, tables=tables
        )

    def _sampled(self, name: str, raw: Array, begins: Rows, sizes: Rows) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for row, line in enumerate(_first_lines(raw, begins, sizes)):
            try:
                value = msgspec.json.decode(line)
            except UNDECODABLE as error:
                raise Mismatch(name, f"line {row + 1} is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise Mismatch(name, f"line {row + 1} is not a JSON object")
            kinds = _merged(kinds, {key: _kind(each) for key, each in value.items()})
        return kinds

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        layout = self._layout = self._layout or RowLayout([entry.rows for entry in index.files])
        parts = MappedRows(self._maps, index.files, layout.locate(rows), rows)
        lines = parts.slices(index.tables["begins"][rows], index.tables["sizes"][rows])
        values = self._decoded(index, lines, parts)
        names = {column: f"column_{number}" for number, column in enumerate(index.notes)}
        return {
            column: _column(index.notes[column], [getattr(v, names[column]) for v in values], parts)
            for column in columns
        }

    def _decoded(self, index: DatasetIndex, lines: list[bytes], parts: MappedRows) -> list[Any]:
        if self._decoder is None:
            self._decoder = msgspec.json.Decoder(list[_row_type(index.notes)])  # type: ignore[misc]
        try:
            return self._decoder.decode(b"[" + b",".join(lines) + b"]")
        except UNDECODABLE as error:
            reasons = [self._problem(line) for line in lines]
            bad = np.array([bool(reason) for reason in reasons])
            parts.refuse(bad, next(filter(None, reasons), str(error)))
            raise

    def _problem(self, line: bytes) -> str:
        """The reason why a line cannot be decoded, or ""."""
        assert self._decoder is not None, "lines were decoded"
        try:
            self._decoder.decode(b"[" + line + b"]")
        except UNDECODABLE as error:
            return str(error)
        return ""

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return index.notes


def _first_lines(raw: Array, begins: Rows, sizes: Rows) -> list[bytes]:
    places = zip(begins[:_SAMPLED_LINES].tolist(), sizes.tolist(), strict=False)
    return [raw[begin : begin + size].tobytes() for begin, size in places]


def _lines(raw: Array) -> tuple[Rows, Rows]:
    """The offset and length of each line that is not blank."""
    ends = [
        np.flatnonzero(raw[first : first + _CHUNK_BYTES] == ord("\n")) + first
        for first in range(0, raw.size, _CHUNK_BYTES)
    ]
    if raw.size and raw[-1] != ord("\n"):
        ends.append(np.array([raw.size]))
    stops = np.concatenate([np.empty(0, np.int64), *ends]).astype(np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])[: stops.size]
    sizes = stops - begins
    short = np.flatnonzero(sizes < 3)  # shorter than any object with a key, so it may be blank
    blank = [at for at in short if not raw[begins[at] : stops[at]].tobytes().strip()]
    return np.delete(begins, blank), np.delete(sizes, blank)


def _kind(value: object) -> str:
    """The type of a scalar, `int[n]` or `float[n]` for a list of n numbers, otherwise `any`."""
    for name in ("bool", "int", "float", "str"):
        if type(value).__name__ == name:
            return name
    if isinstance(value, list) and value:
        kinds = {_kind(each) for each in value}
        if kinds <= {"int", "float"}:
            return f"{'float' if 'float' in kinds else 'int'}[{len(value)}]"
    return "any"


def _merged(known: dict[str, str], seen: dict[str, str]) -> dict[str, str]:
    merged = dict(known)
    for column, kind in seen.items():
        before = merged.setdefault(column, kind)
        if before != kind:
            floats = before.replace("int", "float"), kind.replace("int", "float")
            merged[column] = floats[0] if floats[0] == floats[1] else "any"
    return merged


def _row_type(kinds: Mapping[str, str]) -> type[msgspec.Struct]:
    """A type with a field for each column; only columns of type `any` may be missing."""
    fields: list[Any] = []
    for number, (column, kind) in enumerate(kinds.items()):
        base, listed, _ = kind.partition("[")
        wanted = _LISTS[base] if listed else _TYPES[base]
        default = {"default": None} if kind == "any" else {}
        fields.append((f"column_{number}", wanted, msgspec.field(name=column, **default)))
    return msgspec.defstruct("Row", fields, kw_only=True)


def _column(kind: str, values: list[Any], parts: MappedRows) -> Array:
    base, listed, length = kind.partition("[")
    if base not in _DTYPES:
        return objects(values, len(values))
    if listed:
        wanted = int(length[:-1])
        other = np.array([len(value) != wanted for value in values], bool)
        parts.refuse(other, f"a list does not have {wanted} numbers like the others")
        return np.array(values, _DTYPES[base]).reshape(len(values), wanted)
    return np.array(values, _DTYPES[base])
