"""Datasets of WebDataset tars: every row or an error for it, as `formats` says."""

from tests.data.corpora import write_tar
from tests.fuzz.formats import read_with, seeds_of


def seeds() -> list[bytes]:
    return seeds_of(write_tar)


def check(data: bytes) -> None:
    read_with(write_tar, "webdataset", data)
