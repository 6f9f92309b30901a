"""Guards that a query finds exactly the lines it describes, however they lie on disk, and that no
search can hold the coordinator up."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.coordinator.logs import Line, LogStore, Query
from strata.coordinator.logs.entries import SEVERITY
from strata.errors import InvalidArgument

WORDS = st.sampled_from(
    ["loss", "NaN", 'say "hi"', "a\\b", "tab\t", "Ž", "ž", "\x1b[1m", "<b>", ""]
)
NAMES = st.sampled_from(["", "w1", "w2", 'q"uote', "é"])
LEVELS = st.sampled_from(sorted(SEVERITY))
TIMES = st.integers(1, 6)
LINES = st.builds(
    Line,
    LEVELS,
    st.lists(WORDS, max_size=3).map(" ".join),
    st.sampled_from(["worker", "coordinator"]),
    NAMES,
    NAMES,
    st.just(""),
    TIMES,
)
QUERIES = st.builds(
    Query,
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
def test_a_query_finds_what_a_plain_look_at_every_line_finds(tmp_path_factory, parts, queries):
    folder = tmp_path_factory.mktemp("logs")
    for part in parts:
        LogStore(folder).close()
        store = LogStore(folder)
        store.extend(part)
        store.close()
    store = LogStore(folder)
    written = [line for part in parts for line in part]
    for query in [Query(), *queries]:
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
        store.append(Line(level, f"step {i} of some training run", "worker", "t1", f"w{i % 50}"))
    store.flush()
    return store


def test_lines_of_a_worker_that_is_long_gone_are_found(opened, filled):
    filled.append(Line("info", "my last words", "worker", "t1", "w-dead"))
    filled = opened(max_bytes=2 * 1024 * 1024)
    filled.extend(Line("info", f"life goes on {i}", "worker", "t1", "w-new") for i in range(5000))
    (found,) = filled.recent(Query(worker_id="w-dead")).entries
    assert found.message == "my last words"


def test_a_level_finds_the_more_severe_too(filled):
    page = filled.recent(Query(level="warn"))
    assert [entry.message for entry in page.entries] == ["step 7000 of some training run"]
    assert (page.total, page.exact) == (1, True)


def test_a_regular_expression(filled):
    page = filled.recent(Query(search=r"step 1[23]99\d ", regex=True), budget_s=60)
    assert len(page.entries) == 20
    assert page.exact


def test_what_comes_after_a_line(filled):
    (newest,) = filled.recent(limit=1).entries
    filled.append(Line("info", "later"))
    page = filled.recent(Query(after=newest.id))
    assert [entry.message for entry in page.entries] == ["later"]
    assert page.cursor == ""


def test_a_total_that_was_not_counted_says_so(filled):
    page = filled.recent(Query(worker_id="w3"), limit=10)
    assert (len(page.entries), page.total, page.exact) == (10, 10, False)


def test_a_search_ends_in_time_and_its_cursor_goes_on(filled):
    query = Query(search="step 17 of")
    began_s = time.monotonic()
    page = filled.recent(query, budget_s=0.0)
    assert time.monotonic() - began_s < 1
    assert (page.entries, page.complete, page.exact) == ([], False, False)
    pages = 1
    while page.cursor and not page.entries:
        page = filled.recent(query, cursor=page.cursor, budget_s=0.0)
        pages += 1
    assert [entry.message for entry in page.entries] == ["step 17 of some training run"]
    assert pages > 2


def test_a_hostile_pattern_takes_no_time(store):
    store.extend(Line("info", "a" * 60_000 + "b") for _ in range(20))
    began_s = time.monotonic()
    page = store.recent(Query(search="(a+)+$", regex=True))
    assert page.entries == []
    assert time.monotonic() - began_s < 2


@pytest.mark.parametrize(
    "query",
    [
        Query(search="(", regex=True),
        Query(search=r"(a)\1", regex=True),
        Query(search="x" * 2000),
        Query(search="\ud800", regex=True),
        Query(after="not-an-id"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_with_a_hint(store, query, capfd):
    with pytest.raises(InvalidArgument) as refused:
        store.recent(query)
    assert refused.value.hint
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("cursor", ["zz", "log_", "-1", "0x1", "1" * 17, "\u0661"])
def test_a_cursor_that_is_none_is_refused(store, cursor):
    with pytest.raises(InvalidArgument, match="is not a place in the log"):
        store.recent(cursor=cursor)


def test_a_page_of_huge_lines_ends_early(store):
    store.extend(Line("info", "x" * 60_000) for _ in range(300))
    page = store.recent(limit=300)
    assert 50 < len(page.entries) < 100
    rest = store.recent(limit=300, cursor=page.cursor)
    assert rest.entries[0].seq == page.entries[-1].seq - 1
