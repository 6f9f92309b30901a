"""What a data format is: three methods over an index.

A *source* is one dataset in one format. `scan` looks at the data once and gives an *index*: how
many rows, which files, and whatever tables the format needs to find a row (offsets, row groups,
members). The index is kept, so `read` gets it back later, in this process or in another.
`read` gathers rows into columns, in the order asked for, whole batches at a time. `describe` names
the columns.

A format of one's own is a class with these three methods, made known by
`strata.data.dataset.register_format`. Nothing else needs to know about it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

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


class Index(Struct):
    """What a scan found. `identity` is for sources without files: what tells two of them apart."""

    rows: int
    shard_rows: int = 0
    files: list[FileEntry] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    identity: str = ""


class Source(Protocol):
    """A dataset in some format."""

    def scan(self) -> Index:
        """Looks at the data once."""

    def read(self, index: Index, rows: Rows, columns: Sequence[str]) -> Columns:
        """The rows, in the order given; each column has one entry a row along its first axis."""

    def describe(self, index: Index) -> Mapping[str, str]:
        """Each column's name, with its type in words."""


class Damaged(Exception):
    """Raised by `read`: some of the rows asked for cannot be read. The caller decides what next."""

    def __init__(self, rows: Sequence[int] | Rows, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.rows = [int(row) for row in rows]
        self.file = file
        self.reason = reason


class Mismatch(Exception):
    """Raised by `scan`: the data is not what the format expects. Says which file and why."""

    def __init__(self, file: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason
        self.hint = hint


class Layout:
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
        """For each part that holds some of the rows: its number, their places, their rows in it."""
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
