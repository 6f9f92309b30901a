"""A dataset that can be read: a source, its index, and what to do about rows that cannot be read.

`open_dataset` is the door. It scans (or finds a kept index), knows the fingerprint, and gives a
`Dataset`. `Dataset.spec` is what a coordinator registers; `open_spec` opens the same data
elsewhere and refuses if it is not the same.

Damage. A row that cannot be read stops training with an error that names dataset, file and row, or
(`on_error="skip"`) is left out of its batch and told to `on_skip`, each time. It is never silent.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strata.core.datasets import DatasetSpec
from strata.core.order import Mode, Order, OrderSpec
from strata.data.arrow import ArrowSource
from strata.data.base import Array, Columns, Damaged, Index, Mismatch, Rows, Source
from strata.data.files import Files, Watch, open_files
from strata.data.huggingface import HuggingFaceFolder
from strata.data.images import ImageFolderSource
from strata.data.indexes import IndexStore, fingerprint_of
from strata.data.jsonl import JsonLinesSource
from strata.data.mds import MdsSource
from strata.data.memory import ArraySource, NumberSource
from strata.data.npy import NpySource
from strata.data.tar import TarSource
from strata.data.tokens import TokenSource
from strata.data.unpacking import plain_name
from strata.errors import Conflict, Corrupt, InvalidArgument, StrataError

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
        self._origin: dict[str, Any] = {}
        self._files: Files | None = None

    def __len__(self) -> int:
        return self.total_samples

    def spec(self, *, shuffle: bool = True, seed: int = 42) -> DatasetSpec:
        """What a coordinator registers."""
        options = self._origin.get("options") or {}
        return DatasetSpec(
            total_samples=self.total_samples,
            shard_size=self.shard_size,
            shuffle=shuffle,
            seed=seed,
            name=self.name,
            path=self._origin.get("path", ""),
            format=self._origin.get("format", ""),
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

    def watch(self, watch: Watch) -> None:
        """Tells of every file that is brought to this host to be read."""
        if self._files is not None:
            self._files.watch(watch)

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
        if isinstance(columns, str) or not columns:
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
                return self._source.read(self._index, asked, columns), kept
            except Damaged as damage:
                if on_skip is None or not damage.rows:
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

    def _corrupt(self, damage: Damaged) -> Corrupt:
        file = f", file {damage.file}" if damage.file else ""
        more = f" (and {len(damage.rows) - 1} more)" if len(damage.rows) > 1 else ""
        row = f", row {damage.rows[0]}{more}" if damage.rows else ""
        return Corrupt(
            f"dataset {self.name!r}{file}{row}: {damage.reason}",
            hint='mend the file, or go on without such rows with on_error="skip"',
        )


def open_dataset(
    path: str = "",
    format: str = "",
    *,
    name: str = "",
    shard_size: int = 0,
    cache_dir: str | None = None,
    **options: object,
) -> Dataset:
    """Opens the data at a path; the format is told from the files if none is named."""
    name = name or path.rstrip("/").rpartition("/")[2] or "dataset"
    files = open_files(path)
    kind = format or _told(files, name)
    if kind not in FORMATS:
        raise InvalidArgument(
            f"dataset {name!r}: there is no format {kind!r}", hint=f"known are {', '.join(FORMATS)}"
        )
    store = IndexStore(files, kind, options, cache_dir)
    with _Naming(name, kind):
        source = FORMATS[kind](files, **options)
        known = store.load()
        if known is None:
            index = source.scan()
            known = index, fingerprint_of(kind, options, index, files)
            if index.files:
                store.save(*known)
    dataset = Dataset(name, source, *known, shard_size=shard_size)
    dataset._origin = {"path": path, "format": kind, "options": options}
    dataset._files = files
    return dataset


def open_source(source: Source, *, name: str = "dataset", shard_size: int = 0) -> Dataset:
    """A dataset over a source of one's own."""
    with _Naming(name, type(source).__name__):
        index = source.scan()
        if index.rows <= 0:
            raise Mismatch("", f"has {index.rows} rows")
    fingerprint = fingerprint_of(type(source).__name__, {}, index, None)
    return Dataset(name, source, index, fingerprint, shard_size=shard_size)


def open_arrays(
    arrays: Mapping[str, Array], *, name: str = "arrays", shard_size: int = 0
) -> Dataset:
    """Arrays in memory as a dataset."""
    return open_source(ArraySource(arrays), name=name, shard_size=shard_size)


def open_spec(name: str, spec: DatasetSpec, *, cache_dir: str | None = None) -> Dataset:
    """The data of a registered dataset; without a path, its sample numbers."""
    if not spec.path:
        source = NumberSource(spec.total_samples)
        return Dataset(name, source, source.scan(), spec.fingerprint, shard_size=spec.shard_size)
    dataset = open_dataset(
        spec.path,
        spec.format,
        name=name,
        shard_size=spec.shard_size,
        cache_dir=cache_dir,
        **options_of(name, spec),
    )
    for what, now, then in (
        ("total_samples", dataset.total_samples, spec.total_samples),
        ("fingerprint", dataset.fingerprint, spec.fingerprint or dataset.fingerprint),
    ):
        if now != then:
            raise Conflict(
                f"dataset {name!r}: {what} of {spec.path} is {now}, and {then} was registered",
                hint="register changed data under a new id; runs rely on the old one",
            )
    return dataset


def options_of(name: str, spec: DatasetSpec) -> dict[str, Any]:
    """What the format was told, as the spec keeps it."""
    try:
        told = msgspec.json.decode(spec.metadata.get(OPTIONS, "{}"), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"dataset {name!r}: {OPTIONS} in its metadata is not a JSON object: {error}",
            hint='write it like {"length": 1025}',
        ) from error
    return checked_options(name, told)


def checked_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options for a format; what every dataset has is none."""
    taken = inspect.signature(open_dataset).parameters.keys() & options.keys()
    if taken:
        raise InvalidArgument(
            f"dataset {name!r}: {min(taken)} is no option of a format",
            hint="give it where the dataset is opened or registered",
        )
    return options


def _told(files: Files, name: str) -> str:
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
    raise InvalidArgument(
        f"dataset {name!r}: cannot tell the format of {files.place}",
        hint=f"name it; known are {', '.join(FORMATS)}",
    )


class _Naming:
    """Gives what a source says about its files the dataset's name."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        where = f"dataset {self._name!r} ({self._kind})"
        if isinstance(error, Mismatch | Damaged):
            file = f", file {error.file}" if error.file else ""
            hint = error.hint if isinstance(error, Mismatch) else "mend the file, or leave it out"
            raise InvalidArgument(f"{where}{file}: {error.reason}", hint=hint) from error
        if isinstance(error, TypeError):
            raise InvalidArgument(f"{where}: {error}", hint="check the format's options") from error
        if isinstance(error, ValueError | OSError):
            raise InvalidArgument(
                f"{where}: {error}", hint="check the path and its format"
            ) from error


def skipping(
    on_error: OnError, on_skip: Callable[[Skipped], None] | None
) -> Callable[[Skipped], None] | None:
    """Whom to tell about rows left out; a log, if nobody else is named."""
    if on_error == "raise":
        return None
    if on_error != "skip":
        raise InvalidArgument(f"on_error is {on_error!r}", hint="choose raise or skip")
    return on_skip or partial(_log.warning, "left out of a batch: %s")


def batches_of(columns: Columns, sizes: Sequence[int]) -> Iterator[Columns]:
    """Columns cut into consecutive batches; views, not copies."""
    first = 0
    for size in sizes:
        yield {name: values[first : first + size] for name, values in columns.items()}
        first += size
