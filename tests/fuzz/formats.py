"""Reading one file of a dataset whose other files are whole.

A reader either refuses the dataset, with an error that names it, or returns every row: a row that
is damaged raises `Corrupt`, or is left out and reported.
"""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from strata.data.source_dataset import open_dataset
from tests.fuzz.targets import refused_naming

ROWS = 8
MOST_ROWS = 200
Write = Callable[[Path, int], None]


@cache
def files_of(write: Write) -> dict[str, bytes]:
    """The files that a writer makes for `ROWS` rows."""
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        folder = Path(made, "set")
        write(folder, ROWS)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def seeds_of(write: Write) -> list[bytes]:
    """An input for each file: the first byte is its number, the rest its content."""
    return [bytes([number]) + content for number, content in enumerate(files_of(write).values())]


def read_with(write: Write, kind: str, data: bytes, **options: object) -> None:
    """Read the dataset with one file replaced by an input."""
    files = files_of(write)
    chosen = list(files)[data[0] % len(files)] if data else next(iter(files))
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        folder = Path(made, "set")
        for name, content in (files | {chosen: data[1:]}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        with refused_naming("set"):
            dataset = open_dataset(str(folder), kind, name="set", cache_dir=made, **options)
            for row in range(min(len(dataset), MOST_ROWS)):
                _read_row(dataset, row)


def _read_row(dataset, row: int) -> None:
    with refused_naming("set"):
        found = dataset.read([row])
        assert all(len(values) == 1 for values in found.values())
