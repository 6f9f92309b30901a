"""Parquet and Arrow files, read without conversion.

A row group (Parquet) or record batch (Arrow IPC) is the smallest unit that can be decoded, so
decoded groups are cached, up to `cache_bytes`, with least-recently-used eviction. With a global
shuffle over data that does not fit, nearly every row decodes a group again: use the order mode
`window`, which reads a few groups at a time.

Numbers are returned as arrays of their type, fixed-size lists of numbers as matrices, text and
binary as objects. A null in a column of numbers makes its row damaged.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock, RLock
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from strata import extras
from strata.data.cache.dataset_files import Files
from strata.data.formats.row_gather import joined, objects
from strata.data.formats.source import (
    Array,
    Columns,
    Damaged,
    DatasetIndex,
    FileEntry,
    Mismatch,
    Natural,
    RowLayout,
    Rows,
)

_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
MAX_OPEN = 256


class ArrowSource:
    def __init__(self, files: Files, *, cache_bytes: Natural = 512 << 20) -> None:
        extras.check("pyarrow")
        self._files = files
        self._cache_bytes = cache_bytes
        self._held: OrderedDict[tuple[int, str], _DecodedRows] = OrderedDict()
        self._held_bytes = 0
        self._layout: RowLayout | None = None
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._lock = RLock()
        self._decoding = Lock()
        files.on_release.append(self._drop)

    def scan(self) -> DatasetIndex:
        entries = list[FileEntry]()
        groups, notes = list[tuple[int, int, int]](), dict[str, str]()
        for name in self._files.names(*_PARQUET, *_ARROW):
            counts, fields = self._peeked(name)
            schema = {field.name: str(field.type) for field in fields}
            if notes and schema != notes:
                raise Mismatch(name, f"has columns {schema}, but other files have {notes}")
            notes = schema
            groups += [(len(entries), at, rows) for at, rows in enumerate(counts)]
            entries.append(FileEntry(name, self._files.stamp(name)[0], sum(counts)))
        rows = sum(entry.rows for entry in entries)
        if not rows:
            raise Mismatch("", "no rows in any .parquet or .arrow file")
        table = np.array([group for group in groups if group[2]], np.int64)
        return DatasetIndex(
            rows=rows,
            shard_rows=int(table[:, 2].max()),
            files=entries,
            notes=notes,
            tables={"groups": table},
        )

    def _peeked(self, name: str) -> tuple[list[int], Any]:
        """The number of rows of each group and the fields; for Parquet only the footer is read."""
        try:
            if not name.endswith(_PARQUET):
                reader = self._opened(name).reader
                return reader.counts(), reader.schema
            with self._files.open(name) as file:
                footer = _Parquet(file)
                return footer.counts(), footer.schema
        except _unreadable() as error:
            raise Mismatch(name, f"cannot be opened: {error}") from error

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        if not rows.size:
            return {column: self._nothing(index, column) for column in columns}
        groups = index.tables["groups"]
        layout = self._layout = self._layout or RowLayout(groups[:, 2])
        found: dict[str, list[Array]] = {column: [] for column in columns}
        chosen: list[Array] = []
        for number, places, local in layout.split(rows):
            entry = index.files[int(groups[number, 0])]
            chosen.append(np.arange(len(rows)) if isinstance(places, slice) else places)
            for column in columns:
                values = self._group(number, groups, entry, column, rows[places])
                found[column].append(self._taken(values, local, column, entry, rows[places]))
        return {column: joined(parts, chosen, len(rows)) for column, parts in found.items()}

    def _nothing(self, index: DatasetIndex, column: str) -> Array:
        """Empty columns, with the right dtype if a file can still be opened."""
        import pyarrow as pa  # type: ignore[import-untyped]

        for entry in index.files:
            try:
                kind = self._opened(entry.name).reader.schema.field(column).type
            except _unreadable():
                continue
            empty = _numbers(pa.array([], kind))
            return empty if isinstance(empty, np.ndarray) else np.empty(0, object)
        return np.empty(0, object)

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        return index.notes

    def _group(self, number: int, groups: Rows, entry: FileEntry, column: str, rows: Rows) -> Any:
        """One column of a decoded group, from the cache or from the file."""
        with self._lock:
            held = self._held.get((number, column))
            # A cached Arrow column may be a view of the mapped file, so the file is checked first.
            if held is not None and entry.name.endswith(_PARQUET):
                self._held.move_to_end((number, column))
                return held.values
        try:
            self._require_unchanged(entry)
            if held is not None:
                return held.values
            values = self._decoded(entry.name, int(groups[number, 1]), column)
        except Mismatch as error:
            raise Damaged(rows, entry.name, error.reason) from error
        except _unreadable() as error:
            raise Damaged(rows, entry.name, f"cannot be decoded: {error}") from error
        ready = _numbers(values)
        self._hold((number, column), entry.name, ready)
        return ready

    def _require_unchanged(self, entry: FileEntry) -> None:
        """Raise if the file changed: cached data of the old file must not be used."""
        stamp = self._files.stamp(entry.name)
        with self._lock:
            opened = self._open.get(entry.name)
            if opened is not None and opened.stamp != stamp:
                self._drop(entry.name)
        if stamp[0] != entry.size_bytes:
            raise Mismatch(entry.name, "the file changed since it was scanned")

    def _hold(self, key: tuple[int, str], name: str, values: Any) -> None:
        """Cache a decoded group and evict others. Sizes are stored, because computing them would
        touch a mapped file that may have been truncated.
        """
        with self._lock:
            self._held[key] = _DecodedRows(values, values.nbytes, name)
            self._held_bytes += values.nbytes
            while self._held_bytes > self._cache_bytes and len(self._held) > 1:
                self._held_bytes -= self._held.popitem(last=False)[1].size_bytes

    def _decoded(self, name: str, group: int, column: str) -> Any:
        # Parquet readers must not be used by two threads at once.
        reader = self._opened(name).reader
        with self._decoding:
            values = reader.column(group, column)
            values.validate(full=True)  # invalid offsets would crash the process
            return values

    def _taken(self, values: Any, local: Rows, column: str, entry: FileEntry, rows: Rows) -> Array:
        if isinstance(values, np.ndarray):
            return values[local]
        taken = values.take(local)
        if taken.null_count and _is_number(taken.type):
            bad = rows[np.asarray(taken.is_null())]
            raise Damaged(bad, entry.name, f"column {column!r} is null")
        made = _numbers(taken)
        if isinstance(made, np.ndarray):
            return made
        return objects(taken.to_pylist(), len(local))

    def _opened(self, name: str) -> "_Opened":
        """The reader of a file; at most `MAX_OPEN` files are open, with least-recently-used
        eviction.
        """
        path = self._files.path(name)
        with self._lock:
            if name not in self._open:
                kind = _Parquet if name.endswith(_PARQUET) else _Ipc
                stamp = self._files.stamp(name)
                self._open[name] = _Opened(kind(str(path)), stamp)
            self._open.move_to_end(name)
            if len(self._open) > MAX_OPEN:
                self._drop(next(iter(self._open)))
            return self._open[name]

    def _drop(self, name: str) -> None:
        """Close a file and drop its cached columns, which may be views of it."""
        with self._lock:
            self._open.pop(name, None)
            if name.endswith(_PARQUET):
                return
            for key in [key for key, held in self._held.items() if held.file == name]:
                self._held_bytes -= self._held.pop(key).size_bytes


class _Opened(NamedTuple):
    """An open file, and its stamp when it was opened."""

    reader: "_Parquet | _Ipc"
    stamp: tuple[int, int]


class _DecodedRows(NamedTuple):
    """One decoded column of a group."""

    values: Any
    size_bytes: int
    file: str


class _Parquet:
    def __init__(self, place: str | BinaryIO) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self._file = pq.ParquetFile(place, memory_map=isinstance(place, str))
        self.schema = self._file.schema_arrow

    def counts(self) -> list[int]:
        meta = self._file.metadata
        return [meta.row_group(at).num_rows for at in range(meta.num_row_groups)]

    def column(self, group: int, column: str) -> Any:
        return self._file.read_row_group(group, [column], use_threads=False).column(0)


class _Ipc:
    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._file = pa.ipc.open_file(pa.memory_map(path))
        self.schema = self._file.schema

    def counts(self) -> list[int]:
        return [self._file.get_batch(at).num_rows for at in range(self._file.num_record_batches)]

    def column(self, group: int, column: str) -> Any:
        return self._file.get_batch(group).column(column)


def _unreadable() -> tuple[type[Exception], ...]:
    """What pyarrow raises for damaged files."""
    import pyarrow as pa

    return (pa.ArrowException, KeyError, MemoryError, OSError, OverflowError, ValueError)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _numbers(values: Any) -> Any:
    """Numbers without nulls as a NumPy array, fixed-size lists of them as a matrix; others
    unchanged.
    """
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if values.null_count:
        return values
    if _is_number(kind):
        return values.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        inner = values.flatten()
        if not inner.null_count:
            return inner.to_numpy(zero_copy_only=False).reshape(len(values), kind.list_size)
    return values
