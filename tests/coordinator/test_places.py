"""Storage folders of checkpoints: an invalid setting is an error at the start."""

import pytest

from strata.config import Settings
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.errors import InvalidArgument


def test_invalid_upload_storage_is_refused_at_start(tmp_path):
    settings = Settings(data_dir=str(tmp_path), checkpoint_upload="ftp://elsewhere")
    with pytest.raises(InvalidArgument, match="ftp://elsewhere"):
        CheckpointPlaces(settings, "c")


def test_relative_upload_folder_is_resolved_at_start(tmp_path, monkeypatch):
    (tmp_path / "started").mkdir()
    monkeypatch.chdir(tmp_path / "started")
    settings = Settings(data_dir=str(tmp_path), checkpoint_upload="copies/")
    places = CheckpointPlaces(settings, "c")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "started").rmdir()
    far = places.far_storage("t")
    assert far is not None
    assert far.url == str(tmp_path / "started" / "copies" / "c" / "t")
