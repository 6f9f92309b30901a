"""Guards the adaptive interval on the real path: it follows what a save costs and how often workers
are lost, makes everyone save by itself, and is off unless asked for."""

import math

import pytest

from strata.sdk.due import PRIOR_S
from tests.sdk.harness import until
from tests.sdk.test_saving import states

LEAST_COST_S = 0.01


def test_the_interval_follows_the_cost_of_a_save_and_the_rate_of_losses(hub, trainees):
    given = {"world_size": 2, "steps": 10**6, "size": 2_000_000, "meet": False, "step_s": 0.02}
    first, second = (
        trainees(hub.address, "keep_adaptively", worker_id=name, **given) for name in "ab"
    )
    began = first.says("restored")
    unknown_s = began["interval_s"]
    assert unknown_s == pytest.approx(math.sqrt(2 * LEAST_COST_S * PRIOR_S), rel=0.1)
    saved = first.says("saved")
    assert saved["step"] == second.says("saved")["step"], "nobody asked for it"
    measured_s = saved["interval_s"]
    assert measured_s > 1.2 * unknown_s, "24 MB take longer than what is taken for the least"
    until(lambda: "committed" in states(hub).values())
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    trainees(hub.address, "keep_adaptively", worker_id="b", **given)
    recovered = first.says("recovered")
    losses = recovered["generation"] - began["generation"]
    expected_s = measured_s / math.sqrt(losses + 1)
    assert recovered["interval_s"] == pytest.approx(expected_s, rel=0.1)


def test_nothing_is_saved_by_time_unless_asked_for(hub, trainees):
    worker = trainees(hub.address, "keep", worker_id="a", steps=20)
    assert worker.says("restored")["interval_s"] is None
    assert worker.ends() == 0
    assert states(hub) == {}
