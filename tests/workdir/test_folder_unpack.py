"""Unpacking a folder: whole or not at all, inside its place, and as it was submitted."""

import os

import pytest

from strata.errors import Corrupt, NotFound
from strata.workdir.folder_scan import scan
from strata.workdir.folder_unpack import unpack
from strata.workdir.piece_store import PieceStore, listed


@pytest.fixture
def store(tmp_path):
    return PieceStore(tmp_path / "store")


@pytest.fixture
def workdir(tmp_path, store):
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "train.py").write_text("print(1)\n", "utf-8")
    (source / "pkg" / "model.bin").write_bytes(os.urandom(1_300_000))
    (source / "run.sh").write_text("#!/bin/sh\n", "utf-8")
    (source / "run.sh").chmod(0o750)
    scanned = scan(source, 2**30)
    for piece in scanned.sources.values():
        store.put(piece.read())
    return scanned.workdir


def same(workdir, folder):
    return scan(folder, 2**30).workdir == workdir


def test_unpacked_folder_is_the_one_that_was_read(tmp_path, store, workdir):
    place = tmp_path / "place"
    assert unpack(workdir, store, place) == []
    assert same(workdir, place)
    assert (place / "run.sh").stat().st_mode & 0o777 == 0o750


def test_changed_files_are_restored_and_new_ones_stay(tmp_path, store, workdir):
    place = tmp_path / "place"
    unpack(workdir, store, place)
    (place / "train.py").write_text("print(2)\n", "utf-8")
    (place / "pkg" / "model.bin").unlink()
    (place / "run.sh").chmod(0o600)
    (place / "results.txt").write_text("mine", "utf-8")
    assert unpack(workdir, store, place) == ["pkg/model.bin", "run.sh", "train.py"]
    assert (place / "results.txt").read_text("utf-8") == "mine"
    (place / "results.txt").unlink()
    assert same(workdir, place)


def test_link_that_leads_out_is_not_followed(tmp_path, store, workdir):
    place, outside = tmp_path / "place", tmp_path / "outside"
    unpack(workdir, store, place)
    outside.mkdir()
    (place / "pkg" / "model.bin").unlink()
    (place / "pkg").rmdir()
    (place / "pkg").symlink_to(outside)
    (place / "train.py").unlink()
    (place / "train.py").symlink_to(outside / "train.py")
    unpack(workdir, store, place)
    assert list(outside.iterdir()) == []
    assert same(workdir, place)


def test_damaged_or_missing_piece_leaves_no_folder(tmp_path, store, workdir):
    place = tmp_path / "place"
    piece = tmp_path / "store" / "pieces" / workdir.files[0].pieces[1]
    content = piece.read_bytes()
    piece.write_bytes(b"\0" + content[1:])
    with pytest.raises(Corrupt, match="is damaged"):
        unpack(workdir, store, place)
    piece.unlink()
    with pytest.raises(NotFound):
        unpack(workdir, store, place)
    assert not place.exists()
    piece.write_bytes(content)
    unpack(workdir, store, place)
    assert same(workdir, place)


def test_sweep_keeps_the_pieces_of_needed_folders(store, workdir):
    digest = store.put_list(workdir)
    other = store.put(b"unused")
    store.sweep({digest}, 3600.0)
    assert store.get(other) == b"unused", "it was used a moment ago"
    store.sweep({digest}, 0.0)
    with pytest.raises(NotFound):
        store.get(other)
    assert store.missing(workdir) == []
    store.sweep(set(), 0.0)
    assert store.size_bytes == 0


@pytest.mark.parametrize("content", [b'[{"path": "\xff"}]', b"[" * 5_000, b"{"])
def test_list_that_cannot_be_decoded_is_corrupt(content):
    with pytest.raises(Corrupt, match="list of the files"):
        listed(content)
