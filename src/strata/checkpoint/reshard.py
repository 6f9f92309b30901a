"""Which saved boxes hold what a wanted box needs.

A tensor that N ranks saved is N boxes in one global shape; M ranks want M other boxes. Comparing
every pair is N × M for every tensor (a known way to spend minutes in planning). Boxes cut along
one axis are intervals: sorted by where they begin, the first that matters is found by bisection
and the last is where the wanted one ends, so a plan costs what it finds. `plan_cuts` does that for
all wanted intervals of a tensor at once, in NumPy: 1,000 → 777 ranks take about 0.1 ms a tensor.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]


class Box(Struct, frozen=True):
    """A rectangular region: where it begins along each axis, and how long it is."""

    offsets: list[int]
    shape: list[int]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.shape, strict=True))

    def within(self, shape: list[int]) -> bool:
        return len(shape) == len(self.shape) == len(self.offsets) and all(
            o >= 0 and n >= 0 and o + n <= limit
            for o, n, limit in zip(self.offsets, self.shape, shape, strict=True)
        )

    def relative_to(self, other: "Box") -> "Box":
        starts = [a - b for a, b in zip(self.offsets, other.offsets, strict=True)]
        return Box(starts, self.shape)

    def common(self, other: "Box") -> "Box | None":
        starts = [max(a, b) for a, b in zip(self.offsets, other.offsets, strict=True)]
        stops = [
            min(a + n, b + m)
            for a, n, b, m in zip(self.offsets, self.shape, other.offsets, other.shape, strict=True)
        ]
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        if any(length <= 0 for length in lengths):
            return None
        return Box(starts, lengths)


class Overlap(Struct, frozen=True):
    """A saved box that holds some of the wanted one, and which region that is: in the global
    tensor, in the saved box, and in the wanted box."""

    index: int
    common: Box
    inner: Box
    target: Box


class Layout:
    """The saved boxes of one tensor, ordered so that each question is quick."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        self._axis = cut_axis(boxes)
        self._order = sorted(range(len(boxes)), key=lambda i: self._start(boxes[i]))
        self._starts = [self._start(boxes[i]) for i in self._order]
        longest = max((self._length(box) for box in boxes), default=0)
        self._longest = max(longest, 1)

    def _start(self, box: Box) -> int:
        return box.offsets[self._axis] if box.offsets else 0

    def _length(self, box: Box) -> int:
        return box.shape[self._axis] if box.shape else 1

    def overlaps(self, wanted: Box) -> list[Overlap]:
        """The saved boxes that hold some of the wanted one; of equal ones (replicas) the first."""
        start = self._start(wanted)
        first = bisect_right(self._starts, start - self._longest)
        last = bisect_left(self._starts, start + self._length(wanted))
        found: list[Overlap] = []
        taken: set[tuple[int, ...]] = set()
        for index in self._order[first:last]:
            box = self._boxes[index]
            common = wanted.common(box)
            if common is None or tuple(box.offsets) in taken:
                continue
            taken.add(tuple(box.offsets))
            inner, target = common.relative_to(box), common.relative_to(wanted)
            found.append(Overlap(index, common, inner, target))
        return found


def cut_axis(boxes: Sequence[Box]) -> int:
    """The axis along which the boxes differ most, which is the one they were cut along."""
    if not boxes or not boxes[0].offsets:
        return 0
    kinds = [len({box.offsets[axis] for box in boxes}) for axis in range(len(boxes[0].offsets))]
    return kinds.index(max(kinds))


def overlaps(boxes: Sequence[Box], wanted: Box) -> list[Overlap]:
    return Layout(boxes).overlaps(wanted)


class Cuts(Struct, frozen=True):
    """A plan along one axis: row i says that `wanted[i]` takes `start[i]:stop[i]`, counted in the
    whole tensor, from `saved[i]`."""

    wanted: Indices
    saved: Indices
    start: Indices
    stop: Indices


def even_cuts(length: int, count: int) -> Indices:
    """Where an axis is cut for `count` ranks, as evenly as it goes: `count` + 1 edges."""
    return length * np.arange(count + 1, dtype=np.int64) // count


def plan_cuts(saved_edges: Indices, wanted_edges: Indices) -> Cuts:
    """Which rank of the saved gives what to which rank of the wanted; ranks without rows give and
    get nothing."""
    first = np.searchsorted(saved_edges[1:], wanted_edges[:-1], side="right")
    last = np.searchsorted(saved_edges[:-1], wanted_edges[1:], side="left")
    counts = np.where(wanted_edges[:-1] < wanted_edges[1:], last - first, 0)
    wanted = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(wanted)) - np.repeat(np.cumsum(counts) - counts, counts)
    saved = np.repeat(first, counts) + within
    start = np.maximum(saved_edges[saved], wanted_edges[wanted])
    stop = np.minimum(saved_edges[saved + 1], wanted_edges[wanted + 1])
    some = start < stop
    return Cuts(wanted[some], saved[some], start[some], stop[some])


def even_boxes(shape: list[int], count: int, axis: int = 0) -> list[Box]:
    """A shape cut into `count` boxes along an axis, as evenly as it goes."""
    edges = even_cuts(shape[axis], count).tolist()
    return [
        Box(
            [start if each == axis else 0 for each in range(len(shape))],
            [stop - start if each == axis else length for each, length in enumerate(shape)],
        )
        for start, stop in pairwise(edges)
    ]
