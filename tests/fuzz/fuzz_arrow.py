"""Datasets of Arrow files: every row or an error for it, as `formats` says."""

from pathlib import Path

from tests.data.corpora import write_parquet
from tests.fuzz.formats import read_with, seeds_of


def _write(folder: Path, count: int) -> None:
    write_parquet(folder, count, ".arrow")


def seeds() -> list[bytes]:
    return seeds_of(_write)


def check(data: bytes) -> None:
    read_with(_write, "arrow", data)
