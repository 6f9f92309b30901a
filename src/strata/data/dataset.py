"""A dataset that can be read: a source, its index, and what to do about rows that cannot be read.

`open_dataset` is the door. It scans (or finds a kept index), knows the fingerprint, and gives a
`Dataset`. `Dataset.spec` is what a coordinator registers (see `specs`).

Damage. A row that cannot be read stops training with an error that names dataset, file and row, or
(`on_error="skip"`) is left out of its batch and told to `on_skip`, each time. It is never silent.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strata.core.datasets import DatasetSpec
from strata.core.order import Mode, Order, OrderSpec
from strata.data.arrow import ArrowSource
from strata.data.base import Array, Columns, Damaged, Index, Mismatch, Rows, Source
from strata.data.files import Files, open_files
from strata.data.huggingface import HuggingFaceFolder
from strata.data.images import ImageFolderSource
from strata.data.indexes import IndexStore, fingerprint_of
from strata.data.jsonl import JsonLinesSource
from strata.data.mds import MdsSource
from strata.data.memory import ArraySource, NumberSource
from strata.data.npy import NpySource
from strata.data.observers import observed_opening
from strata.data.options import check_options
from strata.data.tar import TarSource
from strata.data.tokens import TokenSource
from strata.data.unpacking import plain_name
from strata.errors import Corrupt, InvalidArgument, StrataError

OnError: TypeAlias = Literal["raise", "skip"]
OPTIONS = "format_options"
_log = logging.getLogger(__name__)
_DEFAULT_SHARDS = 1_024

FORMATS: dict[str, Callable[..., Source]] = {
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


class Skipped(NamedTuple):
    """A row that was left out of a batch, and why."""

    dataset: str
    file: str
    row: int
    reason: str


class _Origin(NamedTuple):
    """Where a dataset was opened, and by which format: enough to do it again elsewhere."""

    path: str
    format: str
    options: dict[str, Any]
    factory: Callable[..., Source]

    def open(self) -> tuple[Files, Source]:
        files = open_files(self.path)
        return files, self.factory(files, **self.options)


def register_format(name: str, factory: Callable[..., Source]) -> None:
    """Makes a format known: `factory(files, **options)` gives its source."""
    if name in FORMATS:
        raise InvalidArgument(f"format {name!r} is known already", hint="choose another name")
    FORMATS[name] = factory


class Dataset:
    """Rows by number, gathered into columns."""

    def __init__(
        self, name: str, source: Source, index: Index, fingerprint: str, *, shard_size: int = 0
    ) -> None:
        self.name = name
        self.total_samples = index.rows
        self.fingerprint = fingerprint
        if shard_size < 0 or shard_size > index.rows:
            raise InvalidArgument(
                f"dataset {name!r}: shard_size {shard_size} for {index.rows} samples",
                hint="choose from 1 to the number of samples, or 0 for what suits the files",
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
        """Another process opens the files itself; what was found in them goes along."""
        left = {"_source", "_files"} if self._origin is not None else set[str]()
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._origin is not None:
            self._files, self._source = self._origin.open()

    def spec(self, *, shuffle: bool = True, seed: int = 42) -> DatasetSpec:
        """What a coordinator registers."""
        path, format, options, _ = self._origin or _Origin("", "", {}, NumberSource)
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
        seed: int = 42,
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
        """The batch that files are fetched for now, or nothing."""
        return self._files.batch() if self._files is not None else ""

    def read_for(self, batch: Callable[[], str]) -> None:
        """From now on, files are fetched for the batch that `batch` names."""
        if self._files is not None:
            self._files.batch = batch

    def read(self, rows: Rows | Sequence[int], columns: Sequence[str] | None = None) -> Columns:
        """The rows in the order given; `Corrupt` names the first that cannot be read."""
        asked = np.asarray(rows)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise InvalidArgument(
                f"dataset {self.name!r} has no rows {str(rows)[:100]}",
                hint="give row numbers, in a list",
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
        self, rows: Rows, columns: Sequence[str], on_skip: Callable[[Skipped], None] | None
    ) -> tuple[Columns, Array | None]:
        """The rows that can be read and, if some cannot, which of those asked for they are.

        Without `on_skip` a row that cannot be read is an error.
        """
        # A negative number is a very large one without its sign.
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
                    on_skip(Skipped(self.name, damage.file, row, damage.reason))
                bad = np.isin(rows, damage.rows)
                kept = ~bad if kept is None else kept & ~bad
            except (StrataError, MemoryError):
                raise
            except Exception as error:
                raise Corrupt(
                    f"dataset {self.name!r}: rows {asked[:3].tolist()} and others: {error!r}"
                ) from error

    def _require_whole(self, found: Columns, columns: Sequence[str], count: int) -> None:
        """A format that gave less than it was asked for would lose samples, silently."""
        for column in columns:
            values = found.get(column) if isinstance(found, dict) else None
            if not isinstance(values, np.ndarray) or len(values) != count:
                given = f"{len(values)} rows" if isinstance(values, np.ndarray) else repr(values)
                raise Corrupt(
                    f"dataset {self.name!r}: asked for {count} rows of column {column!r}, its "
                    f"format gave {given[:80]}",
                    hint="let read give an array for each column, with an entry for each row",
                )

    def _corrupt(self, damage: Damaged) -> Corrupt:
        file = f", file {damage.file}" if damage.file else ""
        more = f" (and {len(damage.rows) - 1} more)" if len(damage.rows) > 1 else ""
        row = f", row {damage.rows[0]}{more}" if damage.rows else ""
        return Corrupt(
            f"dataset {self.name!r}{file}{row}: {damage.reason}",
            hint='mend the file, or go on without such rows with on_error="skip"',
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
    """Opens the data at a path; the format is told from the files if none is named."""
    if not isinstance(path, str | PathLike):
        raise InvalidArgument(f"the path is {path!r:.80}", hint="give a file, a folder or s3://…")
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
    with _naming(name, format):
        files = open_files(path)
        files.dataset = name
        kind = format or _told(files)
        if kind not in FORMATS:
            raise Mismatch("", f"there is no format {kind!r}", f"known are {', '.join(FORMATS)}")
    factory = FORMATS[kind]
    with _naming(name, kind):
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
    dataset._origin = _Origin(files.place, kind, dict(options), factory)
    dataset._files = files
    return dataset, files


def open_source(source: Source, *, name: str = "dataset", shard_size: int = 0) -> Dataset:
    """A dataset over a source of one's own."""
    lacking = [each for each in ("scan", "read", "describe") if not hasattr(source, each)]
    if lacking:
        raise InvalidArgument(
            f"dataset {name!r}: {source!r:.80} has no method {lacking[0]}",
            hint="give an object with the methods scan, read and describe",
        )
    with _naming(name, type(source).__name__):
        index = _scanned(source)
    fingerprint = fingerprint_of(type(source).__name__, {}, index, None)
    return Dataset(name, source, index, fingerprint, shard_size=shard_size)


def open_arrays(
    arrays: Mapping[str, Array], *, name: str = "arrays", shard_size: int = 0
) -> Dataset:
    """Arrays in memory as a dataset."""
    return open_source(ArraySource(arrays), name=name, shard_size=shard_size)


def _scanned(source: Source) -> Index:
    index = source.scan()
    if index.rows <= 0:
        raise Mismatch("", "there are no rows", "give data that has at least one row")
    return index


def _told(files: Files) -> str:
    """The format by the files' suffixes."""
    names = files.names()
    if any(each.endswith("index.json") for each in names):
        return "mds"
    for each in names:
        for suffix, kind in _BY_SUFFIX.items():
            if plain_name(each).endswith(suffix):
                return kind
        if each.lower().endswith((".jpg", ".jpeg", ".png")):
            return "imagefolder"
    what = "cannot tell the format of" if names else "there are no files in"
    hint = f"name the format; known are {', '.join(FORMATS)}" if names else "check the path"
    raise Mismatch("", f"{what} {files.place}", hint)


@contextmanager
def _naming(name: str, kind: str) -> Iterator[None]:
    """Gives what is said about files the dataset's name, and a hint where there is none."""
    where = f"dataset {name!r} ({kind})" if kind else f"dataset {name!r}"
    try:
        yield
    except (Mismatch, Damaged) as error:
        file = f", file {error.file}" if error.file else ""
        hint = error.hint if isinstance(error, Mismatch) else ""
        other = "mend the file, leave it out, or name another format"
        hint = hint or (other if error.file else "check the path, and name the format it has")
        raise InvalidArgument(f"{where}{file}: {error.reason}", hint=hint) from error
    except StrataError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    except TypeError as error:
        raise InvalidArgument(f"{where}: {error}", hint="check the format's options") from error
    except (ValueError, OSError) as error:
        raise InvalidArgument(f"{where}: {error}", hint="check the path and its format") from error


def skipping(
    on_error: OnError, on_skip: Callable[[Skipped], None] | None
) -> Callable[[Skipped], None] | None:
    """Whom to tell about rows left out; a log, if nobody else is named."""
    if on_error == "raise":
        return None
    if on_error != "skip":
        raise InvalidArgument(f"on_error is {on_error!r}", hint="choose raise or skip")
    return on_skip or partial(_log.warning, "left out of a batch: %s")
