"""Queries find exactly the matching lines, whatever their layout on disk, within a time limit."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.coordinator.logs.log_entries import SEVERITY, LogLine
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.logs.log_store import LogStore
from strata.errors import InvalidArgument

WORDS = st.sampled_from(
    ["loss", "NaN", 'say "hi"', "a\\b", "tab\t", "Ž", "ž", "\x1b[1m", "<b>", ""]
)
NAMES = st.sampled_from(["", "w1", "w2", 'q"uote', "é"])
LEVELS = st.sampled_from(sorted(SEVERITY))
TIMES = st.integers(1, 6)
LINES = st.builds(
    LogLine,
    LEVELS,
    st.lists(WORDS, max_size=3).map(" ".join),
    st.sampled_from(["worker", "coordinator"]),
    NAMES,
    NAMES,
    st.just(""),
    TIMES,
)
QUERIES = st.builds(
    LogQuery,
    level=st.none() | LEVELS,
    source=st.sampled_from(["", "worker"]),
    task_id=NAMES,
    worker_id=NAMES,
    search=st.sampled_from(
        ["", "loss", "LOSS", "nan", '"HI"', "a\\B", "\t", "Ž", "[1M", "loss nan"]
    ),
    since_ms=st.none() | TIMES,
    until_ms=st.none() | TIMES,
)


def ascii_lower(text):
    return text.encode().lower().decode()


def matches(line, query):
    return (
        (query.level is None or SEVERITY[line.level] >= SEVERITY[query.level])
        and all(
            not wanted or wanted == got
            for wanted, got in (
                (query.source, line.source),
                (query.task_id, line.task_id),
                (query.worker_id, line.worker_id),
            )
        )
        and ascii_lower(query.search) in ascii_lower(line.message)
        and (query.since_ms is None or line.timestamp >= query.since_ms)
        and (query.until_ms is None or line.timestamp < query.until_ms)
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(LINES, max_size=30), max_size=3), st.lists(QUERIES, max_size=4))
def test_query_matches_a_plain_scan(tmp_path_factory, parts, queries):
    folder = tmp_path_factory.mktemp("logs")
    for part in parts:
        LogStore(folder).close()
        store = LogStore(folder)
        store.extend(part)
        store.close()
    store = LogStore(folder)
    written = [line for part in parts for line in part]
    for query in [LogQuery(), *queries]:
        expected = [line.message for line in written if matches(line, query)][::-1]
        found, cursor = [], ""
        while True:
            page = store.recent(query, limit=3, cursor=cursor)
            found += [entry.message for entry in page.entries]
            cursor = page.cursor
            if not cursor:
                break
        assert found == expected
        whole = store.recent(query, limit=1000)
        assert (whole.total, whole.exact) == (len(expected), True)
    store.close()


@pytest.fixture
def filled(opened):
    """Enough lines for several segments, most of them noise."""
    store = opened(max_bytes=2 * 1024 * 1024)
    for i in range(20_000):
        level = "error" if i == 7_000 else "info"
        store.append(LogLine(level, f"step {i} of some training run", "worker", "t1", f"w{i % 50}"))
    store.flush()
    return store


def test_lines_of_dead_workers_are_found(opened, filled):
    filled.append(LogLine("info", "my last words", "worker", "t1", "w-dead"))
    filled = opened(max_bytes=2 * 1024 * 1024)
    filled.extend(
        LogLine("info", f"life goes on {i}", "worker", "t1", "w-new") for i in range(5000)
    )
    (found,) = filled.recent(LogQuery(worker_id="w-dead")).entries
    assert found.message == "my last words"


def test_level_filter_includes_more_severe_lines(filled):
    page = filled.recent(LogQuery(level="warn"))
    assert [entry.message for entry in page.entries] == ["step 7000 of some training run"]
    assert (page.total, page.exact) == (1, True)


def test_regular_expression_search(filled):
    page = filled.recent(LogQuery(search=r"step 1[23]99\d ", regex=True), budget_s=60)
    assert len(page.entries) == 20
    assert page.exact


def test_lines_after_a_given_line(filled):
    (newest,) = filled.recent(limit=1).entries
    filled.append(LogLine("info", "later"))
    page = filled.recent(LogQuery(after=newest.id))
    assert [entry.message for entry in page.entries] == ["later"]
    assert page.cursor == ""


def test_inexact_total_is_marked(filled):
    page = filled.recent(LogQuery(worker_id="w3"), limit=10)
    assert (len(page.entries), page.total, page.exact) == (10, 10, False)


def test_search_stops_at_the_time_limit_and_its_cursor_continues(filled):
    query = LogQuery(search="step 17 of")
    page = filled.recent(query, budget_s=0.0)
    assert (page.entries, page.complete, page.exact) == ([], False, False)
    pages = 1
    while page.cursor and not page.entries:
        page = filled.recent(query, cursor=page.cursor, budget_s=0.0)
        pages += 1
    assert [entry.message for entry in page.entries] == ["step 17 of some training run"]
    assert pages > 2


@pytest.mark.timeout(60)
def test_exponential_pattern_is_searched_without_backtracking(store):
    """With backtracking the search would exceed the time limit of the test."""
    store.extend(LogLine("info", "a" * 60_000 + "b") for _ in range(20))
    page = store.recent(LogQuery(search="(a+)+$", regex=True), budget_s=60)
    assert (page.entries, page.complete) == ([], True)


@pytest.mark.parametrize(
    "query",
    [
        LogQuery(search="(", regex=True),
        LogQuery(search=r"(a)\1", regex=True),
        LogQuery(search="x" * 2000),
        LogQuery(search="\ud800", regex=True),
        LogQuery(after="not-an-id"),
    ],
)
def test_invalid_query_is_refused_with_a_hint(store, query, capfd):
    with pytest.raises(InvalidArgument) as refused:
        store.recent(query)
    assert refused.value.hint
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("cursor", ["zz", "log_", "-1", "0x1", "1" * 17, "\u0661"])
def test_invalid_log_cursor_is_refused(store, cursor):
    with pytest.raises(InvalidArgument, match="invalid log cursor"):
        store.recent(cursor=cursor)


def test_page_of_huge_lines_is_cut(store):
    store.extend(LogLine("info", "x" * 60_000) for _ in range(300))
    page = store.recent(limit=300)
    assert 50 < len(page.entries) < 100
    rest = store.recent(limit=300, cursor=page.cursor)
    assert rest.entries[0].seq == page.entries[-1].seq - 1
