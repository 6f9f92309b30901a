"""Retention of finished runs: only archived events are deleted from the log, a crash at any point
loses no event, and deleted runs are not archived again."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from strata.config import Settings
from strata.coordinator.archive import run_archiver
from strata.core.events import COORDINATOR
from strata.core.record.event_codec import CODEC
from strata.store.event_batches import pack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteReader, SqliteStore
from strata.timeline.archive.archive_job import Archive, carry_out
from strata.timeline.archive.run_archive import open_anywhere
from strata.timeline.archive.run_list import runs_at
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.audit.sample_audit import audit
from strata.timeline.queries import TimelineQueries
from tests.coordinator.conftest import coordinator
from tests.sdk.harness import until
from tests.timeline.planted import Planted, worker

ROOT = Path(__file__).parents[2]
TASKS = ["train-1", "train-2", "train-3"]
ALL = 10**9


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(run_archiver, "LOOK_S", 0.05)
    monkeypatch.setattr(run_archiver, "KEEPING_S", 0.05)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the log of three tasks that ended long ago, each archived."""
    run = Planted(lambda sim: worker(sim).exit(137, 9), steps=40)
    folder = run.saved(tmp_path_factory.mktemp("finished") / "data")
    state = run.sim.coordinator.kernel.state
    for task in state.tasks.values():
        until_ns = task.ended_ns + 60 * 10**9
        name = f"{task.id}-{state.cluster}"
        given = (task.id, until_ns, str(folder / "runs"), name, str(folder))
        carry_out(Archive(*given, Settings(data_dir=str(folder))))
    assert [row.tasks for row in runs_at(str(folder / "runs"))] == [[task] for task in TASKS]
    return folder


@pytest.fixture
def data(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "data"))


def events_in(reader) -> list[tuple[str, int, int]]:
    """Every worker's event in a log, as (node, incarnation, seq)."""
    found = reader.query(limit=ALL)
    return sorted((node, inc, event.seq) for node, inc, event in found if node != COORDINATOR)


def events_at(data) -> list[tuple[str, int, int]]:
    with SqliteReader(data / "log.db", CODEC) as reader:
        return events_in(reader)


def facts_of(data, kind) -> list:
    with SqliteReader(data / "log.db", CODEC) as reader:
        wanted = Window(node=COORDINATOR, kinds=frozenset({kind}))
        return [event.body for _, _, event in reader.query(wanted, limit=ALL)]


def run_of(data, task):
    return open_anywhere(str(data / "runs"), task)


def kept_until(data, condition, **settings) -> None:
    """Run a coordinator on a folder until a condition holds."""
    with coordinator(data, **settings) as started:
        until(lambda: condition(started), what="what is due")


def released(started) -> bool:
    return not started.engine.kernel.store.tallies()


class TestRelease:
    def test_what_is_archived_leaves_the_log_and_stays_as_readable(self, finished, data):
        kept_until(data, released, keep_events_days=0.0)
        released_facts = facts_of(data, "EventsReleased")
        assert sorted(fact.task for fact in released_facts) == TASKS
        assert sum(fact.events for fact in released_facts) == len(events_at(finished)) > 3_000
        for task in TASKS:
            with run_of(data, task) as run, open_timeline(finished) as log:
                streams = set(run.reader.streams())
                assert events_in(run.reader) == [e for e in events_at(finished) if e[:2] in streams]
                assert audit(run.reader, task) == audit(log.reader, task)
                assert TimelineQueries(run).why("changed", params={"task": task}).verdict == "yes"

    def test_the_log_keeps_its_facts_and_says_where_the_rest_is(self, finished, data):
        with open_timeline(finished) as before:
            facts = list(before.reader.read())
            changed = TimelineQueries(before).why("changed", params={"task": "train-2"}).verdict
        kept_until(data, released, keep_events_days=0.0)
        with open_timeline(data) as log:
            queries = TimelineQueries(log)
            assert list(log.reader.read(0, len(facts))) == facts
            assert queries.at(position=len(facts)).tasks
            assert queries.why("changed", params={"task": "train-2"}).verdict == changed
            trust = queries.why("trust")
            assert trust.verdict == "yes"
            (gone,) = {f.text for f in queries.trust().findings if "train-2-w0" in f.text}
            assert "--run train-2" in gone
            slow = queries.why("slow", params={"worker": "train-2-w0"})
            assert slow.verdict == "unknown"
            assert queries.story("worker:train-2-w0", limit=10).entries
            assert list(queries.export("jsonl", None, None))

    def test_over_rest_the_run_answers_as_before(self, data):
        asked = {"question": "slow", "worker": "train-2-w0", "run": "train-2"}
        with coordinator(data) as started:
            before = httpx.get(f"{started.http_url}/api/timeline/why", params=asked).json()
        with coordinator(data, keep_events_days=0.0) as started:
            until(lambda: released(started), what="the release")
            after = httpx.get(f"{started.http_url}/api/timeline/why", params=asked).json()
            span = httpx.get(f"{started.http_url}/api/timeline/span").json()
        assert before["answer"] == after["answer"]
        assert span["worker_events"] == 0

    def test_it_waits_for_its_days(self, finished, data):
        with coordinator(data, keep_events_days=36_500.0) as started:
            until(lambda: started.engine.kernel.state.coordinator_incarnation > 1, what="the start")
        assert events_at(data) == events_at(finished)
        assert facts_of(data, "EventsReleased") == []

    def test_what_an_archive_does_not_hold_stays(self, finished, data):
        """One archive is truncated, and another run has events that arrived after archiving."""
        (events,) = data.glob("runs/train-1-*/events.parquet")
        events.write_bytes(events.read_bytes()[:-100])
        with SqliteStore(data / "log.db", CODEC) as store:
            stream = next(each for each in store.streams() if each[0].startswith("train-2-w0"))
            last = list(store.stream(*stream))[-1]
            late = msgspec.structs.replace(last, seq=last.seq + 1)
            sent = [pack(CODEC, *stream, [late])]
            store.append([], incarnation=1, expected=store.position, batches=sent)

        def rest(started) -> bool:
            streams = {tally.node for tally in started.engine.kernel.store.tallies()}
            return all(node.startswith("train-1") or node == stream[0] for node in streams)

        kept_until(data, rest, keep_events_days=0.0)
        first = [each for each in events_at(finished) if each[0].startswith("train-1-")]
        assert events_at(data) == sorted([*first, (*stream, last.seq + 1)])
        assert sorted(fact.task for fact in facts_of(data, "EventsReleased")) == TASKS[1:]


def sizes(data) -> dict[str, int]:
    return {
        task: sum(file.stat().st_size for file in data.glob(f"runs/{task}-*/*")) for task in TASKS
    }


def listed(started) -> list[str]:
    rows = httpx.get(f"{started.http_url}/api/runs").json()
    return sorted(task for row in rows for task in row["tasks"])


class TestDeletion:
    def test_runs_that_are_too_old_go_from_everywhere_and_are_not_archived_again(self, data):
        kept_until(data, lambda started: not listed(started), keep_runs_days=30.0)
        assert not list((data / "runs").iterdir())
        assert events_at(data) == []
        deleted = facts_of(data, "RunDeleted")
        assert sorted(fact.task for fact in deleted) == TASKS
        assert all("30 days" in fact.reason for fact in deleted)
        with coordinator(data) as started:
            looked = run_archiver.Archiver(started.engine, Settings(data_dir=str(data)))
            state = started.engine.kernel.state
            assert set(state.tasks) == set(TASKS)
            assert looked._deleted() == {f"{task}-{state.cluster}" for task in TASKS}
            assert listed(started) == []
        assert len(facts_of(data, "RunDeleted")) == 3

    def test_of_too_much_the_oldest_go(self, data):
        most = sizes(data)["train-2"] + sizes(data)["train-3"]
        given = {"keep_runs_bytes": most, "keep_events_days": 36_500.0}
        kept_until(data, lambda started: listed(started) == TASKS[1:], **given)
        assert [fact.task for fact in facts_of(data, "RunDeleted")] == ["train-1"]
        assert {node.partition("-w")[0] for node, _, _ in events_at(data)} == set(TASKS[1:])

    def test_what_others_put_there_is_not_touched(self, data):
        (other,) = data.glob("runs/train-1-*")
        shutil.copytree(other, data / "runs" / "train-1-another-cluster")
        shutil.copytree(other, data / "runs" / "mine")
        (data / "runs" / "notes").mkdir()
        kept_until(data, lambda started: len(listed(started)) == 2, keep_runs_days=30.0)
        left = sorted(folder.name for folder in (data / "runs").iterdir())
        assert left == ["mine", "notes", "train-1-another-cluster"]


DYING = """
import os, signal, sys
from strata.cli import main
from strata.coordinator.archive import run_archiver, run_retention
from strata.storage.folder import LocalStorage
from strata.store.sql import sql_store

run_archiver.LOOK_S = run_archiver.KEEPING_S = 0.05
sql_store.RELEASED_ROWS = 20

def dies_at(owner, name, call):
    original, left = getattr(owner, name), [call]
    def dying(self, *given):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *given)
    setattr(owner, name, dying)

points = {
    "released": (sql_store.SqlStore, "release"),
    "remembered": (sql_store.SqlStore, "_remember"),
    "removed": (run_retention.RunRetention, "_remove"),
    "deleted": (LocalStorage, "delete"),
}
point, call = sys.argv.pop(1).split(":")
dies_at(*points[point], int(call))
main()
"""

POINTS = ["released:0", "released:3", "remembered:1", "remembered:7", "removed:0", "deleted:1"]


@pytest.mark.parametrize("point", POINTS)
def test_every_event_is_in_the_log_or_its_run_after_a_kill_at_any_point(finished, data, point):
    deletes = point.startswith(("removed", "deleted"))
    given = {"data_dir": str(data), "grpc_port": 0, "http_port": 0, "keep_events_days": 0.0}
    given |= {"keep_runs_bytes": sizes(data)["train-3"]} if deletes else {}
    config = data.parent / "strata.toml"
    config.write_text("\n".join(f"{k} = {v!r}" for k, v in given.items()).replace("'", '"'))
    command = [sys.executable, "-c", DYING, point, "up", "--config", str(config)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-2_000:]
    in_log, everything = events_at(data), set(events_at(finished))
    assert len(in_log) == len(set(in_log))
    if not deletes:
        in_runs = []
        for task in TASKS:
            with run_of(data, task) as run:
                in_runs += events_in(run.reader)
        assert len(in_runs) == len(set(in_runs))
        assert set(in_runs) == everything >= set(in_log)
    with open_timeline(data) as log:
        assert TimelineQueries(log).why("trust").verdict == "yes"
    last = TASKS[2:] if deletes else TASKS
    kept_until(
        data,
        lambda started: released(started) and listed(started) == last,
        **{name: value for name, value in given.items() if name.startswith("keep")},
    )
    with run_of(data, "train-3") as run:
        assert set(events_in(run.reader)) == {e for e in everything if e[0].startswith("train-3-")}
