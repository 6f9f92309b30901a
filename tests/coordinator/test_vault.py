"""Stored environments of tasks: readable by the coordinator's user only."""

import os

import pytest

from strata.coordinator.sessions.task_environments import Vault
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task
from strata.errors import Corrupt, NotFound, Unavailable


def test_environment_file_is_readable_by_its_user_only(tmp_path):
    vault = Vault(tmp_path / "vault")
    key = vault.keep({"API_KEY": "s3cret"})
    assert Vault(tmp_path / "vault").read(key) == {"API_KEY": "s3cret"}
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "vault").iterdir()] == [0o600]
    assert (tmp_path / "vault").stat().st_mode & 0o777 == 0o700


def test_unused_environments_are_deleted(tmp_path):
    vault = Vault(tmp_path)
    kept, dropped, ended = (vault.keep({"A": name}) for name in "abc")
    state = Cluster()
    state.tasks["one"] = Task("one", TaskSpec(name="one", env_key=kept), 0)
    state.tasks["two"] = Task("two", TaskSpec(name="two", env_key=ended), 0, state="failed")
    vault.sweep(state)
    assert vault.read(kept) == {"A": "a"}
    for gone in (dropped, ended):
        with pytest.raises(NotFound):
            vault.read(gone)


def test_empty_environment_has_no_key(tmp_path):
    vault = Vault(tmp_path)
    assert vault.keep({}) == ""
    assert vault.known("") == {}


def test_environment_is_read_from_memory_until_it_is_forgotten(tmp_path):
    vault = Vault(tmp_path)
    key = vault.keep({"A": "1"})
    assert vault.known(key) == {"A": "1"}
    vault.forget(key)
    assert vault.known(key) is None
    assert vault.read(key) == {"A": "1"}
    assert vault.known(key) == {"A": "1"}
    vault.discard(key)
    assert vault.known(key) is None
    assert list(tmp_path.iterdir()) == []


def damaged(path, how):
    """Replace a file with something unreadable."""
    content = path.read_bytes()
    path.unlink()
    match how:
        case "directory":
            path.mkdir()
        case "truncated":
            path.write_bytes(content[:-4])
        case "empty":
            path.write_bytes(b"")
        case "not UTF-8":
            path.write_bytes(b'{"A": "\xff\xfe"}')
        case "other type":
            path.write_bytes(b'["A"]')
        case "pipe":
            os.mkfifo(path)
        case "I/O error":
            path.symlink_to("/proc/self/mem")  # its first page cannot be read: EIO
        case "link loop":
            path.symlink_to(path)
        case "gone":
            pass


DAMAGES = ["directory", "truncated", "empty", "not UTF-8", "other type", "pipe", "gone"]


@pytest.mark.parametrize("how", [*DAMAGES, "I/O error", "link loop"])
def test_unreadable_environment_is_a_typed_error_with_a_hint(tmp_path, how):
    vault = Vault(tmp_path)
    key = vault.keep({"A": "1"})
    damaged(tmp_path / key, how)
    passing = Unavailable if how in ("I/O error", "link loop") else (Corrupt, NotFound)
    with pytest.raises(passing) as caught:
        Vault(tmp_path).read(key)
    assert caught.value.hint


def test_sweep_skips_files_it_cannot_delete(tmp_path):
    vault = Vault(tmp_path)
    (tmp_path / ("0" * 32)).mkdir()
    key = vault.keep({"A": "1"})
    vault.sweep(Cluster())
    assert [file.name for file in tmp_path.iterdir()] == ["0" * 32]
    with pytest.raises(NotFound):
        vault.read(key)


def test_environment_that_cannot_be_stored_is_a_typed_error(tmp_path):
    vault = Vault(tmp_path / "vault")
    (tmp_path / "vault").rmdir()
    with pytest.raises(Unavailable):
        vault.keep({"A": "1"})
