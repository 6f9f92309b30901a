"""Guards that compressed shards read like others, are unpacked once a host, and that damage to one
is told by its name."""

import numpy as np
import pytest

from strata.data.dataset import open_dataset
from strata.data.unpacking import CODECS
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


@pytest.mark.parametrize("suffix", sorted(CODECS))
def test_compressed_shards_read_like_others(tmp_path, suffix):
    dataset = open_dataset(str(packed(tmp_path, suffix)), "mds")
    columns = dataset.read(ROWS)
    assert columns["number"].tolist() == ROWS.tolist()
    assert columns["text"].tolist() == [corpora.texts(COUNT)[row] for row in ROWS]
    assert np.array_equal(columns["vector"], corpora.vectors(COUNT)[ROWS])


def test_a_shard_is_unpacked_once_for_all(tmp_path, cache):
    folder = packed(tmp_path, "zstd")
    for _ in range(2):
        open_dataset(str(folder), "mds").read(np.arange(COUNT))
    assert len(list(cache.glob("*.file"))) == len(list(folder.glob("*.zstd")))


def test_shards_that_are_unpacked_already_are_read_as_they_are(tmp_path, cache):
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
    with pytest.raises(InvalidArgument, match=r"shard\.00000\.mds\.lzma: is compressed in a way"):
        open_dataset(str(folder), "mds")
