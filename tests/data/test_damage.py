"""Guards reading of damaged files, for any damage: an error of Strata that names dataset and file,
or rows that are left out and reported; never another error, and never a crash.
"""

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest

from strata.data.formats import arrow
from strata.data.reading.batch_iterator import Batches
from strata.data.source_dataset import open_dataset
from strata.errors import Corrupt, InvalidArgument, StrataError
from tests.data import corpora

COUNT, STEP = 60, 10


def write_arrow(folder, count):
    corpora.write_parquet(folder, count, ".arrow")


WRITERS = {
    "arrow": write_arrow,
    "imagefolder": corpora.write_images,
    "jsonl": corpora.write_jsonl,
    "mds": corpora.write_mds,
    "npy": corpora.write_npy,
    "parquet": corpora.write_parquet,
    "webdataset": corpora.write_tar,
}


def cut(rng, path, raw):
    os.truncate(path, rng.randrange(len(raw)))


def delete(rng, path, raw):
    path.unlink()


def scribble(rng, path, raw):
    for _ in range(20):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    written(path, raw)


def replace(rng, path, raw):
    written(path, rng.randbytes(len(raw)))


def grow(rng, path, raw):
    written(path, raw + b"more")


def written(path, raw):
    """Write in place, so that existing maps of the file change."""
    with path.open("r+b") as file:
        file.write(raw)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "set"


def hurt(rng, folder, how):
    """Damage one of the files."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    path = rng.choice(sorted(files))
    how(rng, path, bytearray(path.read_bytes()))


def trained(dataset, **how):
    """The number of rows in an epoch, and the skipped rows."""
    skipped = []
    order = dataset.order(STEP)
    with Batches(dataset, order, stop_step=COUNT // STEP, on_skip=skipped.append, **how) as batches:
        rows = sum(len(next(iter(batch.values()))) for batch in batches)
    assert {each.dataset for each in skipped} <= {"set"}
    return rows, {each.row for each in skipped}


@pytest.mark.parametrize("how", [cut, delete, scribble, replace, grow])
@pytest.mark.parametrize("kind", WRITERS)
def test_files_damaged_while_reading_lose_only_their_rows(folder, kind, how):
    for seed in range(4):
        WRITERS[kind](folder, COUNT)
        dataset = open_dataset(str(folder), kind, name="set")
        hurt(random.Random(seed), folder, how)
        rows, left_out = trained(dataset, on_error="skip")
        assert rows + len(left_out) == COUNT
        if left_out:
            with pytest.raises(Corrupt, match=r"dataset 'set', file .*row"):
                trained(dataset)
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", [cut, delete, scribble, replace, grow])
@pytest.mark.parametrize("kind", WRITERS)
def test_files_damaged_before_opening_are_refused_or_lose_only_their_rows(folder, kind, how):
    for seed in range(4):
        WRITERS[kind](folder, COUNT)
        hurt(random.Random(seed), folder, how)
        with contextlib.suppress(StrataError):
            trained(open_dataset(str(folder), kind, name="set"), on_error="skip")
        shutil.rmtree(folder)


@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_number_of_open_files_is_bounded(folder, suffix, monkeypatch):
    monkeypatch.setattr(arrow, "MAX_OPEN", 3)
    folder.mkdir()
    for part in range(6):
        corpora.write_parquet(folder / f"{part}", 10, suffix)
    dataset = open_dataset(str(folder))
    found = dataset.read(range(59, -1, -1))
    assert found["number"].tolist() == [row % 10 for row in range(59, -1, -1)]
    assert 0 < Path("/proc/self/maps").read_text().count(str(folder)) <= 3


def npy_of_shape(shape):
    """A file whose header says this shape, with eight bytes of data."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)


@pytest.mark.parametrize(
    "shape", ["(4, 118446744073709551615)", "(1, 4294967296, 4294967296)", "(-1, -2)", "('a',)"]
)
def test_impossible_npy_shape_is_refused(folder, shape):
    folder.mkdir()
    (folder / "x.npy").write_bytes(npy_of_shape(shape))
    with pytest.raises(InvalidArgument, match=r"file x\.npy: not a plain \.npy file"):
        open_dataset(str(folder))


MDS_FAULTS = {
    "shape that is no number": ('"ndarray:float32:16"', '"ndarray:float32:a"', "invalid encoding"),
    "negative shape": ('"ndarray:float32:16"', '"ndarray:float32:-16"', "invalid encoding"),
    "shape of another size": ('"ndarray:float32:16"', '"ndarray:float32:17"', "has 64 bytes"),
    "type that NumPy lacks": ('"ndarray:float32:16"', '"ndarray:float33:16"', "unknown codec"),
    "negative size": ("[8, null, null, 64]", "[8, null, null, -64]", "not an index"),
    "lacking size": ("[8, null, null, 64]", "[8, null, null]", "inconsistent"),
    "equal names": ('"text", "vector"]', '"text", "text"]', "inconsistent"),
    "negative samples": ('"samples": 29', '"samples": -29', "not an index"),
    "huge number of samples": ('"samples": 29', '"samples": 99999999', "too small"),
    "file outside of the folder": ('"shard.00000.mds"', '"../other.mds"', "does not exist"),
    "deep nesting": ("[8, null, null, 64]", "[" * 5_000, "not an index"),
}


@pytest.mark.parametrize("fault", MDS_FAULTS)
def test_wrong_index_of_mds_shards_is_refused(folder, fault):
    old, new, message = MDS_FAULTS[fault]
    corpora.write_mds(folder, COUNT)
    shutil.copy(folder / "shard.00000.mds", folder.parent / "other.mds")
    index = folder / "index.json"
    listing = index.read_text()
    assert old in listing
    index.write_text(listing.replace(old, new))
    with pytest.raises(InvalidArgument, match=message):
        open_dataset(str(folder), "mds")


@pytest.mark.parametrize("line", [b'{"a": "\xff"}', b'{"a": ' + b"[" * 5_000])
def test_line_that_cannot_be_decoded_is_refused(folder, line):
    folder.mkdir()
    (folder / "x.jsonl").write_bytes(line + b"\n")
    with pytest.raises(InvalidArgument, match=r"file x\.jsonl: line 1 is not JSON"):
        open_dataset(str(folder))
