"""Datasets of token bins: every row or an error for it, as `formats` says."""

from pathlib import Path

import numpy as np

from tests.fuzz.formats import read_with, seeds_of


def _write(folder: Path, count: int) -> None:
    folder.mkdir()
    np.arange(4 * count, dtype=np.uint16).tofile(folder / "a.bin")
    np.arange(2 * count, dtype=np.uint16).tofile(folder / "b.bin")


def seeds() -> list[bytes]:
    return seeds_of(_write)


def check(data: bytes) -> None:
    read_with(_write, "tokens", data, length=4)
