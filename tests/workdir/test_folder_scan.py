"""Reading the folder of a script: what travels, and what is refused before anything is sent."""

import hashlib
import os
import subprocess

import pytest

from strata.core.tasks.workdirs import PIECE_BYTES, check_workdir
from strata.errors import InvalidArgument, LimitExceeded
from strata.workdir.folder_scan import scan

MB = 2**20


def write(root, *paths, content="x = 1\n"):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")


def paths(root, **options):
    return [file.path for file in scan(root, MB, **options).workdir.files]


def test_histories_environments_caches_and_secrets_never_travel(tmp_path):
    write(tmp_path, "train.py", "pkg/model.py", ".git/config", ".venv/bin/python", ".env")
    write(tmp_path, "pkg/__pycache__/model.pyc", "strata-data/log.db")
    found = paths(tmp_path, left_out=[tmp_path / "strata-data"])
    assert found == ["pkg/model.py", "train.py"]


def test_gitignore_files_name_what_stays_as_git_reads_them(tmp_path):
    write(tmp_path, "train.py", "data/a.bin", "data/keep.txt", "pkg/out.log", "pkg/sub/cache/x")
    write(tmp_path, "pkg/sub/build", "pkg/sub/build.py", "notes.log", "ähnlich.tmp", "a b.txt")
    write(tmp_path, ".gitignore", content="*.log\n/data/*\n!/data/keep.txt\n*.tmp\n# note\n")
    write(tmp_path, "pkg/sub/.gitignore", content="cache/\n/build\n")
    listing = ["git", "ls-files", "--others", "--exclude-standard", "-z"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = subprocess.run(listing, cwd=tmp_path, check=True, capture_output=True).stdout
    assert paths(tmp_path) == sorted(filter(None, listed.decode().split("\0")))
    assert "data/keep.txt" in paths(tmp_path)
    assert "pkg/sub/build" not in paths(tmp_path)


def test_strataignore_replaces_the_gitignore_files(tmp_path):
    write(tmp_path, "train.py", "weights.bin", "old.txt")
    write(tmp_path, ".gitignore", content="weights.bin\n")
    write(tmp_path, ".strataignore", content="*.txt\n.gitignore\n.strataignore\n")
    assert paths(tmp_path) == ["train.py", "weights.bin"]


def test_files_are_listed_with_size_mode_and_digest(tmp_path):
    write(tmp_path, "run.sh", "empty.py", content="")
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    scanned = scan(tmp_path, MB)
    check_workdir(scanned.workdir, MB)
    empty, script = scanned.workdir.files
    assert (script.size_bytes, script.mode, script.pieces) == (10, 0o755, [])
    assert script.sha256 == hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert empty.sha256 == hashlib.sha256(b"").hexdigest()
    assert scanned.sources[script.sha256].read() == b"#!/bin/sh\n"


def test_large_file_is_read_in_pieces_that_make_it_again(tmp_path):
    content = os.urandom(PIECE_BYTES * 2 + 5)
    (tmp_path / "weights.bin").write_bytes(content)
    scanned = scan(tmp_path, 4 * MB)
    check_workdir(scanned.workdir, 4 * MB)
    (file,) = scanned.workdir.files
    assert b"".join(scanned.sources[piece].read() for piece in file.pieces) == content
    assert file.sha256 == hashlib.sha256(content).hexdigest()


def test_link_to_a_file_of_the_folder_travels_as_that_file(tmp_path):
    write(tmp_path, "conf/base.toml", content="lr = 1\n")
    (tmp_path / "current.toml").symlink_to("conf/base.toml")
    base, current = scan(tmp_path, MB).workdir.files
    assert (current.path, current.sha256) == ("current.toml", base.sha256)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/etc/passwd", "leads out of the folder"),
        ("inside", "a link to a folder"),
        ("nowhere", "cannot be read"),
    ],
)
def test_other_links_are_refused_by_name(tmp_path, target, why):
    write(tmp_path, "inside/x.py")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(InvalidArgument, match=f"link .*{why}|{why}") as refused:
        scan(tmp_path, MB)
    assert "link" in str(refused.value)
    assert ".strataignore" in refused.value.hint


def test_pipe_and_unprintable_name_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgument, match="pipe is not a regular file"):
        scan(tmp_path, MB)
    os.unlink(tmp_path / "pipe")
    (tmp_path / "a\nb.py").write_text("", "utf-8")
    with pytest.raises(InvalidArgument, match="cannot be used"):
        scan(tmp_path, MB)


def test_size_is_checked_before_any_file_is_read(tmp_path):
    write(tmp_path, "train.py")
    with (tmp_path / "huge.bin").open("wb") as sparse:
        sparse.truncate(2**43)  # reading it would take hours
    with pytest.raises(LimitExceeded, match=r"largest files are huge\.bin"):
        scan(tmp_path, MB)
