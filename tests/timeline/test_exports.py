"""Guards the exports: a trace that follows its format, Parquet that equals the run, JSON lines
and SQL over all of it."""

import json
from itertools import pairwise

import duckdb
import pyarrow.parquet as pq
import pytest

from strata.errors import AlreadyExists, InvalidArgument
from strata.timeline.archive.run_archive import archive, open_anywhere
from strata.timeline.archive.run_list import runs_at
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.export import sql_queries
from strata.timeline.export.event_files import write_parquet
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.operations import operations
from strata.timeline.read.past_states import state_at
from tests.storage.server import BUCKET, running


@pytest.fixture(scope="module")
def trace(crashed):
    return json.loads(b"".join(crashed.queries.export("perfetto", None, None)))["traceEvents"]


class TestPerfetto:
    def test_every_event_has_what_its_phase_needs(self, trace):
        needs = {
            "M": {"name", "pid", "args"},
            "X": {"name", "pid", "tid", "ts", "dur"},
            "b": {"name", "cat", "id", "pid", "ts"},
            "e": {"name", "cat", "id", "pid", "ts"},
            "s": {"name", "cat", "id", "pid", "tid", "ts"},
            "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
        }
        assert {event["ph"] for event in trace} == set(needs)
        for event in trace:
            assert needs[event["ph"]] <= event.keys()
            assert event.get("dur", 0) >= 0

    def test_every_node_is_a_named_track(self, crashed, trace):
        named = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
        nodes = {record.node for record in crashed.timeline.records()}
        assert nodes <= named
        pids = {e["pid"] for e in trace if e["name"] == "process_name"}
        assert {event["pid"] for event in trace} <= pids

    def test_slices_of_steps_and_states_nest(self, trace):
        tracks = {}
        for event in trace:
            if event["ph"] == "X" and event.get("cat") != "message" and event["tid"] in (1, 2):
                tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        assert tracks
        for slices in tracks.values():
            open_until = []
            for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
                end = event["ts"] + event["dur"]
                while open_until and open_until[-1] <= event["ts"] + 0.5:
                    open_until.pop()
                assert not open_until or end <= open_until[-1] + 0.5
                open_until.append(end)

    def test_pairs_and_flows_are_complete(self, trace):
        for first, last in (("b", "e"), ("s", "f")):
            begun = {e["id"]: e for e in trace if e["ph"] == first}
            ended = {e["id"]: e for e in trace if e["ph"] == last}
            assert begun.keys() == ended.keys()
            assert begun
            assert all(begun[i]["ts"] <= ended[i]["ts"] for i in begun)

    def test_every_operation_is_exported_also_interrupted_ones(self, crashed, trace):
        begun = [op for op in operations(crashed.timeline.records()) if op.start is not None]
        given_up = [op for op in begun if op.end is None]
        shown = [event["args"] for event in trace if event["ph"] == "b"]
        assert sorted(args["ref"] for args in shown) == sorted(op.start.ref for op in begun)
        assert [args["ok"] for args in shown].count(None) == len(given_up) > 0

    def test_arrows_start_and_end_inside_a_slice(self, trace):
        slices = {}
        for event in trace:
            if event["ph"] == "X":
                spans = slices.setdefault((event["pid"], event["tid"]), [])
                spans.append((event["ts"], event["ts"] + event["dur"]))
        arrows = [event for event in trace if event["ph"] in "sf"]
        assert {arrow["name"] for arrow in arrows} == {"message", "cause"}
        for arrow in arrows:
            spans = slices[arrow["pid"], arrow["tid"]]
            assert any(low <= arrow["ts"] <= high for low, high in spans)


class TestParquet:
    def test_exported_run_equals_the_run(self, timeline, tmp_path):
        write_parquet(timeline, tmp_path / "run")
        with open_timeline(tmp_path / "run") as kept:
            assert list(kept.records()) == list(timeline.records())
            assert kept.tallies() == timeline.tallies()
            for position in (10, 100, timeline.position):
                assert state_at(kept, position) == state_at(timeline, position)
            ours, theirs = TimelineQueries(timeline), TimelineQueries(kept)
            assert theirs.span().trust == ours.span().trust
            assert theirs.lanes(None, None) == ours.lanes(None, None)
            lost = next(timeline.records(kinds={"WorkerLost"}))
            assert theirs.why(ref=lost.ref) == ours.why(ref=lost.ref)

    def test_any_tool_reads_it(self, timeline, tmp_path):
        write_parquet(timeline, tmp_path / "run")
        table = pq.read_table(tmp_path / "run" / "facts.parquet")
        assert table.num_rows == timeline.position
        counted = duckdb.sql(
            f"SELECT count(*) FROM '{tmp_path}/run/events.parquet' WHERE kind = 'StepFinished'"
        ).fetchall()
        steps = sum(1 for _ in timeline.records(kinds={"StepFinished"}))
        assert counted == [(steps,)]

    def test_export_never_overwrites_a_run(self, timeline, tmp_path):
        write_parquet(timeline, tmp_path / "run")
        with pytest.raises(AlreadyExists):
            write_parquet(timeline, tmp_path / "run")

    def test_archived_runs_are_listed_and_opened(self, timeline, tmp_path):
        archive(timeline, str(tmp_path / "kept"), "first")
        archive(timeline, str(tmp_path / "kept"), "second")
        rows = runs_at(str(tmp_path / "kept"))
        assert [row.name for row in rows] == ["first", "second"]
        assert all(row.archived and row.facts == timeline.position for row in rows)
        with open_anywhere(str(tmp_path / "kept"), "second") as kept:
            assert kept.position == timeline.position


@pytest.mark.slow
def test_run_in_object_storage_is_read_like_a_live_one(timeline, tmp_path):
    with running(tmp_path / "s3") as settings:
        where = f"s3://{BUCKET}/runs"
        archive(timeline, where, "kept", settings)
        (row,) = runs_at(where, settings)
        assert (row.name, row.facts) == ("kept", timeline.position)
        with open_anywhere(where, settings=settings) as kept:
            assert list(kept.records()) == list(timeline.records())
        with pytest.raises(AlreadyExists):
            archive(timeline, where, "kept", settings)


def test_json_lines_have_every_event(crashed):
    lines = [json.loads(line) for line in crashed.queries.export("jsonl", None, None)]
    span = crashed.queries.span()
    assert len(lines) == span.facts + span.worker_events
    assert all(line["text"] and line["kind"] and line["body"] is not None for line in lines)


class TestSql:
    def test_the_tables_agree_with_the_run(self, timeline):
        counts = dict(
            sql_queries.query(timeline, "SELECT kind, count(*) FROM events GROUP BY ALL").rows
        )
        for kind in ("WorkerLost", "StepFinished", "CheckpointWriteStarted"):
            assert counts[kind] == sum(1 for _ in timeline.records(kinds={kind}))
        rows = sql_queries.query(
            timeline, "SELECT signal FROM workers WHERE signal IS NOT NULL"
        ).rows
        assert rows == [("exit",)]
        operations = sql_queries.query(
            timeline,
            "SELECT count(*), count(ended_at) FROM operations WHERE name = 'CheckpointWrite'",
        ).rows[0]
        assert operations[0] == counts["CheckpointWriteStarted"]
        assert operations[1] == counts["CheckpointWriteCompleted"]
        steps = sql_queries.query(timeline, "SELECT count(*), min(compute_s) FROM steps").rows[0]
        assert steps[0] == counts["StepFinished"]
        assert steps[1] > 0

    def test_committed_samples_are_contiguous(self, timeline):
        rows = sql_queries.query(
            timeline,
            "SELECT first_sample, stop_sample FROM samples WHERE task = 'train-1' AND NOT voided "
            "ORDER BY first_sample",
        ).rows
        assert rows[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(rows))

    def test_sql_cache_is_reused_and_gets_only_new_events(self, timeline):
        first = sql_queries.query(timeline, "SELECT count(*) FROM events").rows
        assert sql_queries.query(timeline, "SELECT count(*) FROM events").rows == first

    @pytest.mark.parametrize(
        "text",
        [
            "SELEC 1",
            "DROP TABLE events",
            "SELECT * FROM read_csv('/etc/hostname')",
            "COPY events TO '/tmp/x.csv'",
            "SET memory_limit = '100GB'",
        ],
    )
    def test_query_can_read_only_the_tables(self, timeline, text):
        with pytest.raises(InvalidArgument):
            sql_queries.query(timeline, text)

    def test_exported_run_gives_the_same_sql_answers(self, timeline, tmp_path):
        text = "SELECT kind, count(*) FROM events GROUP BY ALL ORDER BY kind"
        write_parquet(timeline, tmp_path / "run")
        with open_timeline(tmp_path / "run") as kept:
            assert sql_queries.query(kept, text) == sql_queries.query(timeline, text)
