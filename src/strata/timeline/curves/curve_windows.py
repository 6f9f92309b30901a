"""A window of a curve, reduced to a bounded number of buckets that keep every spike.

A bucket is a range of the axis. It has the mean of its values and their lowest and highest over all
workers and steps, so a spike of one step of one worker is in it. The edges of buckets are multiples
of their width, so that a window that moves does not change the values of its buckets.
"""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.timeline.curves.curve_answers import Axis, CurvePoints
from strata.timeline.curves.curve_series import COLUMNS, Floats, Ints, Points
from strata.timeline.read.records import MS_NS

NOT_FINITE = 1_000
"""Positions of values that are not finite in one answer."""


class Scale(Struct, frozen=True):
    """Positions on an axis; `done` has the cumulated samples or tokens after each step from 0."""

    axis: Axis
    done: Floats | None = None

    def positions(self, points: Points) -> NDArray[Any]:
        """The position of each point: a step, milliseconds, samples or tokens."""
        if self.axis == "step":
            return points.step
        if self.axis == "time":
            return points.at_ns / MS_NS
        assert self.done is not None, "only recorded axes are asked for"
        after = points.step - ~points.inside  # what is logged after n steps has those of n - 1
        known = np.clip(after, 0, self.done.size - 1)
        return np.where(after < 0, 0.0, self.done[known])


class Window(Struct, frozen=True):
    """From `low` to `high` on an axis, both included, in at most about `most` buckets."""

    low: float
    high: float
    most: int


def extent(points: Points, scale: Scale) -> tuple[float, float] | None:
    """The first and the last position of a curve; None without points."""
    if not points.size:
        return None
    if scale.axis == "time" and not points.timely:
        return float(points.at_ns.min()) / MS_NS, float(points.at_ns.max()) / MS_NS
    ends = scale.positions(_cut(points, slice(0, points.size, max(points.size - 1, 1))))
    return float(ends[0]), float(ends[-1])


def window_of(
    name: str, points: Points, scale: Scale, window: Window, *, undone: bool = False
) -> CurvePoints:
    """The buckets of a curve in a window."""
    if scale.axis == "time" and not points.timely:
        points = _cut(points, np.argsort(points.at_ns, kind="stable"))
    first, stop = _range(points, scale, window)
    inside = _cut(points, slice(first, stop))
    xs = scale.positions(inside)
    starts = _starts(xs, window)
    ends = np.append(starts[1:], xs.size) - 1 if starts.size else starts
    total = _summed(inside.total, starts)
    weight = _summed(inside.weight, starts)
    low = np.minimum.reduceat(inside.low, starts) if starts.size else total
    high = np.maximum.reduceat(inside.high, starts) if starts.size else total
    bad = _summed(inside.bad, starts) if points.spoilt else np.zeros(starts.size, np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(bad == 0, total / weight, np.nan)
    spoilt = xs[inside.bad > 0][:NOT_FINITE] if points.spoilt else xs[:0]
    steps = inside.step[starts] == inside.step[ends] if starts.size else np.ones(0, bool)
    return CurvePoints(
        name=name,
        undone=undone,
        x=_listed(xs[ends]),
        mean=_nullable(mean),
        min=_nullable(low),
        max=_nullable(high),
        step=inside.step[ends].tolist(),
        time_ms=(inside.at_ns[ends] / MS_NS).tolist(),
        not_finite=_listed(spoilt),
        exact=bool(steps.all()),
        count=int(inside.count.sum(dtype=np.int64)),
    )


def _range(points: Points, scale: Scale, window: Window) -> tuple[int, int]:
    """The points in the window; positions grow with the step, so ends are searched for."""
    if scale.axis == "step":
        xs: NDArray[Any] = points.step
    elif scale.axis == "time":
        xs = points.at_ns
        window = Window(window.low * MS_NS - 1, window.high * MS_NS + 1, window.most)
    else:
        xs = scale.positions(points)
    first, stop = (
        int(np.searchsorted(xs, window.low)),
        int(np.searchsorted(xs, window.high, "right")),
    )
    return first, stop


def _starts(xs: NDArray[Any], window: Window) -> Ints:
    """Where each bucket begins: at each position if there are few, else at multiples of a width."""
    if not xs.size:
        return np.empty(0, np.int64)
    if xs.size <= 8 * window.most:
        changes = np.flatnonzero(xs[1:] != xs[:-1]) + 1
        if changes.size < window.most:
            return np.concatenate(([0], changes))
    width = max((window.high - window.low) / window.most, np.finfo(float).tiny)
    first = np.floor(window.low / width)
    edges = (first + np.arange(window.most + 2)) * width
    starts = np.unique(np.searchsorted(xs, edges))
    starts = starts[starts < xs.size]
    return starts if starts.size and starts[0] == 0 else np.concatenate(([0], starts))


def _summed(column: NDArray[Any], starts: Ints) -> NDArray[Any]:
    return np.add.reduceat(column, starts) if starts.size else column[:0]


def _cut(points: Points, which: slice | Ints) -> Points:
    cut = {name: getattr(points, name)[which] for name in COLUMNS}
    return Points(**cut, spoilt=points.spoilt, timely=points.timely)


def _listed(values: NDArray[Any]) -> list[float]:
    listed: list[float] = values.tolist()
    return listed


def _nullable(values: Floats) -> list[float | None]:
    """The values; null where they are not finite."""
    finite: list[bool] = np.isfinite(values).tolist()
    return [each if known else None for each, known in zip(values.tolist(), finite, strict=True)]
