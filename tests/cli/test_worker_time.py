"""Guards the workers' time of a real run: each moment belongs to one activity, and the lanes,
SQL, REST and the audit give the same sums, also while the run continues."""

import shutil
from itertools import pairwise

import httpx
import pytest

from strata.core.record.event_codec import CODEC
from strata.store.memory_store import MemoryStore
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.audit.sample_audit import audit
from strata.timeline.export import sql_queries
from strata.timeline.lanes.worker_lanes import lanes
from strata.timeline.queries import TimelineQueries
from tests.cli.trained import DATA_S, STEPS
from tests.coordinator.rest.served import Coordinator


@pytest.fixture(scope="module")
def timeline(trained):
    with open_timeline(trained[0]) as opened:
        yield opened


@pytest.fixture(scope="module")
def task(timeline):
    return next(timeline.records(kinds={"TaskSubmitted"})).text("task")


def wall_s(timeline, node) -> float:
    """Seconds from the placement of a worker to its end, from the facts alone."""
    placed = next(
        each for each in timeline.records(kinds={"TaskPlaced"}) if node in each.get("placements")
    )
    left = [
        each
        for each in timeline.records(kinds={"WorkerStateChanged"})
        if (each.text("worker"), each.text("after")) == (node, "left")
    ]
    return (left[-1].at_ns - placed.at_ns) / 1e9


def test_lane_of_each_worker_adds_up_to_its_wall_time(timeline):
    extent = timeline.extent()
    found = lanes(timeline, extent.from_ns, extent.to_ns + 1)
    assert found.fine
    assert len(found.lanes) == 2
    for lane in found.lanes:
        spans = lane.spans
        assert all(a.to_ms == b.from_ms for a, b in pairwise(spans))
        drawn_ms = sum(span.to_ms - span.from_ms for span in spans)
        assert drawn_ms / 1e3 == pytest.approx(wall_s(timeline, lane.node), abs=1e-6)
        assert sum(lane.seconds.values()) == pytest.approx(wall_s(timeline, lane.node), abs=1e-6)


def test_sums_of_windows_are_the_sum_of_the_whole(timeline):
    extent = timeline.extent()
    cuts = [extent.from_ns + (extent.to_ns + 1 - extent.from_ns) * i // 7 for i in range(8)]
    sums: dict[tuple[str, str], float] = {}
    for begin_ns, end_ns in pairwise(cuts):
        for lane in lanes(timeline, begin_ns, end_ns).lanes:
            for kind, seconds in lane.seconds.items():
                sums[lane.node, kind] = sums.get((lane.node, kind), 0.0) + seconds
    whole = {
        (lane.node, kind): seconds
        for lane in lanes(timeline, cuts[0], cuts[-1]).lanes
        for kind, seconds in lane.seconds.items()
    }
    assert sums == pytest.approx(whole, abs=1e-6)


def test_lanes_sql_and_the_recorded_steps_give_the_same_figures(timeline):
    rows = sql_queries.query(
        timeline, "SELECT node, kind, sum(seconds) FROM activity GROUP BY ALL", limit=100
    ).rows
    found = {(node, kind): seconds for node, kind, seconds in rows}
    drawn = {
        (lane.node, kind): seconds
        for lane in TimelineQueries(timeline).lanes(None, None).lanes
        for kind, seconds in lane.seconds.items()
    }
    assert drawn == pytest.approx(found, abs=1e-6)
    data = sql_queries.query(timeline, "SELECT node, sum(data_s) FROM steps GROUP BY ALL").rows
    assert {node: found[node, "data"] for node, _ in data} == pytest.approx(dict(data), abs=1e-3)


def test_background_reads_are_not_the_worker_s_time(timeline):
    labels = sql_queries.query(timeline, "SELECT DISTINCT what FROM activity", limit=10_000).rows
    assert not [what for (what,) in labels if "fetching a batch" in what]


def test_effective_time_counts_neither_waiting_nor_repeated_steps(timeline, task, trained):
    spent = audit(timeline.reader, task).effective
    rows = sql_queries.query(
        timeline,
        "SELECT sum(seconds) FILTER (part = 'compute'), sum(seconds) FILTER (part = 'data') "
        "FROM activity",
    ).rows
    computed_s, data_s = rows[0]
    assert data_s >= 2 * STEPS * DATA_S
    # What was spent on a step that the loss undid is rolled-back work, whatever it was.
    undone_s = spent.seconds["rolled_back"] + 1e-6
    assert data_s - undone_s <= spent.seconds["data_wait"] <= data_s + 1e-6
    setup_s = spent.seconds["starting"]
    assert computed_s - undone_s - setup_s <= spent.productive_s <= computed_s + 0.1
    assert spent.productive_s + data_s < spent.total_s
    assert sum(spent.seconds.values()) == pytest.approx(spent.total_s)
    assert 0 < spent.share < 1
    assert f"goodput {100 * spent.share:.1f} %  {task}" in trained[1]


def test_share_is_at_most_one_while_the_task_runs(timeline, task):
    for position in range(0, timeline.position, 7):
        at_ns = timeline.time_of(position)
        store = MemoryStore(CODEC)
        batches = [
            batch
            for batch in timeline.reader.batches()
            if batch.node != "coordinator" and batch.wall_to_ns < at_ns
        ]
        facts = list(timeline.reader.read(0, position + 1))
        store.append(facts, incarnation=1, expected=0, batches=batches)
        if any(event.kind == "RecoveryChosen" for event in facts):
            spent = audit(store, task).effective
            assert 0 <= spent.productive_s <= spent.total_s


def test_rest_gives_the_same_lanes(trained, timeline, tmp_path):
    for file in trained[0].glob("log.db*"):
        shutil.copy(file, tmp_path / file.name.replace("log.db", "log"))
    span = TimelineQueries(timeline).span()
    window = {"from_ms": span.from_ms, "to_ms": span.to_ms}
    with Coordinator(tmp_path) as served:
        shown = httpx.get(f"{served.url}/api/timeline/lanes", params=window).json()["lanes"]
    own = TimelineQueries(timeline).lanes(**window).lanes
    assert {lane["node"]: lane["seconds"] for lane in shown} == {
        lane.node: pytest.approx(lane.seconds) for lane in own
    }
