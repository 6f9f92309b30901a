"""Sliding windows, compared with a plain computation over all values."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from strata.core.metrics.sliding_windows import SECOND_NS, Histogram, Samples, Tally

MOMENTS = st.integers(0, 100 * SECOND_NS)


@given(st.lists(st.tuples(MOMENTS, st.integers(0, 1000)), max_size=50), MOMENTS)
def test_tally_sums_the_seconds_of_its_window(added, later_ns):
    tally = Tally(10)
    for at_ns, amount in sorted(added):
        tally.add(at_ns, amount)
    now_ns = max([at_ns for at_ns, _ in added], default=0) + later_ns
    oldest = now_ns // SECOND_NS - 10
    assert tally.total(now_ns) == sum(a for at_ns, a in added if at_ns // SECOND_NS > oldest)


@given(st.lists(MOMENTS, min_size=2, max_size=20).map(sorted))
def test_tally_of_time_counts_every_nanosecond_of_the_window_once(moments):
    tally = Tally(10)
    spans = list(zip(moments[::2], moments[1::2], strict=False))
    for start_ns, end_ns in spans:
        tally.add_span(start_ns, end_ns)
    now_ns = moments[-1]
    begins_ns = (now_ns // SECOND_NS - 9) * SECOND_NS
    inside = sum(max(end - max(start, begins_ns), 0) for start, end in spans)
    assert tally.total(now_ns) == inside


def test_rate_is_per_second_of_the_observed_time():
    tally = Tally(10)
    for i in range(100):
        tally.add(i * SECOND_NS // 50)
    assert tally.rate(2 * SECOND_NS, since_ns=0) == 50.0
    assert tally.rate(2 * SECOND_NS, since_ns=1 * SECOND_NS) == 100.0
    assert tally.rate(10 * SECOND_NS - 1, since_ns=0) < 11
    assert tally.rate(60 * SECOND_NS, since_ns=0) == 0.0
    assert tally.rate(0, since_ns=0) == 0.0


@given(
    st.lists(st.tuples(MOMENTS, st.floats(0, 1e6)), max_size=60),
    st.integers(1, 40),
    st.floats(0.01, 1.0),
)
def test_quantile_is_that_of_the_newest_samples(added, limit, share):
    added = sorted(added, key=lambda pair: pair[0])
    samples = Samples(limit, 30 * SECOND_NS)
    for at_ns, value in added:
        samples.add(at_ns, value)
    now_ns = added[-1][0] if added else 0
    kept = sorted(v for at_ns, v in added[-limit:] if at_ns > now_ns - 30 * SECOND_NS)
    found = samples.quantile(share, now_ns)
    assert found == (kept[max(ceil(share * len(kept)), 1) - 1] if kept else None)


@given(st.lists(st.floats(0, 100), max_size=50))
def test_histogram_counts_each_value_under_the_first_bound_that_holds_it(values):
    histogram = Histogram((1.0, 5.0, 20.0))
    for value in values:
        histogram.add(value)
    lows = (-1.0, 1.0, 5.0, 20.0)
    highs = (1.0, 5.0, 20.0, float("inf"))
    expected = [sum(low < v <= high for v in values) for low, high in zip(lows, highs, strict=True)]
    assert histogram.counts == expected
    assert histogram.count == len(values)
    assert histogram.sum == sum(values)
