"""Guards `strata restart`: the task runs again with all of its options."""

import msgspec
import pytest

from strata.coordinator.rest.request_models import CreateTaskRequest
from strata.core.task_spec import TaskSpec
from tests.cli.conftest import strata
from tests.coordinator.rest.served import Coordinator

ASKED = {
    "name": "odd",
    "type": "tuning",
    "dataset_id": "digits",
    "worker_count": 4,
    "config": {"steps": 3},
    "entry": "train.py",
    "args": ["--fast"],
    "env": {"KEY": "secret", "PWD": "/somewhere"},
    "policy": "continue",
    "min_workers": 2,
    "spares": 1,
    "model_state": "sharded",
    "keep_count": 7,
    "keep_every": 500,
    "keep_best": "max:accuracy",
    "keep_best_count": 2,
    "max_restarts": 1,
    "allow_fresh_start": True,
    "priority": 3,
    "after": ["default-1"],
    "preemptible": True,
    "self_test": True,
    "elastic": False,
    "epochs": 3,
    "max_steps": 0,
}
ELASTIC = ASKED | {"elastic": True, "spares": 0, "model_state": "replicated"}
ELASTIC |= {"epochs": 0, "max_steps": 900}


@pytest.mark.parametrize("asked", [ASKED, ELASTIC])
def test_a_task_runs_again_with_all_that_was_asked_for(tmp_path, asked):
    usual = msgspec.structs.asdict(CreateTaskRequest(name=""))
    del usual["workdir"]  # names a folder that was sent before: tests/agent/test_task_folders.py
    unset = [name for name, value in usual.items() if ASKED[name] == ELASTIC[name] == value]
    assert unset == []
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        coordinator.train(1)
        first = client.post("/api/tasks", json=asked).raise_for_status().json()["task_id"]
        given = ("--env", "KEY=secret", "--url", coordinator.url)
        ended = strata("restart", first, *given, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        again = ended.stdout.strip()
        assert again != first
        assert spec_of(coordinator, again) == spec_of(coordinator, first)


def spec_of(coordinator: Coordinator, task: str) -> TaskSpec:
    async def look() -> TaskSpec:
        async with coordinator.engine.settled() as state:
            return msgspec.structs.replace(state.task(task).spec, env_key="")

    return coordinator.run(look())
