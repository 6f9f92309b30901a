"""Guards the log of a long run: events that moved to stretches beside the log are read as if
they were still in it, none is lost or read twice, and missing events are reported."""

import shutil

import msgspec
import pytest

from strata.config import Settings
from strata.core.events import COORDINATOR
from strata.core.record.event_codec import CODEC
from strata.errors import Corrupt, Unavailable
from strata.store.event_batches import pack, unpack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteReader, SqliteStore, database
from strata.timeline.archive.archive_job import Archive, MoveOut, Verify, carry_out
from strata.timeline.archive.parquet_log import EVENTS
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.archive.segmented_log import STRETCHES, SegmentedLog
from strata.timeline.audit.sample_audit import audit
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.log_trust import examine
from tests.timeline.planted import Planted, worker

ALL = 10**9
TASK = "train-1"


@pytest.fixture(scope="module")
def run():
    return Planted(lambda sim: worker(sim).exit(137, 9), steps=60)


@pytest.fixture(scope="module")
def origin(run, tmp_path_factory):
    return run.saved(tmp_path_factory.mktemp("stretches") / "data")


@pytest.fixture
def data(origin, tmp_path):
    return shutil.copytree(origin, tmp_path / "data")


def streams_of(data, task=TASK) -> list[tuple[str, int]]:
    with SqliteReader(data / "log.db", CODEC) as log:
        wanted = Window(node=COORDINATOR, kinds=frozenset({"WorkerRegistered"}))
        joined = [event.body for _, _, event in log.query(wanted, ALL)]
        return [(body.worker, body.incarnation) for body in joined if body.task == task]


def move(data, name=f"{TASK}-000001", release=True, streams=None):
    """Write a stretch, and release its events as the coordinator does."""
    job = MoveOut(TASK, streams or streams_of(data), name, Settings(data_dir=str(data)))
    held = carry_out(job)
    if release:
        let_go(data, held)
    return held


def let_go(data, held):
    with SqliteStore(data / "log.db", CODEC) as store:
        for each in held:
            store.release(each.node, each.incarnation, each.stop, each.start)


def everything(reader) -> list:
    return list(reader.query(limit=ALL))


def all_answers(data) -> dict:
    """The answers of all ways to read a folder."""
    with open_timeline(data) as timeline:
        log, queries = timeline.reader, TimelineQueries(timeline)
        middle_ns = (timeline.extent().from_ns + timeline.extent().to_ns) // 2
        batches = [
            (batch.node, batch.incarnation, event)
            for batch in log.batches()
            for event in unpack(CODEC, batch)
        ]
        return {
            "all": everything(log),
            "batches": sorted(batches, key=repr),
            "headers": sum(each.count for each in log.headers()),
            "window": list(log.query(Window(middle_ns - 10**10, middle_ns), ALL)),
            "first": list(log.query(limit=700)),
            "nodes": {node: list(log.query(Window(node=node), ALL)) for node, _ in log.streams()},
            "streams": {each: list(log.stream(*each)) for each in log.streams()},
            "part": {each: list(log.stream(*each, 10, 50)) for each in log.streams()},
            "numbers": [(each, log.last_seq(*each), log.gaps(*each)) for each in log.streams()],
            "tallies": log.tallies(),
            "audit": audit(log, TASK),
            "trust": queries.trust(),
            "why": queries.why("changed", params={"task": TASK}),
            "slow": queries.why("slow", params={"worker": f"{TASK}-w0"}),
            "story": queries.story(f"worker:{TASK}-w0", limit=100),
            "jsonl": list(queries.export("jsonl", None, None)),
        }


@pytest.fixture(scope="module")
def truth(origin):
    return all_answers(origin)


@pytest.mark.parametrize("moves", [1, 3])
def test_every_answer_is_the_same_after_events_moved(data, truth, moves):
    before = len(truth["all"])
    for number in range(1, moves + 1):
        assert move(data, f"{TASK}-{number:06}")
    with SqliteReader(data / "log.db", CODEC) as log:
        left = [each for each in everything(log) if each[0] != COORDINATOR]
        own = [each for each in left if each[:2] in set(streams_of(data))]
        assert len(own) <= before / 2**moves
    answers = all_answers(data)
    for asked, answer in truth.items():
        assert answers[asked] == answer, asked


def test_interrupted_move_returns_no_event_twice(data, truth):
    held = move(data, release=False)
    assert all_answers(data) == truth
    let_go(data, held[:1])
    assert all_answers(data) == truth
    with SqliteReader(data / "log.db", CODEC) as log:
        assert list(SegmentedLog(log, data / STRETCHES).unreleased()) == [f"{TASK}-000001"]
    let_go(data, held)
    assert all_answers(data) == truth
    with SqliteReader(data / "log.db", CODEC) as log:
        assert SegmentedLog(log, data / STRETCHES).unreleased() == {}


def test_late_event_between_moved_ones_is_kept(data):
    with SqliteStore(data / "log.db", CODEC) as store:
        late = list(store.stream(*streams_of(data)[0]))[-1]
        store.append(
            [],
            incarnation=1,
            expected=store.position,
            batches=[
                pack(CODEC, "x", 1, [msgspec.structs.replace(late, seq=seq)]) for seq in (0, 2)
            ],
        )
    held = move(data, release=False, streams=[("x", 1)])
    assert [(each.start, each.stop) for each in held] == [(0, 1), (2, 3)]
    with SqliteStore(data / "log.db", CODEC) as store:
        sent = [pack(CODEC, "x", 1, [msgspec.structs.replace(late, seq=1)])]
        store.append([], incarnation=1, expected=store.position, batches=sent)
    let_go(data, held)
    with open_timeline(data) as timeline:
        assert [event.seq for event in timeline.reader.stream("x", 1)] == [0, 1, 2]


def test_reader_is_refused_when_events_move_meanwhile(data, monkeypatch):
    monkeypatch.setattr(database, "TURN_ROWS", 4)
    held = move(data, release=False)
    with open_timeline(data) as timeline:
        asking = timeline.reader.query(limit=ALL)
        stream = timeline.reader.stream(*streams_of(data)[0])
        next(asking), next(stream)
        waiting = timeline.reader.query(limit=5)
        let_go(data, held)
        for reading in (asking, stream, waiting):
            with pytest.raises(Unavailable, match="moved"):
                list(reading)


def test_missing_stretch_is_a_grave_finding_and_a_hole(data, truth):
    assert truth["trust"].verdict == "yes"
    move(data)
    move(data, f"{TASK}-000002")
    shutil.rmtree(data / "stretches" / f"{TASK}-000002")
    with open_timeline(data) as timeline:
        trust = TimelineQueries(timeline).trust()
        assert trust.verdict == "no"
        absent = [each for each in trust.findings if each.kind == "absent"]
        assert {each.node for each in absent} <= {node for node, _ in streams_of(data)}
        assert absent
        assert all(trust.holes_of(each.node, *span(timeline)) for each in absent)


def span(timeline) -> tuple[int, int]:
    extent = timeline.extent()
    return extent.from_ns, extent.to_ns


def test_damaged_stretch_is_reported_and_the_rest_is_read(data, truth):
    move(data)
    path = data / "stretches" / f"{TASK}-000001" / EVENTS
    path.write_bytes(path.read_bytes()[:-200])
    damage = []
    with open_timeline(data) as timeline:
        with pytest.raises(Corrupt):
            everything(timeline.reader)
        rest = list(timeline.reader.query(limit=ALL, on_damage=damage.append))
        assert damage
        assert 0 < len(rest) < len(truth["all"])
        assert list(timeline.records())
        assert TimelineQueries(timeline).trust().verdict == "no"


def test_stretch_that_differs_from_the_log_is_not_published(data, monkeypatch):
    from strata.timeline.archive import segment_writer

    written = segment_writer.tables

    def lossy(records, exact):
        return written(list(records)[:-1], exact)

    monkeypatch.setattr(segment_writer, "tables", lossy)
    with pytest.raises(Corrupt, match="differ from the log"):
        move(data)
    with open_timeline(data) as timeline:
        assert timeline.reader.names() == []


def test_archived_run_has_the_moved_events(run, data, truth):
    for number in (1, 2):
        move(data, f"{TASK}-{number:06}")
    task = run.sim.coordinator.kernel.state.tasks[TASK]
    runs, until_ns = str(data / "runs"), task.ended_ns + 60 * 10**9
    carry_out(Archive(TASK, until_ns, runs, "kept", str(data), Settings(data_dir=str(data))))
    with open_timeline(data / "runs") as kept:
        own = set(streams_of(data))
        assert audit(kept.reader, TASK) == truth["audit"]
        found = [each for each in everything(kept.reader) if each[0] != COORDINATOR]
        assert found == [each for each in truth["all"] if each[:2] in own]
    held = carry_out(Verify(runs, "kept", Settings(data_dir=str(data))))
    assert sum(each.events for each in held) == len(found)


def test_nothing_moves_out_of_a_damaged_log(data):
    with SqliteStore(data / "log.db", CODEC) as store:
        store._db.execute("UPDATE head SET checksum = 0")
    with pytest.raises(Corrupt, match="no events are moved out of it"):
        move(data, streams=[("w", 1)])


def test_damaged_log_is_shown_with_its_stretches(data, truth):
    move(data)
    with SqliteStore(data / "log.db", CODEC) as store:
        store._db.execute("UPDATE head SET checksum = 0")
    with open_timeline(data) as timeline:
        assert timeline.notes
        assert everything(timeline.reader) == truth["all"]


def test_events_that_arrive_while_a_live_log_is_examined_are_not_missed(data):
    with open_timeline(data) as timeline:
        before = examine(timeline)
        node, incarnation = streams_of(data)[0]
        last = list(timeline.reader.stream(node, incarnation))[-1]
        with SqliteStore(data / "log.db", CODEC) as store:
            sent = [
                pack(CODEC, node, incarnation, [msgspec.structs.replace(last, seq=last.seq + 1)])
            ]
            store.append([], incarnation=1, expected=store.position, batches=sent)
        after = examine(timeline)
    assert [each.kind for each in after.findings] == [each.kind for each in before.findings]
