"""Guards archived runs: each has its own part of the log, complete or not at all, and is read
like the log that it came from."""

import subprocess
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.config import Settings
from strata.core.events import COORDINATOR
from strata.errors import Corrupt, NotFound
from strata.store.event_store import FOREVER_NS
from strata.timeline.archive.archive_job import Archive, carry_out
from strata.timeline.archive.parquet_log import SNAPSHOTS
from strata.timeline.archive.run_archive import archive, held, open_anywhere
from strata.timeline.archive.run_excerpt import run_of
from strata.timeline.archive.run_file import RUN, Held, read_run
from strata.timeline.archive.run_list import runs_at
from strata.timeline.archive.run_lookup import open_recorded, open_timeline
from strata.timeline.audit.sample_audit import audit
from strata.timeline.export import sql_queries
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS
from tests.sdk.harness import until
from tests.storage.server import BUCKET, running
from tests.timeline.planted import Planted, worker

NAME = "train-2-sim"


@pytest.fixture(scope="module")
def several():
    """Short tasks, one after the other."""
    return Planted(lambda sim: worker(sim).exit(137, 9), steps=40)


@pytest.fixture(scope="module")
def folder(several, tmp_path_factory):
    """The data folder of these tasks."""
    return several.saved(tmp_path_factory.mktemp("runs") / "several")


@pytest.fixture
def timeline(folder):
    with open_timeline(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def ended(several):
    """The end of the second task: there are facts before and after it."""
    (end,) = [
        record
        for record in several.kinds("TaskStateChanged")
        if record.text("task") == "train-2" and record.text("after") == "completed"
    ]
    return end.at_ns


@pytest.fixture
def kept(timeline, ended, tmp_path):
    """Its run, archived as the coordinator does."""
    run = run_of(timeline, "train-2", ended + 60 * SECOND_NS)
    archive(run, str(tmp_path / "runs"), NAME)
    with open_anywhere(str(tmp_path / "runs")) as opened:
        yield opened


def own_records(timeline, kept):
    """The records of the run in the log."""
    extent = kept.extent()
    streams = set(kept.reader.streams())
    for record in timeline.records():
        if record.node == COORDINATOR:
            if extent.first <= record.event.seq < extent.last:
                yield record.ref, record.at_ns, record.event
        elif (record.node, record.incarnation) in streams:
            yield record.ref, record.at_ns, record.event


def test_run_excerpt_reaches_from_submission_to_after_the_end(timeline, kept, ended):
    extent = kept.extent()
    assert 0 < extent.first < extent.last < timeline.position
    first = next(kept.facts(extent.first, extent.first + 1))
    assert (first.kind, first.text("task")) == ("TaskSubmitted", "train-2")
    assert extent.to_ns >= ended
    found = [(record.ref, record.at_ns, record.event) for record in kept.records()]
    assert sorted(found, key=str) == sorted(own_records(timeline, kept), key=str)


def test_run_excerpt_answers_like_the_log(timeline, kept):
    first, last = kept.extent().first, kept.extent().last
    for position in (first, first + 1, (first + last) // 2, last):
        assert state_at(kept, position) == state_at(timeline, position)
    assert audit(kept.reader, "train-2") == audit(timeline.reader, "train-2")
    ours, theirs = TimelineQueries(timeline), TimelineQueries(kept)
    assert theirs.span().trust.verdict == "yes"
    subject = "worker:" + next(iter(kept.reader.streams()))[0]
    assert theirs.story(subject, limit=1000).entries
    changed = {"task": "train-2"}
    assert (
        theirs.why("changed", params=changed).verdict == ours.why("changed", params=changed).verdict
    )
    moment_ms = (kept.extent().from_ns + kept.extent().to_ns) / 2e6
    assert theirs.at(moment_ms).tasks == ours.at(moment_ms).tasks
    steps = (
        "SELECT count(*) FROM steps WHERE node IN (SELECT worker FROM workers WHERE task = '{}')"
    )
    counted = [sql_queries.query(each, steps.format("train-2")).rows for each in (timeline, kept)]
    assert counted[0] == counted[1] != [(0,)]


def test_archived_run_is_found_by_name_and_by_task(kept, tmp_path):
    (row,) = runs_at(str(tmp_path / "runs"))
    assert (row.name, row.tasks, row.archived) == (NAME, ["train-2"], True)
    for called in (NAME, "train-2"):
        with open_anywhere(str(tmp_path / "runs"), called) as opened:
            assert opened.name == NAME
    with pytest.raises(NotFound, match="train-9"):
        open_anywhere(str(tmp_path / "runs"), "train-9")


def test_archived_runs_in_a_data_folder_do_not_hide_its_log(several, ended, tmp_path):
    data = several.saved(tmp_path / "data")
    carry_out(job(data, data / "runs", ended))
    assert [row.archived for row in runs_at(str(data))] == [False, True]
    with open_anywhere(str(data)) as log, open_anywhere(str(data), "train-2") as run:
        assert log.position > run.position
        assert run.task == "train-2"


def test_state_it_began_from_is_loaded_by_a_later_release(kept, tmp_path):
    path = tmp_path / "runs" / NAME / SNAPSHOTS
    rows = pq.read_table(path).to_pylist()
    position = kept.extent().last
    before = state_at(kept, position)
    pq.write_table(
        pa.Table.from_pylist([row | {"state": older(row["state"])} for row in rows]), path
    )
    assert state_at(kept, position) == before
    pq.write_table(pa.Table.from_pylist([row | {"schema": "state/9999"} for row in rows]), path)
    with pytest.raises(NotFound, match="another release"):
        state_at(kept, position)


def older(snapshot: bytes) -> bytes:
    """A snapshot as a release without storage waits wrote it."""
    shape, tree = msgspec.msgpack.decode(snapshot)
    shape["Task"].remove("storage_wait")
    for task in tree["tasks"].values():
        assert task.pop("storage_wait") is None
    return msgspec.msgpack.encode((shape, tree))


def job(data, where, ended, settings=None) -> Archive:
    scratch = data / "archiving"
    scratch.mkdir(exist_ok=True)
    until_ns = min(ended + 60 * SECOND_NS, FOREVER_NS)
    given = msgspec.structs.replace(settings or Settings(), data_dir=str(data))
    return Archive("train-2", until_ns, str(where), NAME, str(scratch), given)


def killed_in_the_middle(work: Archive, begun) -> None:
    """Kill an archiver as soon as `begun` holds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "strata.timeline.archive.archive_job"], stdin=subprocess.PIPE
    )
    process.stdin.write(msgspec.json.encode(work))
    process.stdin.close()
    until(begun, what="the first file")
    process.kill()
    assert process.wait() == -9


def test_killed_archiver_leaves_no_run_and_can_be_repeated(several, ended, tmp_path):
    data, where = several.saved(tmp_path / "data"), tmp_path / "far"
    work = job(data, where, ended)
    scratch = data / "archiving"
    killed_in_the_middle(work, lambda: list(scratch.rglob("*.parquet")))
    assert runs_at(str(where)) == []
    carry_out(work)
    (row,) = runs_at(str(where))
    assert row.name == NAME


@pytest.mark.slow
def test_killed_archiver_leaves_no_run_in_object_storage(several, ended, tmp_path):
    data = several.saved(tmp_path / "data")
    where = f"s3://{BUCKET}/runs"
    with running(tmp_path / "s3") as settings:
        work = job(data, where, ended, settings)
        killed_in_the_middle(work, lambda: list((data / "archiving").rglob("*.parquet")))
        assert runs_at(where, settings) == []
        carry_out(work)
        (row,) = runs_at(where, settings)
        assert row.name == NAME
        with open_anywhere(where, "train-2", settings) as kept:
            assert kept.task == "train-2"
            assert next(iter(kept.records())).kind == "TaskSubmitted"


class Changed:
    """A log in which one event of every worker is changed."""

    def __init__(self, reader, seq):
        self.last_seq = reader.last_seq
        self._reader, self._seq = reader, seq

    def stream(self, node, incarnation, start, stop):
        for event in self._reader.stream(node, incarnation, start, stop):
            other = {"wall_ns": event.wall_ns + 1} if event.seq == self._seq else {}
            yield msgspec.structs.replace(event, **other)


def test_verify_finds_the_events_that_run_and_log_share(timeline, kept, monkeypatch):
    monkeypatch.setattr("strata.timeline.archive.run_archive.PIECE", 100)
    whole = {(each.node, each.incarnation): each.events for each in kept.tallies()}
    assert {
        (each.node, each.incarnation): each.events for each in held(timeline.reader, kept.reader)
    } == whole
    found = list(held(Changed(timeline.reader, 150), kept.reader))
    assert found == [Held(*stream, 150, 150) for stream in sorted(whole) if whole[stream] > 150]
    assert list(held(Changed(timeline.reader, 0), kept.reader)) == []


def test_recorded_demo_is_readable_and_has_losses():
    with open_recorded() as demo:
        assert TimelineQueries(demo).span().trust.verdict == "yes"
        assert sum(file.stat().st_size for file in demo.reader.folder.iterdir()) < 1_000_000
        lost = next(demo.records(kinds={"WorkerLost"}))
        assert TimelineQueries(demo).why(ref=lost.ref).chain
        assert not state_at(demo, demo.position).doubt
        used = {record.node for record in demo.records(kinds={"ResourceSnapshot"})}
        assert len(used) == 8


@pytest.mark.parametrize("content", [b'{"name": "\xff"}', b"[" * 5_000, b"{"])
def test_description_that_cannot_be_decoded_is_named(tmp_path, content):
    (tmp_path / RUN).write_bytes(content)
    with pytest.raises(Corrupt, match=rf"{tmp_path}/{RUN} is not a valid run description"):
        read_run(tmp_path)


def test_run_with_a_huge_position_is_refused(tmp_path, folder):
    """Positions are 64-bit numbers of Parquet."""
    with open_timeline(folder) as timeline:
        run = archive(timeline, str(tmp_path), NAME)
    content = (tmp_path / NAME / RUN).read_bytes()
    huge = content.replace(b'"position":' + str(run.position).encode(), b'"position":' + b"9" * 30)
    assert huge != content
    (tmp_path / NAME / RUN).write_bytes(huge)
    with pytest.raises(Corrupt, match="is not a valid run description"):
        read_run(tmp_path / NAME)
