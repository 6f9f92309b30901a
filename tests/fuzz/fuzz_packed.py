"""Compressed files of datasets: every row or an error for it, as `formats` says.

The first byte's high bit says whether the rest is compressed here.
"""

import gzip
from pathlib import Path

from tests.data.corpora import write_jsonl
from tests.fuzz.formats import read_with, seeds_of


def _write(folder: Path, count: int) -> None:
    write_jsonl(folder, count)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


def seeds() -> list[bytes]:
    return seeds_of(_write)


def check(data: bytes) -> None:
    read_with(_write, "jsonl", data)
