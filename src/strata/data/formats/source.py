"""The interface of a data format: three methods over an index.

A *source* is one dataset in one format. `scan` reads the data once and returns an *index*: the
number of rows, the files, and the tables that the format needs to find a row (offsets, row groups,
members). The index is stored, and `read` gets it back later, in this process or in another. `read`
gathers rows into columns, in the given order, one batch per call. `describe` names the columns.

To add a format, write a class with these three methods and register it with `register_format`
(`data/source_dataset`). Nothing else needs to change.

The options of a format are the parameters of its class, with their types. `check_options` checks
them before the source is created, so that a misspelt option is an error that lists the known ones.
Options whose types msgspec does not know are left to the format.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Protocol, TypeAlias, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Columns: TypeAlias = dict[str, Array]
Rows: TypeAlias = NDArray[np.int64]
Option: TypeAlias = str | int | float | bool | list[int] | dict[str, str]


class FileEntry(Struct, frozen=True, array_like=True):
    """One file of a dataset: its name below the dataset's path, and how many rows begin in it."""

    name: str
    size_bytes: int
    rows: int = 0


class DatasetIndex(Struct):
    """The result of a scan. `identity` distinguishes sources that have no files."""

    rows: int
    shard_rows: int = 0
    files: list[FileEntry] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    identity: str = ""


class FormatSource(Protocol):
    def scan(self) -> DatasetIndex:
        """Read the data once and return its index."""

    def read(self, index: DatasetIndex, rows: Rows, columns: Sequence[str]) -> Columns:
        """The rows, in the given order; each column has one entry per row along its first axis."""

    def describe(self, index: DatasetIndex) -> Mapping[str, str]:
        """The name of each column, with its type as text."""


class Damaged(Exception):
    """Raised by `read` if some of the rows cannot be read; the caller skips them or raises."""

    def __init__(self, rows: Sequence[int] | Rows, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.rows = [int(row) for row in rows]
        self.file = file
        self.reason = reason


class Mismatch(Exception):
    """Raised by `scan` if the data is not what the format expects; names the file and reason."""

    def __init__(self, file: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason
        self.hint = hint


class RowLayout:
    """Which part (a file, a row group) each row is in."""

    def __init__(self, counts: Sequence[int] | Rows) -> None:
        self.starts: Rows = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def locate(self, rows: Rows) -> NDArray[np.intp]:
        if len(self.starts) == 2:
            return np.zeros(len(rows), np.intp)
        return np.searchsorted(self.starts, rows, side="right") - 1

    def split(self, rows: Rows) -> Iterator[tuple[int, NDArray[np.intp] | slice, Rows]]:
        """For each part that holds some of the rows: its number, their places in `rows`, and their
        row numbers within the part.
        """
        if len(self.starts) == 2:
            yield 0, slice(None), rows
            return
        parts = self.locate(rows)
        places = np.argsort(parts, kind="stable")
        parts = parts[places]
        cuts = np.flatnonzero(np.diff(parts)) + 1
        begins = [0, *cuts.tolist(), len(parts)]
        for begin, end in pairwise(begins):
            if begin < end:
                part = int(parts[begin])
                chosen = places[begin:end]
                yield part, chosen, rows[chosen] - self.starts[part]


Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


def check_options(factory: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Raise for options that are unknown, missing or of the wrong type."""
    _, *parameters = inspect.signature(factory).parameters.values()
    takes = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    hint = f"its options are {', '.join(takes)}" if takes else "it has no options"
    unknown = options.keys() - takes.keys()
    if unknown and len(takes) == len(parameters):
        raise Mismatch("", f"unknown option {min(unknown)!r}", hint)
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in options:
            raise Mismatch("", f"the option {name!r} is missing", hint)
    for name, wanted in _types(factory).items():
        if name in options:
            _check_type(name, options[name], wanted)


def _types(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        made = factory.__init__ if inspect.isclass(factory) else factory
        return get_type_hints(made, include_extras=True)
    except (NameError, TypeError):  # types that exist only for a type checker
        return {}


def _check_type(name: str, value: object, wanted: Any) -> None:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise Mismatch("", f"the option {name!r} is {value!r:.80}", str(error)) from error
    except TypeError:
        return  # a type that msgspec does not know
