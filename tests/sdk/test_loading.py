"""`strata.load`: load the state of a checkpoint by its path."""

from pathlib import Path

import httpx
import numpy as np
import pytest

import strata
from strata.checkpoint.manager import CheckpointManager
from strata.errors import InvalidArgument, NotFound


def test_checkpoint_of_a_run_is_loaded_into_a_model_by_its_path(hub, spool):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool, capture=False) as run:
        run.restore(model=model)
        with run.step():
            torch.nn.init.constant_(model.weight, 0.5)
        run.save()
    (saved,) = httpx.get(f"{hub.running.http_url}/api/checkpoints").json()
    latest_info = CheckpointManager(Path(saved["path"]).parent).get_latest()
    for path in (latest_info.path, latest_info, saved["path"]):
        other = torch.nn.Linear(3, 2)
        other.load_state_dict(strata.load(path)["model"])
        assert torch.equal(other.weight, torch.full((2, 3), 0.5))
        assert torch.equal(other.bias, model.bias)


@pytest.fixture
def saved(tmp_path):
    with CheckpointManager(tmp_path / "saved") as manager:
        for step in (1, 2):
            manager.save({"x": np.full(5, step)}, step=step)
        manager.wait_pending()
        return manager.all_checkpoints()


def test_folder_of_checkpoints_gives_the_newest(saved, tmp_path, monkeypatch):
    assert strata.load(tmp_path / "saved")["x"].tolist() == [2] * 5
    assert strata.load(saved[0].path)["x"].tolist() == [1] * 5
    assert strata.load(f"{saved[0].path}.json")["x"].tolist() == [1] * 5
    monkeypatch.chdir(tmp_path / "saved")
    assert strata.load(saved[0].checkpoint_id)["x"].tolist() == [1] * 5
    filled = {"x": np.zeros(5, int)}
    strata.load(".", into=filled)
    assert filled["x"].tolist() == [2] * 5


def test_path_without_a_checkpoint_is_an_error(saved, tmp_path):
    with pytest.raises(NotFound):
        strata.load(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="step-00000009-ab"):
        strata.load(tmp_path / "saved" / "step-00000009-ab")
    for path in ("", None, 7):
        with pytest.raises(InvalidArgument, match=r"strata\.load got"):
            strata.load(path)
