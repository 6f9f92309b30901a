"""The save schedule: the adaptive interval is the default, saves soon after the start, and follows
the cost of a save and the rate of losses. A rank never waits for the coordinator: it saves at the
scheduled step or reports that it missed it."""

import math
import time

import pytest

from strata.sdk.session.channel import CoordinatorConnection
from strata.sdk.session.membership import EnteredGeneration, Membership
from strata.sdk.session.registration import WorkerIdentity
from strata.sdk.session.worker_session import WorkerSession
from strata.sdk.state.save_policy import (
    FIRST_SAVE_S,
    LEAST_COST_S,
    PRIOR_S,
    SavePolicy,
    SaveRequest,
    SaveSchedule,
)
from strata.wire.v1 import coordinator_pb2 as pb
from tests.sdk.harness import until
from tests.sdk.test_saving import states


def test_interval_follows_the_cost_of_a_save_and_the_rate_of_losses(hub, trainees):
    given = {"world_size": 2, "steps": 10**6, "size": 2_000_000, "meet": False, "step_s": 0.02}
    given |= {"adaptive": True}
    first, second = (trainees(hub.address, "keep", worker_id=name, **given) for name in "ab")
    began = first.says("restored")
    assert began["interval_s"] == FIRST_SAVE_S
    saved = first.says("saved")
    assert saved["step"] == second.says("saved")["step"], "nobody asked for it"
    measured_s, cost_s = saved["interval_s"], saved["cost_s"]
    assert cost_s > 0
    young_s = math.sqrt(2 * max(cost_s, LEAST_COST_S) * PRIOR_S)
    assert measured_s == pytest.approx(young_s, rel=0.05), "it follows from what this save cost"
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
        (SavePolicy(checkpoint_adaptive=True), True, True),
        (SavePolicy(checkpoint_every=5, checkpoint_adaptive=True), False, True),
        (SavePolicy(checkpoint_interval_s=5.0, checkpoint_adaptive=True), False, True),
        (SavePolicy(), False, False),
    ],
)
def test_steps_or_seconds_replace_the_adaptive_interval(policy, adaptive, active):
    assert (policy.adaptive, policy.active) == (adaptive, active)


def test_no_save_is_due_if_every_policy_is_off(hub, trainees):
    worker = trainees(hub.address, "keep", worker_id="a", steps=20)
    assert worker.says("restored")["interval_s"] is None
    assert worker.ends() == 0
    assert states(hub) == {}


@pytest.fixture
def away():
    """A session with an unreachable coordinator: sent messages stay in it."""
    connection = CoordinatorConnection("127.0.0.1:1")
    yield WorkerSession(connection, None, WorkerIdentity("a", 1, ""), 1.0)
    connection.close()


def rank(session, world_size=2, **policy):
    membership = Membership()
    membership.place = EnteredGeneration(generation=1, rank=1, world_size=world_size, attempt=1)
    due = SaveSchedule(membership, session)
    due.policy = SavePolicy(**policy)
    return due


def sent(session):
    return [request.message.postpone_save for request in session._requests.values()]


def save_at(due, step, generation=1):
    due.apply_standing(pb.Standing(generation=generation, save_at=step))


@pytest.mark.parametrize("cost_s", [0.0, LEAST_COST_S, 0.5, 20.0])
def test_interval_after_a_save_is_youngs_for_its_cost(away, cost_s):
    due = rank(away, checkpoint_adaptive=True)
    due.begin(0)
    assert due.interval_s == FIRST_SAVE_S
    due.saved(10, cost_s)
    young_s = math.sqrt(2 * max(cost_s, LEAST_COST_S) * PRIOR_S)
    assert due.interval_s == pytest.approx(young_s, rel=0.01)


def test_interval_is_at_least_twice_the_duration_of_a_save(away):
    due = rank(away, checkpoint_adaptive=True)
    due.saved(10, 0.5)
    due.took(100.0)
    assert due.interval_s == 200.0


def test_scheduled_step_is_saved_once_and_not_before(away):
    due = rank(away)
    save_at(due, 12)
    assert [step for step in range(10, 20) if due.now(step)] == [12]
    assert sent(away) == []


def test_step_scheduled_for_another_generation_is_not_saved(away):
    due = rank(away)
    save_at(due, 12, generation=2)
    assert not any(due.now(step) for step in range(10, 20))


def test_scheduled_step_that_has_passed_is_reported_as_missed(away):
    due = rank(away)
    save_at(due, 12)
    assert not due.now(14)
    (missed,) = sent(away)
    assert (missed.step, missed.generation, missed.missed) == (12, 1, True)
    save_at(due, 20)
    assert [step for step in range(15, 25) if due.now(step)] == [20]


def test_single_rank_saves_at_once_if_the_step_has_passed(away):
    due = rank(away, world_size=1)
    save_at(due, 12)
    assert due.now(14)


def test_busy_rank_postpones_once_and_reports_no_request(away):
    due = rank(away, checkpoint_every=10)
    due.under_way = lambda: SaveRequest(10, time.monotonic())
    assert not any(due.now(step) for step in range(20, 45))
    (postponed,) = sent(away)
    assert (postponed.step, postponed.missed) == (20, False)
    due.apply_standing(pb.Standing(generation=1, checkpoint_requests=1))
    assert due.request == 0
    due.under_way = lambda: None
    assert due.request == 1
    save_at(due, 50)
    assert [step for step in range(45, 60) if due.now(step)] == [50]


def test_open_request_replaces_a_save_by_steps(away):
    due = rank(away, checkpoint_every=10)
    due.apply_standing(pb.Standing(generation=1, checkpoint_requests=1))
    assert not any(due.now(step) for step in range(5, 25))
    assert [message.step for message in sent(away)] == [10]
    due.begin(25)
    due.apply_standing(pb.Standing(generation=1))
    assert next(step for step in range(26, 40) if due.now(step)) == 30
