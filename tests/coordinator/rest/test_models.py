"""Structures shared by REST and the command line: cheap to import, with the states of the core."""

import subprocess
import sys
from typing import get_args

import pytest

from strata.coordinator.rest import response_models
from strata.core import state, task_spec, task_state
from strata.core.datasets import epoch_shards

STATES = [
    (response_models.WorkerState, state.WorkerState),
    (response_models.TaskState, task_state.TaskState),
    (response_models.Phase, task_state.Phase),
    (response_models.Policy, task_spec.Policy),
    (response_models.ModelState, task_spec.ModelState),
    (response_models.BarrierState, task_state.BarrierState),
    (response_models.CheckpointType, task_state.CheckpointType),
    (response_models.Unit, task_state.Unit),
    (response_models.Layout, epoch_shards.Layout),
]


@pytest.mark.parametrize(("shown", "known"), STATES)
def test_states_of_the_api_are_those_of_the_core(shown, known):
    assert get_args(shown) == get_args(known)


@pytest.mark.parametrize(
    "module", ["strata.coordinator.rest.response_models", "strata.coordinator.logs.log_entries"]
)
def test_importing_the_structures_imports_neither_the_core_nor_the_server(module):
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in shown
    heavy = ("numpy", "litestar", "re2", "strata.core", "strata.timeline", "strata.store")
    assert [name for name in shown if name.startswith(heavy)] == []
