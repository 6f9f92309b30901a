"""Guards the verbs about the past: text, JSON, and the same answers from a folder and from a
running coordinator."""

import json
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from strata.cli import build_app
from strata.cli.support.past_source import Moment
from strata.errors import InvalidArgument, NotFound, StrataError
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.lanes import worker_lanes
from tests.coordinator.rest.served import Coordinator


def strata(*arguments):
    result = CliRunner().invoke(build_app(), arguments)
    if isinstance(result.exception, StrataError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def lost(crashed):
    return crashed.kinds("WorkerLost")[0]


class TestFolder:
    def test_timeline_shows_lanes_and_key_events(self, folder, lost):
        shown = strata("timeline", "--data", str(folder))
        assert "log ✓ complete" in shown
        assert lost.text("worker") in shown
        assert "was declared lost" in shown
        assert "█" in shown

    def test_at_a_moment_before_the_end(self, folder):
        assert "train-1" in strata("at", "end-5m", "--data", str(folder))
        assert strata("at", "end", "--data", str(folder)) == strata("at", "--data", str(folder))
        assert "train-1" not in strata("at", "start", "--data", str(folder))
        found = json.loads(strata("at", "step:20", "--data", str(folder), "--json"))
        assert found["tasks"][-1]["committed_steps"] > 20

    def test_at_next_goes_to_where_a_condition_holds(self, folder, lost):
        shown = strata("at", "--next", "kind=WorkerLost", "--data", str(folder))
        assert lost.ref in shown
        assert "recovering" in shown

    def test_at_next_starts_from_a_position_or_a_step(self, folder, crashed):
        kinds = {"WorkerRegistered", "GenerationChanged"}
        changes = list(crashed.timeline.records(kinds=kinds))
        data = ("--data", str(folder))
        for before, change in pairwise(changes):
            first = before.event.seq + 1
            later = [each for each in changes if each.event.seq >= first]
            due = next(each for each in later if each.kind == change.kind)
            for moment in (f"@{first}", f"p:{first}"):
                shown = strata("at", moment, "--next", f"kind={change.kind}", *data)
                assert f"({due.ref})" in shown
        last = changes[-1]
        with pytest.raises(NotFound):
            strata("at", f"@{last.event.seq + 1}", "--next", f"kind={last.kind}", *data)
        commits = crashed.kinds("StepsCommitted")
        step = commits[3].get("last")
        shown = strata("at", f"step:{step}", "--next", "kind=StepsCommitted", "--data", str(folder))
        assert f"({commits[4].ref})" in shown
        shown = strata(
            "at", f"step:{step}", "--previous", "kind=StepsCommitted", "--data", str(folder)
        )
        assert f"({commits[2].ref})" in shown

    def test_lanes_that_are_not_exact_say_so(self, folder, monkeypatch):
        assert "too many events" not in strata("timeline", "--data", str(folder))
        monkeypatch.setattr(worker_lanes, "FINE_EVENTS", 10)
        assert "too many events for exact lanes" in strata("timeline", "--data", str(folder))

    def test_time_of_day_means_the_day_of_the_run(self, folder, lost):
        moment = datetime.fromtimestamp(lost.at_ns / 1e9) + timedelta(seconds=1)
        assert moment.date() != datetime.now().date()
        found = json.loads(strata("at", f"{moment:%H:%M:%S}", "--data", str(folder), "--json"))
        assert abs(found["as_of"]["time_ms"] - moment.timestamp() * 1000) < 1000

    def test_part_of_a_run_as_parquet_has_the_events_of_the_window(self, folder, lost, tmp_path):
        out, at_ms = tmp_path / "part.parquet", lost.at_ns / 1e6
        window = ("--from", f"{at_ms - 5000:.3f}", "--to", f"{at_ms + 5000:.3f}")
        part = ("export", "--format", "parquet", *window, "--data", str(folder), "--out")
        strata(*part, str(out))
        times = [row["at_ns"] / 1e6 for row in pq.read_table(out).to_pylist()]
        with open_timeline(folder) as timeline:
            extent = timeline.extent()
            whole = sum(1 for _ in timeline.records(extent.from_ns))
        assert 0 < len(times) < whole
        assert all(at_ms - 5000 <= each <= at_ms + 5001 for each in times)
        with pytest.raises(InvalidArgument):
            strata(*part, str(tmp_path))

    def test_why_gives_the_verdict_the_chain_and_the_cost(self, folder, lost):
        shown = strata("why", "lost", f"worker={lost.text('worker')}", "--data", str(folder))
        assert "✓ yes" in shown
        assert "crashed" in shown
        assert "cost" in shown
        short = strata("why", "lost", lost.text("worker"), "time_ms=end", "--data", str(folder))
        assert short == shown
        same = json.loads(strata("why", lost.ref, "--data", str(folder), "--json"))
        assert (same["question"], same["verdict"]) == ("lost", "yes")

    def test_why_lists_the_questions(self, folder):
        assert len(strata("why", "--data", str(folder)).splitlines()) >= 16

    def test_story_prints_events_in_order(self, folder, lost):
        shown = strata("story", f"worker:{lost.text('worker')}", "--data", str(folder))
        assert "was declared lost" in shown
        lines = strata("story", "barrier:step-25", "--data", str(folder), "--json").splitlines()
        assert {json.loads(line)["kind"] for line in lines} >= {"BarrierOpened", "BarrierReleased"}

    @pytest.mark.parametrize("missing", ["/nope", "nope", "runs/nope"])
    def test_diff_with_a_missing_run_names_it(self, folder, missing):
        with pytest.raises(NotFound, match=f"the run {missing} does not exist"):
            strata("diff", str(folder), missing)

    def test_differences_of_moments_and_of_runs(self, folder, lost, calm, tmp_path):
        before, after = (f"{lost.at_ns / 1e6 + away_ms:.3f}" for away_ms in (-1, 1))
        assert "lost" in strata("diff", before, after, "--data", str(folder))
        other = calm.saved(tmp_path / "calm")
        assert "✓ yes" in strata("diff", str(folder), str(other))

    def test_sql(self, folder):
        text = "select count(*) as n from events where kind = 'WorkerLost'"
        assert json.loads(strata("sql", text, "--data", str(folder), "--json")) == {"n": 1}
        assert "n" in strata("sql", text, "--data", str(folder))

    def test_exports_and_runs(self, folder, tmp_path):
        trace = tmp_path / "trace.json"
        strata("export", "--data", str(folder), "--out", str(trace))
        assert json.loads(trace.read_bytes())["traceEvents"]
        kept = str(tmp_path / "kept")
        strata("export", "--format", "parquet", "--data", str(folder), "--out", kept)
        (row,) = [json.loads(line) for line in strata("runs", kept, "--json").splitlines()]
        assert row["archived"]
        assert row["name"] in strata("runs", kept)
        assert "was declared lost" in strata("timeline", "--data", kept)

    def test_schema_prints_every_kind(self):
        assert "WorkerLost" in json.loads(strata("schema"))["$defs"]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as running:
        running.train(2)
        yield running.url


class TestCoordinator:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("timeline",),
            ("at",),
            ("at", "@3"),
            ("why", "trust"),
            ("why", "@2"),
            ("diff", "@1", "@4"),
        ],
    )
    def test_verbs_query_a_running_coordinator(self, url, arguments):
        assert strata(*arguments, "--url", url)
        for line in strata(*arguments, "--url", url, "--json").splitlines():
            json.loads(line)

    def test_export_over_the_api(self, url, tmp_path):
        for name in ("perfetto", "jsonl", "parquet"):
            out = tmp_path / name
            strata("export", "--format", name, "--out", str(out), "--url", url)
            assert out.stat().st_size > 0


class TestMoments:
    def test_moment_is_typed_in_many_ways(self):
        assert Moment("@12").position == 12
        assert Moment("step:7").step == 7
        assert Moment("1750000000000").time_ms == 1750000000000
        assert Moment("2026-11-16T12:00:00+00:00").time_ms == 1794830400000

    def test_time_of_day_of_a_run_over_several_days_must_be_unique(self):
        def span(days):
            first = datetime(2026, 3, 2, 12, 0, 0)
            ends = [each.timestamp() * 1000 for each in (first, first + timedelta(days=days))]
            return SimpleNamespace(from_ms=ends[0], to_ms=ends[1])

        night = datetime(2026, 3, 3, 3, 0, 0).timestamp() * 1000
        assert Moment("3:00").within(span(0.9)).time_ms == night
        with pytest.raises(InvalidArgument) as refused:
            Moment("15:20:00").within(span(2.5))
        assert "2026-03-02T15:20:00, 2026-03-03T15:20:00, 2026-03-04T15:20:00" in refused.value.hint
        with pytest.raises(InvalidArgument, match="outside the run"):
            Moment("11:00").within(span(0.9))

    @pytest.mark.parametrize("text", ["yesterday", "@x", "25:99", "end+5m"])
    def test_invalid_moment_is_refused_with_examples(self, text):
        with pytest.raises(InvalidArgument) as refused:
            Moment(text)
        assert "end-5m" in refused.value.hint
