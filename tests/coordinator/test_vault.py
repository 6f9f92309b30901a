"""Guards the environments of tasks: kept for whoever starts them, readable by nobody else."""

import pytest

from strata.coordinator.vault import Vault
from strata.core.state import Cluster
from strata.core.tasks import Task, TaskSpec
from strata.errors import NotFound


def test_an_environment_is_kept_for_its_user_alone(tmp_path):
    vault = Vault(tmp_path / "vault")
    key = vault.keep({"API_KEY": "s3cret"})
    assert Vault(tmp_path / "vault").get(key) == {"API_KEY": "s3cret"}
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "vault").iterdir()] == [0o600]
    assert (tmp_path / "vault").stat().st_mode & 0o777 == 0o700


def test_what_no_task_needs_is_removed(tmp_path):
    vault = Vault(tmp_path)
    kept, dropped, ended = (vault.keep({"A": name}) for name in "abc")
    state = Cluster()
    state.tasks["one"] = Task("one", TaskSpec(name="one", env_key=kept), 0)
    state.tasks["two"] = Task("two", TaskSpec(name="two", env_key=ended), 0, state="failed")
    vault.sweep(state)
    assert vault.get(kept) == {"A": "a"}
    for gone in (dropped, ended):
        with pytest.raises(NotFound):
            vault.get(gone)


def test_an_empty_environment_needs_no_key(tmp_path):
    vault = Vault(tmp_path)
    assert vault.keep({}) == ""
    assert vault.get("") == {}
