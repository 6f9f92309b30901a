"""MosaicML Streaming's MDS shards, read-only and as they are.

A shard is: the number of samples (uint32), their offsets (one more than samples, uint32), then the
samples. A sample is the sizes (uint32) of its columns of varying size, then the columns' bytes.
`index.json` lists the shards and the columns' encodings. A batch needs at most three gathers,
however many shards it comes from: the offsets, the sizes at the head of each sample, and the bytes.

`decode` gives a column another codec, such as `{"x": "uint8"}` for `bytes` that are arrays of one
size (that of the first sample). Compressed shards are unpacked into the host's cache (`unpacking`);
pickled columns are refused.
"""

from collections.abc import Container, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.data.base import Array, Columns, FileEntry, Index, Layout, Mismatch, Rows
from strata.data.codecs import check_codec, check_columns, is_matrix, read_values
from strata.data.files import Files
from strata.data.parts import Bytes, Parts
from strata.data.unpacking import Unpacked, codec_of

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


class _Stored(msgspec.Struct):
    basename: str
    bytes: int


class _Shard(msgspec.Struct):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]
    raw_data: _Stored
    samples: int
    format: str = "mds"
    zip_data: _Stored | None = None


class _Listing(msgspec.Struct):
    shards: list[_Shard]


class MdsSource:
    def __init__(self, files: Files, *, decode: Mapping[str, str] | None = None) -> None:
        self._files, self._maps = files, Unpacked(files)
        self._codecs = dict(decode or {})
        self._layout: Layout | None = None
        self._sound: set[str] = set()
        for column, codec in self._codecs.items():
            check_codec(codec, column)

    def scan(self) -> Index:
        names = [name for name in self._files.names("index.json") if name.endswith("index.json")]
        if not names:
            raise Mismatch("", "no index.json here", "give the folder that MDSWriter wrote")
        entries, notes, there = [], dict[str, str](), set(self._files.names())
        for name in names:
            folder = name.removesuffix("index.json")
            for shard in self._listing(name).shards:
                columns = self._columns(name, shard)
                if notes and columns != notes:
                    raise Mismatch(name, f"has columns {columns}, and other shards have {notes}")
                notes = columns
                entries.append(self._entry(folder, shard, there))
        rows = sum(entry.rows for entry in entries)
        if not rows:
            raise Mismatch(names[0], "lists no samples")
        check_columns(self._codecs, notes)
        index = Index(rows, max(entry.rows for entry in entries), entries, notes)
        first = next(at for at, entry in enumerate(entries) if entry.rows)
        parts = Parts(self._mapped, entries, np.array([first]), np.zeros(1, np.int64))
        index.tables["widths"] = _places(index, parts, np.zeros(1, np.int64))[1][0]
        return index

    def _listing(self, name: str) -> _Listing:
        try:
            return msgspec.json.decode(self._files.path(name).read_bytes(), type=_Listing)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Mismatch(name, f"not an index of MDS shards: {error}") from error

    def _columns(self, name: str, shard: _Shard) -> dict[str, str]:
        """Each column's encoding and fixed size (or nothing), in stored order."""
        if shard.format != "mds":
            raise Mismatch(name, f"shard {shard.raw_data.basename} is {shard.format}, not mds")
        described = {}
        for column, encoding, size in zip(
            shard.column_names, shard.column_encodings, shard.column_sizes, strict=True
        ):
            if encoding.partition(":")[0] in ("pkl", "pickle"):
                hint = "leave it out by naming the columns to read, or write it as json"
                raise Mismatch(name, f"column {column!r} is pickled and is not read", hint)
            described[column] = f"{encoding}|{'' if size is None else size}"
        return described

    def _entry(self, folder: str, shard: _Shard, there: Container[str]) -> FileEntry:
        """A shard as it lies there: unpacked if it is, else compressed."""
        raw = folder + shard.raw_data.basename
        packed = shard.zip_data is not None and raw not in there
        stored = shard.zip_data if shard.zip_data and packed else shard.raw_data
        name = folder + stored.basename
        if packed and codec_of(name) is None:
            raise Mismatch(name, "is compressed in a way that is not known", "unpack it")
        try:
            size = self._files.stamp(name)[0]
        except FileNotFoundError as error:
            raise Mismatch(name, "is listed in index.json and not there") from error
        if size != stored.bytes:
            raise Mismatch(name, f"has {size} bytes, and index.json says {stored.bytes}")
        return FileEntry(name, shard.raw_data.bytes, shard.samples)

    def read(self, index: Index, rows: Rows, columns: Sequence[str]) -> Columns:
        layout = self._layout = self._layout or Layout([entry.rows for entry in index.files])
        files = layout.locate(rows)
        parts = Parts(self._mapped, index.files, files, rows)
        begins, sizes = _places(index, parts, rows - layout.starts[files])
        return {
            column: self._column(index, column, parts, begins[:, at], sizes[:, at])
            for at, column in enumerate(index.notes)
            if column in columns
        }

    def _mapped(self, entry: FileEntry) -> Bytes:
        """The bytes of a shard whose head lists as many samples as it should."""
        raw = self._maps(entry)
        if entry.name not in self._sound:
            if raw.size < _head_bytes(entry) or int(raw[:4].view("<u4")[0]) != entry.rows:
                reason = "its head does not list the samples that index.json says"
                raise Mismatch(entry.name, reason)
            self._sound.add(entry.name)
        return raw

    def _column(self, index: Index, column: str, parts: Parts, begins: Rows, sizes: Rows) -> Array:
        encoding, _, size = index.notes[column].rpartition("|")
        codec, shape = self._codec(column, encoding)
        width = 0
        if is_matrix(codec):
            at = list(index.notes).index(column)
            width = int(size) if size else int(index.tables["widths"][at])
        values = read_values(parts, codec, width, begins, sizes)
        return values.reshape(len(values), *shape) if shape is not None else values

    def _codec(self, column: str, encoding: str) -> tuple[str, tuple[int, ...] | None]:
        """The codec of an encoding, and the shape of a row where it says one."""
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

    def describe(self, index: Index) -> Mapping[str, str]:
        return {
            column: self._codec(column, note.rpartition("|")[0])[0]
            for column, note in index.notes.items()
        }


def _head_bytes(entry: FileEntry) -> int:
    return 4 + 4 * (entry.rows + 1)


def _places(index: Index, parts: Parts, local: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each column of each sample begins, and its size."""
    offsets = parts.take(4 + 4 * local, 8).view("<u4").astype(np.int64)
    begins, ends = offsets[:, 0], offsets[:, 1]
    fixed = [note.rpartition("|")[2] for note in index.notes.values()]
    varying = [at for at, size in enumerate(fixed) if not size]
    beyond = (begins + 4 * len(varying) > ends) | (ends > parts.each(parts.size_bytes))
    parts.refuse(beyond, "the sample's offsets make no sense")
    sizes = np.array([int(size or 0) for size in fixed], np.int64)[None, :].repeat(len(local), 0)
    if len(varying) == 1:  # the offsets say it, and the sample's page need not be touched twice
        sizes[:, varying[0]] = ends - begins - 4 - sizes.sum(axis=1)
    elif varying:
        sizes[:, varying] = parts.take(begins, 4 * len(varying)).view("<u4")
    starts = begins[:, None] + 4 * len(varying) + np.cumsum(sizes, axis=1) - sizes
    parts.refuse(starts[:, -1] + sizes[:, -1] != ends, "the sizes of its columns do not add up")
    return starts, sizes
