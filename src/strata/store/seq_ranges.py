"""Sets of consecutive numbers as sorted, disjoint ranges: which seqs are known, which are missing.

A range is (first, stop), its stop not included.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from strata.store.event_store import Range


def add(ranges: list[Range], first: int, stop: int) -> None:
    """Add a range in place, joining those it touches."""
    left = bisect_left(ranges, first, key=lambda known: known[1])
    right = bisect_right(ranges, stop, key=lambda known: known[0])
    if left < right:
        first = min(first, ranges[left][0])
        stop = max(stop, ranges[right - 1][1])
    ranges[left:right] = [(first, stop)]


def missing(ranges: Iterable[Range], first: int, stop: int) -> list[Range]:
    """The parts of [first, stop) that are in none of the sorted ranges."""
    holes = []
    for known_first, known_stop in ranges:
        if known_first >= stop:
            break
        if known_first > first:
            holes.append((first, known_first))
        first = max(first, known_stop)
    if first < stop:
        holes.append((first, stop))
    return holes


def overlapping(ranges: list[Range], first: int, stop: int) -> list[Range]:
    """Those of the sorted ranges that share a number with [first, stop)."""
    left = bisect_right(ranges, first, key=lambda known: known[1])
    right = bisect_left(ranges, stop, key=lambda known: known[0])
    return ranges[left:right]
