"""Resharding: which saved boxes of a tensor overlap the box that a reader wants.

A tensor that N ranks saved is N boxes in one global shape; M ranks read M other boxes. Comparing
every pair costs N × M for each tensor, which takes minutes for large models. Boxes that were cut
along one axis are intervals: they are sorted by their start, and bisection finds the first and the
last one that can overlap.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]


class Box(Struct, frozen=True):
    """A rectangular region: its offset and length along each axis."""

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
    """A saved box that overlaps the wanted one, and the common region: in the global tensor, in the
    saved box, and in the wanted box.
    """

    index: int
    common: Box
    inner: Box
    target: Box


class BoxIndex:
    """The saved boxes of one tensor, sorted for fast queries."""

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
        """The saved boxes that overlap the wanted one; of equal boxes (replicas) only the first."""
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
            found.append(Overlap(index=index, common=common, inner=inner, target=target))
        return found


def cut_axis(boxes: Sequence[Box]) -> int:
    """The axis with the most different offsets, which is the one that the boxes were cut along."""
    if not boxes or not boxes[0].offsets:
        return 0
    kinds = [len({box.offsets[axis] for box in boxes}) for axis in range(len(boxes[0].offsets))]
    return kinds.index(max(kinds))


def overlaps(boxes: Sequence[Box], wanted: Box) -> list[Overlap]:
    return BoxIndex(boxes).overlaps(wanted)


def even_cuts(length: int, count: int) -> Indices:
    """The edges that cut an axis for `count` ranks as evenly as possible: `count` + 1 of them."""
    return length * np.arange(count + 1, dtype=np.int64) // count
