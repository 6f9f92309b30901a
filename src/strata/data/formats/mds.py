"""MosaicML Streaming's MDS shards, read-only and unchanged.

A shard is: the number of samples (uint32), their offsets (one more than samples, uint32), then the
samples. A sample is the sizes (uint32) of its columns of variable size, then the columns' bytes.
`index.json` lists the shards and the columns' encodings. A batch needs at most three gathers,
however many shards it comes from: the offsets, the sizes at the start of each sample, and the
bytes.

`decode` gives a column another codec, such as `{"x": "uint8"}` for `bytes` that are arrays of one
size (that of the first sample). Compressed shards are unpacked into the host's cache
(`data/cache/decompression`); pickled columns raise an error.
"""

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.data.cache.dataset_files import Files
from strata.data.cache.decompression import UnpackedMaps, codec_of
from strata.data.formats.mapped_rows import Bytes, MappedRows
from strata.data.formats.source import (
    Array,
    Columns,
    DatasetIndex,
    FileEntry,
    Mismatch,
    RowLayout,
    Rows,
)
from strata.data.formats.value_codecs import check_codec, check_columns, is_matrix, read_values
from strata.errors import UNDECODABLE

_CODECS = {"bytes": "bytes", "str": "str", "str_int": "int", "json": "json"} | {
    "jpeg": "image",
    "jpegarray": "image",
    "png": "image",
}
_SCALARS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "float16",
    "float32",
    "float64",
}


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class _StoredFile(msgspec.Struct):
    basename: str
    bytes: _Size


class _MdsShard(msgspec.Struct):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[_Size | None]
    raw_data: _StoredFile
    samples: _Size
    format: str = "mds"
    zip_data: _StoredFile | None = None


class _MdsIndex(msgspec.Struct):
    shards: list[_MdsShard]


class MdsSource:
    def __init__(self, files: Files, *, decode: Mapping[str, str] | None = None) -> None:
        self._files, self._maps = files, UnpackedMaps(files)
        self._codecs = dict(decode or {})
        self._layout: RowLayout | None = None
        self._sound: set[str] = set()
        for column, codec in self._codecs.items():
            check_codec(codec, column)

    def scan(self) -> DatasetIndex:
        names = [name for name in self._files.names("index.json") if name.endswith("index.json")]
        if not names:
            raise Mismatch("", "no index.json found", "give the folder that MDSWriter wrote")
        entries, notes, there = [], dict[str, str](), set(self._files.names())
        for name in names:
            folder = name.removesuffix("index.json")
            for shard in self._listing(name).shards:
                columns = self._columns(name, shard)
                if notes and columns != notes:
                    raise Mismatch(name, f"has columns {columns}, but other shards have {notes}")
                notes = columns
                entries.append(self._entry(folder, shard, there))
        rows = sum(entry.rows for entry in entries)
        if not rows:
            raise Mismatch(names[0], "lists no samples")
        check_columns(self._codecs, notes)
        index = DatasetIndex(
            rows=rows, shard_rows=max(entry.rows for entry in entries), files=entries, notes=notes
        )
        first = next(at for at, entry in enumerate(entries) if entry.rows)
        parts = MappedRows(self._mapped, entries, np.array([first]), np.zeros(1, np.int64))
        index.tables["widths"] = widths = _places(index, parts, np.zeros(1, np.int64))[1][0]
        for at, column in enumerate(notes):
            self._check_width(entries[first].name, index, column, int(widths[at]))
        return index

    def _check_width(self, name: str, index: DatasetIndex, column: str, width: int) -> None:
        """Raise if the values of a column do not have the size of their type."""
        encoding = index.notes[column].rpartition("|")[0]
        codec, shape = self._codec(column, encoding)
        if is_matrix(codec):
            item_bytes = np.dtype(codec).itemsize
            expected = item_bytes * prod(shape) if shape is not None else width
            if width != expected or width % item_bytes:
                raise Mismatch(
                    name, f"column {column!r} has {width} bytes, which is not {encoding}"
                )

    def _listing(self, name: str) -> _MdsIndex:
        try:
            return msgspec.json.decode(self._files.path(name).read_bytes(), type=_MdsIndex)
        except UNDECODABLE as error:
            raise Mismatch(name, f"not an index of MDS shards: {error}") from error

    def _columns(self, name: str, shard: _MdsShard) -> dict[str, str]:
        """The encoding and fixed size (or "") of each column, in stored order."""
        if shard.format != "mds":
            raise Mismatch(name, f"shard {shard.raw_data.basename} is {shard.format}, not mds")
        described = {}
        names, encodings, sizes = shard.column_names, shard.column_encodings, shard.column_sizes
        if not len(set(names)) == len(names) == len(encodings) == len(sizes):
            raise Mismatch(name, f"the columns of shard {shard.raw_data.basename} are inconsistent")
        for column, encoding, size in zip(names, encodings, sizes, strict=True):
            if encoding.partition(":")[0] in ("pkl", "pickle"):
                hint = "leave it out by naming the columns to read, or write it as json"
                raise Mismatch(
                    name, f"column {column!r} is pickled, and Strata never unpickles data", hint
                )
            self._check_encoding(name, column, encoding)
            described[column] = f"{encoding}|{'' if size is None else size}"
        return described

    def _check_encoding(self, name: str, column: str, encoding: str) -> None:
        """Raise for an encoding whose type or shape is none."""
        try:
            codec, shape = self._codec(column, encoding)
            known = all(0 <= size <= 2**48 for size in shape or ())
        except ValueError:
            known = False
        if not known:
            raise Mismatch(name, f"column {column!r} has the invalid encoding {encoding[:80]!r}")
        check_codec(codec, column)

    def _entry(self, folder: str, shard: _MdsShard, there: Container[str]) -> FileEntry:
        """The file of a shard: uncompressed if it exists, otherwise compressed."""
        raw = folder + shard.raw_data.basename
        packed = shard.zip_data is not None and raw not in there
        stored = shard.zip_data if shard.zip_data and packed else shard.raw_data
        name = folder + stored.basename
        if packed and codec_of(name) is None:
            raise Mismatch(name, "has an unsupported compression", "unpack it")
        if name not in there:  # nor does the listing lead out of the folder
            raise Mismatch(name, "is listed in index.json but does not exist")
        size = self._files.stamp(name)[0]
        if size != stored.bytes:
            raise Mismatch(name, f"has {size} bytes, but index.json says {stored.bytes}")
        entry = FileEntry(name, shard.raw_data.bytes, shard.samples)
        if _head_bytes(entry) > entry.size_bytes:
            raise Mismatch(name, f"is too small for the {entry.rows} samples that index.json says")
        return entry

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        layout = self._layout = self._layout or RowLayout([entry.rows for entry in index.files])
        files = layout.locate(rows)
        parts = MappedRows(self._mapped, index.files, files, rows)
        begins, sizes = _places(index, parts, rows - layout.starts[files])
        return {
            column: self._column(index, column, parts, begins[:, at], sizes[:, at])
            for at, column in enumerate(index.notes)
            if column in columns
        }

    def _mapped(self, entry: FileEntry) -> Bytes:
        """The bytes of a shard, after checking that its header lists the right
        number of samples.
        """
        raw = self._maps(entry)
        if entry.name not in self._sound:
            if raw.size < _head_bytes(entry) or int(raw[:4].view("<u4")[0]) != entry.rows:
                reason = "its header does not match index.json"
                raise Mismatch(entry.name, reason)
            self._sound.add(entry.name)
        return raw

    def _column(
        self, index: DatasetIndex, column: str, parts: MappedRows, begins: Rows, sizes: Rows
    ) -> Array:
        encoding, _, size = index.notes[column].rpartition("|")
        codec, shape = self._codec(column, encoding)
        width = 0
        if is_matrix(codec):
            at = list(index.notes).index(column)
            width = int(size) if size else int(index.tables["widths"][at])
        values = read_values(parts, codec, width, begins, sizes)
        return values.reshape(len(values), *shape) if shape is not None else values

    def _codec(self, column: str, encoding: str) -> tuple[str, tuple[int, ...] | None]:
        """The codec of an encoding, and the shape of a row if the encoding has one."""
        if column in self._codecs:
            return self._codecs[column], None
        kind, _, rest = encoding.partition(":")
        if kind == "int":
            return "int64", ()
        if kind in _SCALARS:
            return kind, ()
        if kind == "ndarray":
            dtype, _, shape = rest.partition(":")
            if dtype and shape:
                return dtype, tuple(int(each) for each in shape.split(","))
            return "bytes", None
        return _CODECS.get(kind, "bytes"), None

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return {
            column: self._codec(column, note.rpartition("|")[0])[0]
            for column, note in index.notes.items()
        }


def _head_bytes(entry: FileEntry) -> int:
    return 4 + 4 * (entry.rows + 1)


def _places(
    index: DatasetIndex, parts: MappedRows, local: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The offset and size of each column of each sample."""
    offsets = parts.take(4 + 4 * local, 8).view("<u4").astype(np.int64)
    begins, ends = offsets[:, 0], offsets[:, 1]
    fixed = [note.rpartition("|")[2] for note in index.notes.values()]
    varying = [at for at, size in enumerate(fixed) if not size]
    beyond = (begins + 4 * len(varying) > ends) | (ends > parts.each(parts.size_bytes))
    parts.refuse(beyond, "the sample's offsets are invalid")
    sizes = np.array([int(size or 0) for size in fixed], np.int64)[None, :].repeat(len(local), 0)
    if len(varying) == 1:  # checked by the offsets, without touching the sample's page twice
        sizes[:, varying[0]] = ends - begins - 4 - sizes.sum(axis=1)
    elif varying:
        sizes[:, varying] = parts.take(begins, 4 * len(varying)).view("<u4")
    starts = begins[:, None] + 4 * len(varying) + np.cumsum(sizes, axis=1) - sizes
    parts.refuse(starts[:, -1] + sizes[:, -1] != ends, "the sizes of its columns do not add up")
    return starts, sizes
