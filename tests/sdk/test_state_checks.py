"""Checks that turn silent mistakes with a run's state into errors."""

import pytest

from strata.errors import NotAllowedNow
from strata.sdk.state.state_checks import StateChecks


class Scheduler:
    def __init__(self):
        self.count = 3

    def state_dict(self):
        return {"count": self.count, "rates": [0.1]}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_repeated_code_must_not_change_the_restored_state():
    checks, scheduler = StateChecks(), Scheduler()
    state = {"scheduler": scheduler, "lr": 0.1}
    checks.note_restored(state)
    checks.require_unchanged(state)
    scheduler.count += 1
    with pytest.raises(NotAllowedNow, match=r"scheduler\.count from 3 to 4"):
        checks.require_unchanged(state)


def test_state_that_was_never_restored_may_change():
    checks = StateChecks()
    checks.require_unchanged({"lr": 1})


def test_jax_state_that_is_not_assigned_is_an_error():
    jax = pytest.importorskip("jax")
    checks, state = StateChecks(), {"w": jax.numpy.ones(2), "step": 0}
    checks.note_step(state)
    with pytest.raises(NotAllowedNow, match=r"run\.state did not change"):
        checks.require_changed(state)
    checks.note_step(state)
    checks.require_changed({"w": state["w"] + 1, "step": 1})


def test_arrays_that_change_in_place_are_not_compared():
    pytest.importorskip("jax")
    numpy = pytest.importorskip("numpy")
    checks, state = StateChecks(), {"w": numpy.ones(2)}
    checks.note_step(state)
    checks.require_changed(state)


def test_state_that_a_failed_step_has_changed_is_noticed():
    numpy = pytest.importorskip("numpy")
    checks, state = StateChecks(), {"w": numpy.ones((4, 3)).T, "n": 1}
    checks.note_step(state, exact=True)
    assert checks.is_unchanged(state)
    state["w"][0, 0] += 1
    assert not checks.is_unchanged(state)


def test_state_without_a_start_digest_counts_as_changed():
    checks = StateChecks()
    checks.note_step({"n": 1})
    assert not checks.is_unchanged({"n": 1})
