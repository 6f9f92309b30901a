"""Datasets of MDS shards and their index: every row or an error for it, as `formats` says."""

from tests.data.corpora import write_mds
from tests.fuzz.formats import read_with, seeds_of


def seeds() -> list[bytes]:
    return seeds_of(write_mds)


def check(data: bytes) -> None:
    read_with(write_mds, "mds", data)
