"""Datasets of JSON lines: every row or an error for it, as `formats` says."""

from tests.data.corpora import write_jsonl
from tests.fuzz.formats import read_with, seeds_of


def seeds() -> list[bytes]:
    return seeds_of(write_jsonl)


def check(data: bytes) -> None:
    read_with(write_jsonl, "jsonl", data)
