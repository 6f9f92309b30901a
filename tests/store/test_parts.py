"""Ranges, the order of events, and which snapshots are kept."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata.store import seq_ranges
from strata.store.snapshots import KEPT, surplus

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda s: (s[0], sum(s))))


def members(spans):
    return {number for first, stop in spans for number in range(first, stop)}


def joined(spans):
    known = []
    for first, stop in spans:
        seq_ranges.add(known, first, stop)
    return known


@given(SPANS)
def test_ranges_are_a_set_in_shortest_form(spans):
    known = joined(spans)
    assert members(known) == members(spans)
    assert all(left[1] < right[0] for left, right in pairwise(known))


@given(SPANS, st.integers(0, 50), st.integers(0, 20))
def test_missing_is_the_rest(spans, first, length):
    stop = first + length
    known = joined(spans)
    assert members(seq_ranges.missing(known, first, stop)) == set(range(first, stop)) - members(
        spans
    )
    overlapping = seq_ranges.overlapping(known, first, stop)
    assert seq_ranges.missing(overlapping, first, stop) == seq_ranges.missing(known, first, stop)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=400))
def test_thinning_keeps_the_ends_and_spreads_the_rest(steps):
    kept: list[int] = []
    position = 0
    for step in steps:
        position += step
        kept.append(position)
        dropped = surplus(kept)
        kept = [each for each in kept if each not in dropped]
        assert len(kept) <= KEPT
    assert kept[0] == steps[0]
    assert kept[-1] == position
    gaps = [right - left for left, right in pairwise(kept)]
    assert max(gaps, default=0) <= max(2 * position / (KEPT - 2), max(steps))
