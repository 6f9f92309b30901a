"""A dataset that can be read: a source, its index, and the handling of damaged rows.

`open_dataset` scans the files, or loads a stored index, and returns a `Dataset`.

A row that cannot be read stops training with an error that names dataset, file and row. With
`on_error="skip"` it is left out of its batch and reported to `on_skip`, each time it occurs.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strata.core.order import Mode, Order, OrderSpec
from strata.core.rule_settings import SHUFFLE_SEED
from strata.core.state import DatasetSpec
from strata.data.cache.dataset_files import Files, open_files
from strata.data.cache.decompression import plain_name
from strata.data.cache.fetch_observers import observed_opening
from strata.data.cache.index_store import IndexStore, fingerprint_of
from strata.data.formats.arrow import ArrowSource
from strata.data.formats.hf_datasets import HuggingFaceFolder
from strata.data.formats.image_folder import ImageFolderSource
from strata.data.formats.in_memory import ArraySource
from strata.data.formats.jsonl import JsonLinesSource
from strata.data.formats.mds import MdsSource
from strata.data.formats.npy import NpySource
from strata.data.formats.source import (
    Array,
    Columns,
    Damaged,
    DatasetIndex,
    FormatSource,
    Mismatch,
    Rows,
    check_options,
)
from strata.data.formats.tar import TarSource
from strata.data.formats.token_bins import TokenSource
from strata.errors import Corrupt, InvalidArgument, StrataError

OnError: TypeAlias = Literal["raise", "skip"]
OPTIONS = "format_options"
_log = logging.getLogger(__name__)
_DEFAULT_SHARDS = 1_024

FORMATS: dict[str, Callable[..., FormatSource]] = {
    "arrow": ArrowSource,
    "huggingface": HuggingFaceFolder,
    "imagefolder": ImageFolderSource,
    "jsonl": JsonLinesSource,
    "mds": MdsSource,
    "npy": NpySource,
    "parquet": ArrowSource,
    "tokens": TokenSource,
    "webdataset": TarSource,
}

_BY_SUFFIX = {
    ".npy": "npy",
    ".npz": "npy",
    ".bin": "tokens",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tar": "webdataset",
}


class SkippedRow(NamedTuple):
    """A row that was left out of a batch, and the reason."""

    dataset: str
    file: str
    row: int
    reason: str


class _Origin(NamedTuple):
    """The arguments that opened a dataset, so that another process can open it again."""

    path: str
    format: str
    options: dict[str, Any]
    factory: Callable[..., FormatSource]

    def open(self) -> tuple[Files, FormatSource]:
        files = open_files(self.path)
        return files, self.factory(files, **self.options)


def register_format(name: str, factory: Callable[..., FormatSource]) -> None:
    """Register a format: `factory(files, **options)` returns its source."""
    if name in FORMATS:
        raise InvalidArgument(f"format {name!r} is already registered", hint="choose another name")
    FORMATS[name] = factory


class Dataset:
    """Rows by number, gathered into columns."""

    def __init__(
        self,
        name: str,
        source: FormatSource,
        index: DatasetIndex,
        fingerprint: str,
        *,
        shard_size: int = 0,
    ) -> None:
        self.name = name
        self.total_samples = index.rows
        self.fingerprint = fingerprint
        if shard_size < 0 or shard_size > index.rows:
            raise InvalidArgument(
                f"dataset {name!r}: shard_size is {shard_size}, with {index.rows} samples",
                hint="choose 1 to the number of samples, or 0 for an automatic size",
            )
        automatic = index.shard_rows or -(-index.rows // _DEFAULT_SHARDS)
        self.shard_size = shard_size or min(automatic, index.rows)
        self.columns: dict[str, str] = dict(source.describe(index))
        self._source, self._index = source, index
        self._origin: _Origin | None = None
        self._files: Files | None = None

    def __len__(self) -> int:
        return self.total_samples

    def __getstate__(self) -> dict[str, Any]:
        """The state without open files: another process opens them itself and keeps the index."""
        left = {"_source", "_files"} if self._origin is not None else set[str]()
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._origin is not None:
            self._files, self._source = self._origin.open()

    def spec(self, *, shuffle: bool = True, seed: int = SHUFFLE_SEED) -> DatasetSpec:
        """The description that a coordinator registers."""
        path, format, options = self._origin[:3] if self._origin is not None else ("", "", {})
        return DatasetSpec(
            total_samples=self.total_samples,
            shard_size=self.shard_size,
            shuffle=shuffle,
            seed=seed,
            name=self.name,
            path=path,
            format=format,
            fingerprint=self.fingerprint,
            metadata={OPTIONS: msgspec.json.encode(options).decode()} if options else {},
        )

    def order(
        self,
        global_batch: int,
        *,
        lanes: int = 1,
        seed: int = SHUFFLE_SEED,
        shuffle: bool = True,
        mode: Mode = "global",
        window: int = 0,
    ) -> Order:
        """The order in which steps of `global_batch` samples train this dataset."""
        return Order(
            OrderSpec(
                total_samples=self.total_samples,
                shard_size=self.shard_size,
                global_batch=global_batch,
                lanes=lanes,
                seed=seed,
                fingerprint=self.fingerprint,
                shuffle=shuffle,
                mode=mode,
                window=window,
            )
        )

    @property
    def forks(self) -> bool:
        """Whether a forked process may read it, too."""
        return self._files is None or self._files.forks

    @property
    def batch(self) -> str:
        """The id of the batch that files are fetched for, or ""."""
        return self._files.batch() if self._files is not None else ""

    def read_for(self, batch: Callable[[], str]) -> None:
        """Record files that are fetched from now on under the batch that `batch` returns."""
        if self._files is not None:
            self._files.batch = batch

    def read(self, rows: Rows | Sequence[int], columns: Sequence[str] | None = None) -> Columns:
        """The rows in the given order; raises `Corrupt` for the first one that cannot be read."""
        asked = np.asarray(rows)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise InvalidArgument(
                f"dataset {self.name!r}: invalid row numbers {str(rows)[:100]}",
                hint="give a list of integers",
            )
        return self.gather(asked.astype(np.int64), self.checked_columns(columns), None)[0]

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return list(self.columns)
        if isinstance(columns, str) or not isinstance(columns, Iterable) or not columns:
            raise InvalidArgument(
                f"dataset {self.name!r}: columns is {columns!r}",
                hint=f"give a list of some of {', '.join(self.columns)}, or None for all",
            )
        unknown = [column for column in columns if column not in self.columns]
        if unknown:
            raise InvalidArgument(
                f"dataset {self.name!r} has no column {unknown[0]!r}",
                hint=f"it has {', '.join(self.columns)}",
            )
        return list(columns)

    def gather(
        self, rows: Rows, columns: Sequence[str], on_skip: Callable[[SkippedRow], None] | None
    ) -> tuple[Columns, Array | None]:
        """The readable rows and, if some were left out, a mask of the requested rows.

        Without `on_skip`, a row that cannot be read raises `Corrupt`.
        """
        # As unsigned integers, negative numbers are very large.
        if rows.size and np.maximum.reduce(rows.view(np.uint64)) >= self.total_samples:
            outside = rows[(rows < 0) | (rows >= self.total_samples)]
            raise InvalidArgument(
                f"dataset {self.name!r} has no row {int(outside[0])}",
                hint=f"rows are 0 to {self.total_samples - 1}",
            )
        kept: Array | None = None
        while True:
            asked = rows if kept is None else rows[kept]
            try:
                found = self._source.read(self._index, asked, columns)
                self._require_whole(found, columns, len(asked))
                return found, kept
            except Damaged as damage:
                if on_skip is None or not np.isin(asked, damage.rows).any():
                    raise self._corrupt(damage) from damage
                for row in damage.rows:
                    skipped = SkippedRow(
                        dataset=self.name, file=damage.file, row=row, reason=damage.reason
                    )
                    on_skip(skipped)
                bad = np.isin(rows, damage.rows)
                kept = ~bad if kept is None else kept & ~bad
            except (StrataError, MemoryError):
                raise
            except Exception as error:
                raise Corrupt(
                    f"dataset {self.name!r}: cannot read rows {asked[:3].tolist()} …: {error!r}"
                ) from error

    def _require_whole(self, found: Columns, columns: Sequence[str], count: int) -> None:
        """Raise if a format returned fewer rows than requested: samples would be lost silently."""
        for column in columns:
            values = found.get(column) if isinstance(found, dict) else None
            if not isinstance(values, np.ndarray) or len(values) != count:
                given = f"{len(values)} rows" if isinstance(values, np.ndarray) else repr(values)
                raise Corrupt(
                    f"dataset {self.name!r}: requested {count} rows of column {column!r}, but the "
                    f"format returned {given[:80]}",
                    hint="read() must return, for each column, an array with one entry per row",
                )

    def _corrupt(self, damage: Damaged) -> Corrupt:
        file = f", file {damage.file}" if damage.file else ""
        more = f" (and {len(damage.rows) - 1} more)" if len(damage.rows) > 1 else ""
        row = f", row {damage.rows[0]}{more}" if damage.rows else ""
        return Corrupt(
            f"dataset {self.name!r}{file}{row}: {damage.reason}",
            hint='repair the file, or leave out such rows with on_error="skip"',
        )


def open_dataset(
    path: str | PathLike[str] = "",
    format: str = "",
    *,
    name: str = "",
    shard_size: int = 0,
    cache_dir: str | None = None,
    **options: object,
) -> Dataset:
    """Open the data at a path; without `format`, it is detected from the file names."""
    if not isinstance(path, str | PathLike):
        raise InvalidArgument(f"invalid path {path!r:.80}", hint="give a file, a folder or s3://…")
    path = fspath(path)
    name = name or path.rstrip("/").rpartition("/")[2] or "dataset"
    with observed_opening(name, path) as notes:
        dataset, files = _opened(path, format, name, shard_size, cache_dir, options)
        notes.files, notes.samples = len(dataset._index.files), dataset.total_samples
        notes.range_bytes = files.range_bytes
    return dataset


def _opened(
    path: str,
    format: str,
    name: str,
    shard_size: int,
    cache_dir: str | None,
    options: dict[str, object],
) -> tuple[Dataset, Files]:
    with _named_errors(name, format):
        files = open_files(path)
        files.dataset = name
        kind = format or _detected_format(files)
        if kind not in FORMATS:
            raise Mismatch("", f"unknown format {kind!r}", f"known formats: {', '.join(FORMATS)}")
    factory = FORMATS[kind]
    with _named_errors(name, kind):
        check_options(factory, options)
        source = factory(files, **options)
        store = IndexStore(files, kind, options, cache_dir)
        known = store.load()
        if known is None:
            index = _scanned(source)
            known = index, fingerprint_of(kind, options, index, files)
            if index.files:
                store.save(*known)
    dataset = Dataset(name, source, *known, shard_size=shard_size)
    dataset._origin = _Origin(path=files.place, format=kind, options=dict(options), factory=factory)
    dataset._files = files
    return dataset, files


def open_source(source: FormatSource, *, name: str = "dataset", shard_size: int = 0) -> Dataset:
    """A dataset over a source that the caller wrote."""
    if lacking := [each for each in ("scan", "read", "describe") if not hasattr(source, each)]:
        raise InvalidArgument(
            f"dataset {name!r}: {source!r:.80} has no method {lacking[0]}",
            hint="give an object with the methods scan, read and describe",
        )
    with _named_errors(name, type(source).__name__):
        index = _scanned(source)
    fingerprint = fingerprint_of(type(source).__name__, {}, index, None)
    return Dataset(name, source, index, fingerprint, shard_size=shard_size)


def open_arrays(
    arrays: Mapping[str, Array], *, name: str = "arrays", shard_size: int = 0
) -> Dataset:
    return open_source(ArraySource(arrays), name=name, shard_size=shard_size)


def _scanned(source: FormatSource) -> DatasetIndex:
    index = source.scan()
    if index.rows <= 0:
        raise Mismatch("", "the dataset has no rows", "give data with at least one row")
    return index


def _detected_format(files: Files) -> str:
    """The format, by the files' suffixes."""
    names = files.names()
    if any(each.endswith("index.json") for each in names):
        return "mds"
    for each in names:
        for suffix, kind in _BY_SUFFIX.items():
            if plain_name(each).endswith(suffix):
                return kind
        if each.lower().endswith((".jpg", ".jpeg", ".png")):
            return "imagefolder"
    what = "cannot detect the format of" if names else "there are no files in"
    hint = f"pass format=; known formats: {', '.join(FORMATS)}" if names else "check the path"
    raise Mismatch("", f"{what} {files.place}", hint)


@contextmanager
def _named_errors(name: str, kind: str) -> Iterator[None]:
    """Add the dataset's name, and a hint if there is none, to errors about its files."""
    where = f"dataset {name!r} ({kind})" if kind else f"dataset {name!r}"
    try:
        yield
    except (Mismatch, Damaged) as error:
        file = f", file {error.file}" if error.file else ""
        hint = error.hint if isinstance(error, Mismatch) else ""
        other = "repair or remove the file, or pass another format"
        hint = hint or (other if error.file else "check the path, and pass its format")
        raise InvalidArgument(f"{where}{file}: {error.reason}", hint=hint) from error
    except StrataError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    except TypeError as error:
        raise InvalidArgument(f"{where}: {error}", hint="check the format's options") from error
    except (ValueError, OSError) as error:
        raise InvalidArgument(f"{where}: {error}", hint="check the path and its format") from error


def skipping(
    on_error: OnError, on_skip: Callable[[SkippedRow], None] | None
) -> Callable[[SkippedRow], None] | None:
    """The function to call for skipped rows, by default a log line; None if damage is an error."""
    if on_error == "raise":
        return None
    if on_error != "skip":
        raise InvalidArgument(f"on_error is {on_error!r}", hint="choose raise or skip")
    return on_skip or partial(_log.warning, "row left out of a batch: %s")
