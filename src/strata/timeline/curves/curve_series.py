"""A curve as columns with one point per step, over all workers.

A point has the sum and the weight of its values (the mean is their quotient) and their lowest and
highest. Values that are NaN or infinite are counted and left out of the others. A worker that logs
a metric several times at the same step has as many points there: its nth value is in the nth.

New values change only points from their lowest step on, so a curve that grows at its end is
extended; everything before stays.
"""

from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


class Points(Struct, frozen=True, kw_only=True):
    """The points of a curve by step; `bad` counts values that are not finite.

    `low` and `high` are infinite where no value is finite. `inside`: of a step, not after it.
    `spoilt`: some value may not be finite. `timely`: the points are in order of time as well.
    """

    step: Ints
    at_ns: Ints
    total: Floats
    weight: Floats
    low: Floats
    high: Floats
    count: NDArray[np.int32]
    bad: NDArray[np.int32]
    inside: Flags
    spoilt: bool
    timely: bool

    @property
    def single(self) -> bool:
        """Whether each point has one value: then `low` and `high` are the same array as `total`."""
        return self.low is self.total and self.high is self.total

    @property
    def size(self) -> int:
        """The number of points."""
        return int(self.step.size)

    @property
    def nbytes(self) -> int:
        """The memory that the columns take."""
        columns = {id(each): each for each in (getattr(self, name) for name in COLUMNS)}
        return sum(0 if each.strides == (0,) else int(each.nbytes) for each in columns.values())


COLUMNS = ("step", "at_ns", "total", "weight", "low", "high", "count", "bad", "inside")


class Values(Struct, frozen=True, kw_only=True):
    """Values of a metric in the order in which they were read, with their steps and workers."""

    step: Ints
    at_ns: Ints
    worker: NDArray[np.int32]
    inside: Flags
    value: Floats

    def chosen(self, which: Flags) -> "Values":
        """Some of the values."""
        return Values(
            step=self.step[which],
            at_ns=self.at_ns[which],
            worker=self.worker[which],
            inside=self.inside[which],
            value=self.value[which],
        )


def points_of(values: Values, *, median: bool = False) -> Points:
    """The points of some values; with `median`, a point's mean is replaced by its median."""
    order, starts = _grouped(values)
    value = values.value[order]
    bad = ~np.isfinite(value)
    spoilt = bool(bad.any())
    finite = np.where(bad, 0.0, value) if spoilt else value
    low = np.where(bad, np.inf, value) if spoilt else value
    high = np.where(bad, -np.inf, value) if spoilt else value
    step, at_ns, inside = values.step[order], values.at_ns[order], values.inside[order]
    wrong = bad.astype(np.int32) if spoilt else _same(0, np.int32, value.size)
    ones = (~bad).astype(np.float64) if spoilt else _same(1, np.float64, value.size)
    counts = _same(1, np.int32, value.size)
    if starts.size < value.size:  # several values in some points
        counts = np.diff(starts, append=value.size).astype(np.int32)
        if median:
            finite, ones = _medians(value, starts, counts), ones[: starts.size]
        else:
            finite, ones = np.add.reduceat(finite, starts), np.add.reduceat(ones, starts)
        step, inside, at_ns = step[starts], inside[starts], np.maximum.reduceat(at_ns, starts)
        low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
        wrong = np.add.reduceat(wrong, starts) if spoilt else wrong[: starts.size]
    return Points(
        step=step,
        at_ns=at_ns,
        total=finite,
        weight=ones,
        low=low,
        high=high,
        count=counts,
        bad=wrong,
        inside=inside,
        spoilt=spoilt,
        timely=bool((at_ns[1:] >= at_ns[:-1]).all()),
    )


def _same(value: int, dtype: type[np.generic], size: int) -> NDArray[Any]:
    """A column with one value everywhere, which takes no memory."""
    return np.broadcast_to(np.asarray(value, dtype), size)


def _medians(value: Floats, starts: Ints, counts: NDArray[np.int32]) -> Floats:
    """The median of each group of values."""
    group = np.repeat(np.arange(starts.size), counts)
    ranked = value[np.lexsort((value, group))]
    found: Floats = (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) / 2
    return found


def _grouped(values: Values) -> tuple[Ints, Ints]:
    """The order of the values by point, and where each point begins in it."""
    step, worker = values.step, values.worker
    if step.size == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if (step[1:] > step[:-1]).all():
        every = np.arange(step.size)
        return every, every
    order = np.lexsort((worker, step))  # stable: a worker's values stay in their order
    ordered, owners = step[order], worker[order]
    same = (ordered[1:] == ordered[:-1]) & (owners[1:] == owners[:-1])
    return _with_repeats(step, order, same) if same.any() else (order, _starts(ordered))


def _with_repeats(step: Ints, order: Ints, same: Flags) -> tuple[Ints, Ints]:
    """The order and the beginnings of points if a worker has several values at a step."""
    nth = np.empty(order.size, np.int64)
    nth[order] = _nth_of_run(same)
    order = np.lexsort((nth, step))
    changed = (step[order][1:] != step[order][:-1]) | (nth[order][1:] != nth[order][:-1])
    return order, np.concatenate(([0], np.flatnonzero(changed) + 1))


def _nth_of_run(same: Flags) -> Ints:
    """For each item its place in its run; `same` says that an item continues the one before."""
    places = np.arange(same.size + 1)
    begins = np.concatenate(([True], ~same))
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def _starts(step: Ints) -> Ints:
    return np.concatenate(([0], np.flatnonzero(step[1:] != step[:-1]) + 1))


def joined(before: Points, after: Points) -> Points:
    """The points of a curve with later points behind it."""
    if not before.size or not after.size:
        return after if after.size else before
    found = {
        name: _after(getattr(before, name), getattr(after, name))
        for name in COLUMNS
        if name not in ("low", "high") or not (before.single and after.single)
    }
    return Points(
        **({"low": found["total"], "high": found["total"]} | found),
        spoilt=before.spoilt or after.spoilt,
        timely=before.timely and after.timely and bool(before.at_ns[-1] <= after.at_ns[0]),
    )


def _after(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Two columns as one; two that have the same value everywhere stay such a column."""
    if before.strides == after.strides == (0,) and before[0] == after[0]:
        return np.broadcast_to(before[0], before.size + after.size)
    return np.concatenate((before, after))


def before_step(points: Points, step: int) -> Points:
    """The points before a step."""
    stop = int(np.searchsorted(points.step, step))
    cut = {name: getattr(points, name)[:stop] for name in COLUMNS}
    if points.single:
        cut |= {"low": cut["total"], "high": cut["total"]}
    return Points(**cut, spoilt=points.spoilt, timely=points.timely)
