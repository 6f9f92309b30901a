"""Guards stored indexes: where they are written, when a dataset is rescanned, what is deleted."""

import os
from pathlib import Path

import pytest

from strata.config import load_process
from strata.data.cache import index_store
from strata.data.cache.host_cache import shared_cache
from strata.data.formats.image_folder import ImageFolderSource
from strata.data.formats.jsonl import JsonLinesSource
from strata.data.source_dataset import open_dataset


@pytest.fixture
def data(tmp_path):
    """A dataset whose rows begin at other offsets after `rewrite`, in a file of the same size."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"x": 1}\n{"x": 22}\n')
    return folder


def rewrite(folder):
    (folder / "a.jsonl").write_text('{"x": 11}\n{"x": 2}\n')


@pytest.fixture
def scans(monkeypatch):
    made = []
    scan = JsonLinesSource.scan
    monkeypatch.setattr(JsonLinesSource, "scan", lambda self: made.append(1) or scan(self))
    return made


def stored(folder):
    return sorted(each.name for each in folder.glob("strata-index-*"))


def values(folder, **more):
    return open_dataset(str(folder), "jsonl", **more).read([0, 1])["x"].tolist()


def test_indexes_are_written_to_the_data_cache_and_not_beside_the_data(data, data_cache, scans):
    before = sorted(data.rglob("*"))
    assert values(data) == values(data) == [1, 22]
    assert scans == [1]
    assert sorted(data.rglob("*")) == before
    assert len(stored(data_cache / "indexes")) == 1


def test_opening_an_image_folder_writes_nothing_into_it(tmp_path, data_cache):
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / "set" / label).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "set" / label / "a.png")
    dataset = open_dataset(str(tmp_path / "set"))
    assert isinstance(dataset._source, ImageFolderSource)
    assert sorted(each.name for each in (tmp_path / "set").rglob("*")) == [
        "a.png",
        "a.png",
        "cat",
        "dog",
    ]
    assert len(stored(data_cache / "indexes")) == 1


def test_cache_dir_overrides_the_data_cache(data, data_cache, tmp_path):
    assert values(data, cache_dir=str(tmp_path / "shared")) == [1, 22]
    assert len(stored(tmp_path / "shared")) == 1
    assert not (data_cache / "indexes").exists()


def test_file_of_the_same_size_and_modification_time_is_scanned_again(data, scans):
    assert values(data) == [1, 22]
    before = (data / "a.jsonl").stat()
    rewrite(data)
    os.utime(data / "a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert values(data) == [11, 2]
    assert scans == [1, 1]


def test_file_written_during_the_scan_is_scanned_again(data, monkeypatch):
    scan = JsonLinesSource.scan

    def interrupted(self):
        index = scan(self)
        rewrite(data)
        return index

    with monkeypatch.context() as patch:
        patch.setattr(JsonLinesSource, "scan", interrupted)
        open_dataset(str(data), "jsonl")
    assert values(data) == [11, 2]


def test_added_and_removed_files_are_noticed(data):
    assert len(open_dataset(str(data), "jsonl")) == 2
    (data / "b.jsonl").write_text('{"x": 3}\n')
    assert len(open_dataset(str(data), "jsonl")) == 3
    (data / "a.jsonl").unlink()
    assert len(open_dataset(str(data), "jsonl")) == 1


def test_damaged_index_is_replaced(data, data_cache, scans):
    values(data)
    (name,) = stored(data_cache / "indexes")
    for damage in (b"", b"PK\x03\x04 torn"):
        (data_cache / "indexes" / name).write_bytes(damage)
        assert values(data) == [1, 22]
    assert scans == [1, 1, 1]
    assert stored(data_cache / "indexes") == [name]


def test_least_recently_used_indexes_are_deleted(data, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "notes.txt").write_text("of the user")
    monkeypatch.setattr(index_store, "MAX_BYTES", 0)
    values(data, cache_dir=str(shared))
    (first,) = stored(shared)
    rewrite(data)
    values(data, cache_dir=str(shared))
    (second,) = stored(shared)
    assert first != second
    assert (shared / "notes.txt").exists(), "only indexes are deleted"


def test_dataset_is_scanned_where_the_cache_cannot_be_used(data, tmp_path, monkeypatch, caplog):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("STRATA_DATA_CACHE_DIR", str(tmp_path / "link"))
    assert values(data) == [1, 22]
    assert "cannot use the data cache" in caplog.text
    assert list((tmp_path / "real").iterdir()) == []


def test_cache_folder_follows_the_setting_then_xdg_then_the_temporary_folder(tmp_path, monkeypatch):
    def folder() -> Path:
        return shared_cache(load_process({})).folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("STRATA_DATA_CACHE_DIR", str(tmp_path / "set"))
    assert folder() == tmp_path / "set"
    monkeypatch.delenv("STRATA_DATA_CACHE_DIR")
    assert folder() == tmp_path / "xdg" / "strata"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert folder() == tmp_path / f"strata-cache-{os.getuid()}"
