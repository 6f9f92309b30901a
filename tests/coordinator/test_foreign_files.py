"""Files and links that Strata did not write, in every folder that it cleans: they survive a start,
a stop and the limit of the log, and so do the targets of the links."""

import os
from pathlib import Path

import pytest

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_store import LogStore
from tests.coordinator.conftest import coordinator

NAMES = ("notes.txt", "backup.tmp", "step-00000001", ".hidden", "0" * 31)


def planted(folder: Path, outside: Path) -> list[Path]:
    """Foreign files and links in a folder, by names that resemble those of Strata."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in NAMES]
    for path in paths:
        path.write_text("foreign", "utf-8")
    for name, target in (("link", outside / "file"), ("folder", outside)):
        (folder / name).symlink_to(target)
        paths.append(folder / name)
    for path in paths:
        os.utime(path, (0, 0), follow_symlinks=False)  # old enough for every sweep
    return paths


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("precious", "utf-8")
    yield folder
    assert (folder / "file").read_text("utf-8") == "precious"
    assert [path.name for path in folder.iterdir()] == ["file"]


def survived(paths: list[Path]) -> list[Path]:
    return [path for path in paths if os.path.lexists(path)]


@pytest.mark.parametrize(
    "below", ["", "logs", "vault", "workdirs", "workdirs/pieces", "runs", "checkpoints"]
)
def test_start_and_stop_delete_no_foreign_files(tmp_path, outside, below):
    data = tmp_path / "data"
    with coordinator(data):
        pass
    paths = planted(data / below, outside)
    with coordinator(data):
        pass
    assert survived(paths) == paths


def test_limit_of_the_log_deletes_no_foreign_files(tmp_path, outside):
    folder = tmp_path / "logs"
    paths = planted(folder, outside)
    store = LogStore(folder, max_bytes=1)
    for _ in range(40):
        store.extend(LogLine("info", os.urandom(20_000).hex()) for _ in range(50))
        store.recent()
    assert store.stats().dropped_lines > 0
    store.close()
    assert survived(paths) == paths
