"""Guards that compressed shards read like others, are unpacked once per host, and that damage to
one names it.
"""

import gzip

import numpy as np
import pyarrow
import pytest

from strata.data.source_dataset import open_dataset
from strata.errors import Corrupt, InvalidArgument
from tests.data import corpora

COUNT = 101
ROWS = np.array([100, 0, 57, 57, 3, 99, 22, 23, 46])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("STRATA_DATA_CACHE_DIR", str(folder))
    return folder


def packed(tmp_path, suffix):
    corpora.write_packed_mds(tmp_path / "set", COUNT, suffix)
    return tmp_path / "set"


@pytest.mark.parametrize("suffix", ["br", "bz2", "gz", "snappy", "zst", "zstd"])
def test_compressed_shards_read_like_others(tmp_path, suffix):
    dataset = open_dataset(str(packed(tmp_path, suffix)), "mds")
    columns = dataset.read(ROWS)
    assert columns["number"].tolist() == ROWS.tolist()
    assert columns["text"].tolist() == [corpora.texts(COUNT)[row] for row in ROWS]
    assert np.array_equal(columns["vector"], corpora.vectors(COUNT)[ROWS])


@pytest.mark.parametrize(
    ("write", "codec", "suffix"),
    [
        (corpora.write_jsonl, "gzip", "gz"),
        (corpora.write_jsonl, "zstd", "zst"),
        (corpora.write_tar, "gzip", "gz"),
        (corpora.write_tar, "zstd", "zst"),
    ],
)
def test_compressed_files_of_other_formats_are_detected_and_read(tmp_path, write, codec, suffix):
    write(tmp_path / "plain", COUNT)
    (tmp_path / "set").mkdir()
    for file in (tmp_path / "plain").iterdir():
        if file.is_file():
            data = bytes(pyarrow.compress(file.read_bytes(), codec))
            (tmp_path / "set" / f"{file.name}.{suffix}").write_bytes(data)
    plain, packed = (open_dataset(str(tmp_path / name)).read(ROWS) for name in ("plain", "set"))
    assert plain.keys() == packed.keys()
    for column, values in plain.items():
        assert values.tolist() == packed[column].tolist()


def test_file_of_several_compressed_frames_is_read_whole(tmp_path):
    lines = [gzip.compress(f'{{"number": {number}}}\n'.encode()) for number in range(COUNT)]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(lines))
    dataset = open_dataset(str(tmp_path / "a.jsonl.gz"))
    assert dataset.read(ROWS)["number"].tolist() == ROWS.tolist()


def test_shard_is_unpacked_once_per_host(tmp_path, cache):
    folder = packed(tmp_path, "zstd")
    for _ in range(2):
        open_dataset(str(folder), "mds").read(np.arange(COUNT))
    assert len(list(cache.glob("*.file"))) == len(list(folder.glob("*.zstd")))


def test_unpacked_shards_are_read_directly(tmp_path, cache):
    folder = packed(tmp_path, "zstd")
    for shard in folder.glob("*.zstd"):
        shard.unlink()
    corpora.write_mds(tmp_path / "raw", COUNT)
    for shard in (tmp_path / "raw").glob("*.mds"):
        shard.rename(folder / shard.name)
    assert open_dataset(str(folder), "mds").read(ROWS)["number"].tolist() == ROWS.tolist()
    assert not list(cache.glob("*.file"))


def test_damage_names_the_shard(tmp_path):
    folder = packed(tmp_path, "zstd")
    dataset = open_dataset(str(folder), "mds")
    victim = folder / "shard.00001.mds.zstd"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    victim.write_bytes(data)
    assert dataset.read(np.array([0]))["number"].tolist() == [0]
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds\.zstd, row 30: cannot be unpacked"):
        dataset.read(np.array([0, 30]))


def test_an_unknown_compression_is_refused_by_name(tmp_path):
    folder = packed(tmp_path, "lzma")
    with pytest.raises(
        InvalidArgument, match=r"shard\.00000\.mds\.lzma: has an unsupported compression"
    ):
        open_dataset(str(folder), "mds")
