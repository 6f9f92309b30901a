"""Slow tasks: a task that becomes much slower than usual is noticed, others are not."""

import pytest

from strata.core.metrics.step_rates import StepRates

SECOND_NS = 1_000_000_000


class Run:
    """A running task whose steps are committed second by second."""

    def __init__(self) -> None:
        self.rates = StepRates()
        self.now_ns = 0

    def commit(self, steps: int, after_s: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += int(after_s * SECOND_NS)
            self.rates.committed("t", steps, self.now_ns)

    @property
    def share(self) -> float:
        """The present speed as a share of the usual one."""
        speed = self.rates.speed("t")
        return speed.now / speed.usual


@pytest.fixture
def run():
    """A task that has trained at 75 steps a second for two minutes."""
    run = Run()
    run.commit(75, times=120)
    return run


def test_steady_task_makes_its_usual_steps(run):
    assert run.share == pytest.approx(1)
    assert run.rates.speed("t").usual == pytest.approx(75)


def test_task_that_falls_to_a_fraction_of_its_rate_is_noticed(run):
    run.commit(1, after_s=10, times=5)
    assert run.share < 0.01


def test_drop_is_still_noticed_after_ten_minutes(run):
    run.commit(1, after_s=10, times=60)
    assert run.share < 0.2


def test_recovered_rate_is_not_slow_any_more(run):
    run.commit(1, after_s=10, times=5)
    run.commit(75, times=9)
    assert run.share > 0.9


def test_single_pause_is_not_a_drop(run):
    run.commit(1, after_s=200)
    run.commit(75)
    assert run.share == pytest.approx(1, rel=0.05)


def test_time_of_a_recovery_does_not_count(run):
    for _ in range(5):
        run.now_ns += 300 * SECOND_NS
        run.rates.resumed("t", run.now_ns)
        run.commit(75)
    assert run.share == pytest.approx(1)


def test_ended_task_has_no_speed(run):
    run.rates.ended("t")
    assert run.rates.speed("t") is None


def test_usual_rate_is_learned_first():
    run = Run()
    run.commit(75, times=5)
    assert run.rates.speed("t") is None
