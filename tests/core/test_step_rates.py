"""Slow tasks: a task that becomes much slower than usual is noticed, others are not."""

import pytest

from strata.core.metrics.step_rates import StepRates
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task

SECOND_NS = 1_000_000_000


class Run:
    """A running task whose steps are committed second by second."""

    def __init__(self) -> None:
        self.rates = StepRates()
        self.state = Cluster()
        self.state.tasks["t"] = Task(id="t", spec=TaskSpec(name="t"), submitted_ns=0)
        self.state.tasks["t"].state = "running"
        self.now_ns = 0

    def commit(self, steps: int, after_s: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += int(after_s * SECOND_NS)
            self.rates.committed("t", steps, self.now_ns)

    def drops(self, after_s: float = 0.0):
        return self.rates.drops(self.state, self.now_ns + int(after_s * SECOND_NS))


@pytest.fixture
def run():
    """A task that has trained at 75 steps a second for two minutes."""
    run = Run()
    run.commit(75, times=120)
    return run


def test_steady_task_is_not_slow(run):
    assert run.drops() == []


def test_task_that_falls_to_a_fraction_of_its_rate_is_noticed(run):
    run.commit(1, after_s=10, times=3)
    (drop,) = run.drops()
    assert drop.task == "t"
    assert drop.usual == pytest.approx(75, rel=0.1)
    assert drop.now < 1


def test_drop_is_still_noticed_after_ten_minutes(run):
    run.commit(1, after_s=10, times=60)
    (drop,) = run.drops()
    assert drop.usual > 1


def test_recovered_rate_is_not_slow_any_more(run):
    run.commit(1, after_s=10, times=3)
    run.commit(75, times=180)
    assert run.drops() == []


def test_half_the_rate_is_not_a_drop(run):
    run.commit(38, times=60)
    assert run.drops() == []


def test_task_without_a_step_for_a_minute_is_noticed(run):
    assert run.drops(after_s=30) == []
    (drop,) = run.drops(after_s=61)
    assert drop.now == pytest.approx(1 / 61)


def test_time_of_a_recovery_does_not_count(run):
    run.now_ns += 300 * SECOND_NS
    run.rates.resumed("t", run.now_ns)
    run.commit(75)
    assert run.drops() == []


def test_recovering_and_ended_tasks_are_not_slow(run):
    run.state.tasks["t"].state = "recovering"
    assert run.drops(after_s=100) == []
    run.state.tasks["t"].state = "running"
    run.rates.ended("t")
    assert run.drops(after_s=100) == []


def test_usual_rate_is_learned_first():
    run = Run()
    run.commit(75, times=5)
    run.commit(1, after_s=10, times=2)
    assert run.drops() == []
