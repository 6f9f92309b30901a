"""Guards the adaptive interval on the real path: it is on unless something else is set, saves soon
after the start, and follows what a save costs and how often workers are lost."""

import math

import pytest

from strata.sdk.due import FIRST_SAVE_S, PRIOR_S, Policy
from tests.sdk.harness import until
from tests.sdk.test_saving import states

LEAST_COST_S = 0.01


def test_the_interval_follows_the_cost_of_a_save_and_the_rate_of_losses(hub, trainees):
    given = {"world_size": 2, "steps": 10**6, "size": 2_000_000, "meet": False, "step_s": 0.02}
    given |= {"adaptive": True}
    first, second = (trainees(hub.address, "keep", worker_id=name, **given) for name in "ab")
    began = first.says("restored")
    assert began["interval_s"] == FIRST_SAVE_S
    saved = first.says("saved")
    assert saved["step"] == second.says("saved")["step"], "nobody asked for it"
    measured_s, least_s = saved["interval_s"], math.sqrt(2 * LEAST_COST_S * PRIOR_S)
    assert measured_s > 1.2 * least_s, "24 MB take longer than what is taken for the least"
    until(lambda: "committed" in states(hub).values())
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    trainees(hub.address, "keep", worker_id="b", **given)
    recovered = first.says("recovered")
    losses = recovered["generation"] - began["generation"]
    expected_s = measured_s / math.sqrt(losses + 1)
    assert recovered["interval_s"] == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize(
    ("policy", "adaptive", "active"),
    [
        (Policy(checkpoint_adaptive=True), True, True),
        (Policy(checkpoint_every=5, checkpoint_adaptive=True), False, True),
        (Policy(checkpoint_interval_s=5.0, checkpoint_adaptive=True), False, True),
        (Policy(), False, False),
    ],
)
def test_steps_or_seconds_take_the_place_of_the_adaptive_interval(policy, adaptive, active):
    assert (policy.adaptive, policy.active) == (adaptive, active)


def test_nothing_is_saved_where_every_policy_is_off(hub, trainees):
    worker = trainees(hub.address, "keep", worker_id="a", steps=20)
    assert worker.says("restored")["interval_s"] is None
    assert worker.ends() == 0
    assert states(hub) == {}
