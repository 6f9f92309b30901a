"""Datasets of folders of images: every row or an error for it, as `formats` says."""

from tests.data.corpora import write_images
from tests.fuzz.formats import read_with, seeds_of


def seeds() -> list[bytes]:
    return seeds_of(write_images)


def check(data: bytes) -> None:
    read_with(write_images, "imagefolder", data)
