"""A window of a curve is small and right: no spike is lost, whatever the number of points."""

import numpy as np
import pytest

from strata.timeline.curves.curve_answers import Axis
from strata.timeline.curves.curve_series import Points, Values, before_step, joined, points_of
from strata.timeline.curves.curve_windows import Scale, Window, window_of
from strata.timeline.curves.gpu_peaks import peak_flops
from strata.timeline.read.records import MS_NS

STEPS = 1_000_000
STEP = Scale("step")


def values(steps, numbers, workers=None, inside=True):
    """Logged values, one a millisecond."""
    step = np.asarray(steps, np.int64)
    return Values(
        step=step,
        at_ns=np.arange(step.size, dtype=np.int64) * MS_NS,
        worker=np.zeros(step.size, np.int32) if workers is None else np.asarray(workers, np.int32),
        inside=np.full(step.size, inside),
        value=np.asarray(numbers, float),
    )


def window(points: Points, low: float, high: float, most: int, axis: Axis = "step"):
    return window_of("loss", points, Scale(axis), Window(low, high, most))


@pytest.fixture(scope="module")
def long():
    """A curve of a million steps of two workers, with spikes of single steps of one worker."""
    dice = np.random.default_rng(7)
    numbers = dice.random((2, STEPS))
    spikes = dice.choice(STEPS, 20, replace=False)
    numbers[dice.integers(0, 2, 20), spikes] = dice.choice([-100.0, 100.0], 20)
    step = np.tile(np.arange(STEPS), 2)
    workers = np.repeat([0, 1], STEPS)
    return points_of(values(step, numbers.ravel(), workers)), numbers, spikes


def test_every_spike_of_a_million_steps_is_in_a_bucket(long):
    points, numbers, spikes = long
    shown = window(points, 0, STEPS, 500)
    assert len(shown.x) <= 502
    assert not shown.exact
    assert shown.count == 2 * STEPS
    ends = np.searchsorted(shown.step, spikes)
    for spike, at in zip(spikes, ends, strict=True):
        worst = numbers[:, spike]
        assert shown.min[at] <= worst.min()
        assert shown.max[at] >= worst.max()
    begin = shown.step[9] + 1
    assert shown.mean[10] == pytest.approx(numbers[:, begin : shown.step[10] + 1].mean())


def test_zoomed_window_has_each_step(long):
    points, numbers, spikes = long
    low = int(spikes[0])
    shown = window(points, low, low + 99, 500)
    assert (shown.exact, shown.step) == (True, list(range(low, low + 100)))
    assert shown.mean == pytest.approx(numbers[:, low : low + 100].mean(axis=0))


def test_buckets_do_not_change_when_the_window_moves(long):
    points, _, _ = long
    one, other = window(points, 0, 100_000, 100), window(points, 10_000, 110_000, 100)
    both = set(one.step) & set(other.step)
    assert len(both) >= 88
    known = dict(zip(one.step, one.mean, strict=True))
    same = dict(zip(other.step, other.mean, strict=True))
    assert [known[step] for step in sorted(both)[1:-1]] == [same[s] for s in sorted(both)[1:-1]]


def test_not_finite_values_leave_a_gap_and_are_listed():
    points = points_of(values(range(6), [1.0, np.nan, 3.0, -np.inf, 5.0, 6.0]))
    each = window(points, 0, 5, 100)
    assert each.mean == [1.0, None, 3.0, None, 5.0, 6.0]
    assert each.not_finite == [1, 3]
    two = window(points, 0, 6, 2)
    assert (two.mean, two.min, two.max) == ([None, None], [1.0, 5.0], [3.0, 6.0])
    assert two.not_finite == [1, 3]


def test_values_that_one_worker_logs_at_the_same_step_are_points_of_their_own():
    logged = values([0, 0, 0, 0], [1.0, 10.0, 3.0, 30.0], [0, 1, 0, 1], inside=False)
    by_time = window(points_of(logged), 0, 10, 100, "time")
    assert (by_time.mean, by_time.x) == ([5.5, 16.5], [1.0, 3.0])
    by_step = window(points_of(logged), 0, 0, 100)
    assert (by_step.mean, by_step.min, by_step.max) == ([11.0], [1.0], [30.0])


def test_medians_stand_for_the_mean():
    logged = values([0, 0, 0, 1, 1, 1], [1.0, 9.0, 2.0, 4.0, 4.0, 7.0], [0, 1, 2] * 2)
    shown = window(points_of(logged, median=True), 0, 1, 100)
    assert (shown.mean, shown.min, shown.max) == ([2.0, 4.0], [1.0, 4.0], [9.0, 7.0])


def test_extended_curve_is_that_of_all_values():
    dice = np.random.default_rng(3)
    step = np.sort(dice.integers(0, 50, 400))
    logged = values(step, dice.random(400), dice.integers(0, 3, 400))
    early = logged.chosen(np.arange(400) < 200)
    first = int(step[200])
    later = logged.chosen(step >= first)
    extended = joined(before_step(points_of(early), first), points_of(later))
    whole = points_of(logged)
    for name in ("step", "total", "weight", "low", "high", "count", "bad"):
        assert (getattr(extended, name) == getattr(whole, name)).all()


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peak_of_a_card_is_known_or_unknown(card, peak):
    assert peak_flops(card) == peak
