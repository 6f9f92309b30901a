"""Guards `strata salvage` and `strata up --salvage` on logs of real runs that were damaged."""

import json
import random
import shutil

import httpx
import numpy as np
import pytest

from strata.cli.support.exit_codes import DAMAGED, NOT_FOUND
from strata.coordinator.archive.damaged_log import damage_of, salvage_in_place, salvage_to
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.kernel import Kernel
from strata.core.cluster import CODEC
from strata.core.record.log_salvage import SKIP, FactLost, LogSalvaged
from strata.errors import AlreadyExists, InvalidArgument, NotFound
from strata.store.sqlite import SqliteStore
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.audit.sample_audit import audit
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.log_trust import examine
from strata.timeline.read.past_states import state_at
from tests.agent.harness import Agent
from tests.cli.conftest import strata, until
from tests.cli.runs import run, script

SAVING = """
import os, time, strata
with strata.join(checkpoint_every=20) as run:
    state = run.restore({"count": 0})
    while run.steps < 10**6 and not os.path.exists("finish"):
        try:
            with run.step():
                state["count"] += 1
                time.sleep(0.005)
        except strata.GenerationChanged:
            state = run.recover()
"""

TRAINED = """
import numpy as np, strata
with strata.join(checkpoint_every=50) as run:
    state = run.restore({"sum": np.zeros(1)})
    for batch in run.batches(strata.open_dataset("numbers.npy"), batch_size=10, epochs=1):
        with run.step():
            state["sum"] += run.average(float(len(batch)))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The data folder of a run of two workers, and its task."""
    folder = tmp_path_factory.mktemp("recorded")
    np.save(folder / "numbers.npy", np.arange(4000.0))
    code, said = run(folder, script(folder, TRAINED), "--workers", "2", "--data-dir", "data")
    assert code == 0, said
    with open_timeline(folder / "data") as timeline:
        assert audit(timeline.reader, "script-1").verdict == "proven"
    return folder / "data"


@pytest.fixture
def data(recorded, tmp_path):
    shutil.copytree(recorded, tmp_path / "data")
    return tmp_path / "data"


def salvaged_facts(folder):
    """The facts and the state that a coordinator reads when it starts in the folder."""
    with SqliteStore(folder / "log.db", CODEC) as store:
        kernel = Kernel(store, read_clock)
        return list(store.read()), kernel.state


def damage_row(folder, below):
    """Damage the last row of facts that begins before a position; returns its first position."""
    with SqliteStore(folder / "log.db", CODEC) as store:
        sql = "SELECT max(position), payload FROM facts WHERE position < ?"
        position, payload = store._db.execute(sql, (below,)).fetchone()
    content = (folder / "log.db").read_bytes()
    (folder / "log.db").write_bytes(content.replace(payload, payload[:-1] + b"?"))
    return position


def require_goes_on(folder, report):
    """Require that the salvaged log replays, names lost positions, and raised its counters."""
    assert damage_of(folder) == []
    facts, state = salvaged_facts(folder)
    assert [event.seq for event in facts] == list(range(len(facts)))
    lost = {event.seq for event in facts if isinstance(event.body, FactLost)}
    assert lost == {at for each in report.lost for at in range(each.first, each.stop)}
    (salvaged,) = [event.body for event in facts if isinstance(event.body, LogSalvaged)]
    assert state.unknown_from is None
    assert state.position == report.position == len(facts)
    if report.lost:
        assert state.last_incarnation >= SKIP
        assert not any(worker.alive for worker in state.workers.values())
    assert salvaged.base == report.base


@pytest.mark.parametrize("part", range(20))
def test_log_cut_at_any_offset_is_salvaged(data, part):
    log = data / "log.db"
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.truncate(size * part // 20 + random.Random(part).randrange(size // 40))
    assert damage_of(data)
    require_goes_on(data, salvage_in_place(data))
    (aside,) = (data / "damaged").iterdir()
    assert (aside / "log.db").stat().st_size < size


@pytest.mark.parametrize("seed", range(8))
def test_log_with_flipped_bits_is_salvaged(data, seed):
    log, chance = data / "log.db", random.Random(seed)
    content = bytearray(log.read_bytes())
    for _ in range(40):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    log.write_bytes(content)
    assert damage_of(data)
    require_goes_on(data, salvage_in_place(data))


def test_log_with_a_torn_last_page_is_salvaged(data):
    log = data / "log.db"
    content = log.read_bytes()
    log.write_bytes(content[:-2048] + bytes(2048))
    if damage_of(data):
        require_goes_on(data, salvage_in_place(data))


def test_lost_log_file_is_salvaged_to_a_log_of_lost_facts(data):
    (data / "log.db").unlink()
    report = salvage_in_place(data)
    require_goes_on(data, report)
    assert report.facts == 0
    assert report.lost[0].first == 0


def test_lost_write_ahead_log_costs_only_its_facts(tmp_path, recorded):
    """The newest facts are in the write-ahead log alone while a coordinator runs."""
    live, data = tmp_path / "live", tmp_path / "data"
    shutil.copytree(recorded, live)
    with SqliteStore(live / "log.db", CODEC) as store:
        kernel = Kernel(store, read_clock)
        kernel.start("other", "0")
        shutil.copytree(live, data)
    (data / "log.db-wal").unlink()
    assert "acknowledged" in damage_of(data)[0]
    report = salvage_in_place(data)
    require_goes_on(data, report)
    assert [(each.first, each.stop) for each in report.lost] == [(report.facts, report.facts + 1)]


def test_snapshot_behind_lost_facts_gives_the_state(data):
    with SqliteStore(data / "log.db", CODEC) as store:
        Kernel(store, read_clock, snapshot_every=1).start("other", "0")
        end = store.position
    gone = damage_row(data, 20)
    assert damage_of(data)
    report = salvage_in_place(data)
    require_goes_on(data, report)
    assert report.base == end
    assert report.unfolded == []
    assert report.lost[0].first == gone
    assert report.lost[0].kinds, "the damaged row still names its kinds"


def test_salvaged_log_is_not_proven_and_trust_names_the_lost_positions(data):
    damage_row(data, 20)
    report = salvage_in_place(data)
    assert report.lost
    with open_timeline(data) as timeline:
        found = audit(timeline.reader, "script-1")
        assert found.verdict == "unproven"
        trust = examine(timeline)
        past = state_at(timeline, report.lost[0].stop)
        assert past.position == report.lost[0].first
        assert "lost" in past.doubt
        assert state_at(timeline, timeline.position).doubt == ""
    assert trust.verdict == "no"
    for each in report.lost:
        named = f"@{each.first} to @{each.stop - 1}"
        assert any(named in finding.text for finding in trust.findings)
        assert any(named in text for text in found.damaged)


def test_salvage_does_not_prove_that_a_worker_died(data):
    """The salvage declares every worker lost that was alive in the last known state."""
    damage_row(data, 20)
    assert salvage_in_place(data).lost
    with open_timeline(data) as timeline:
        answer = TimelineQueries(timeline).why("lost")
    assert answer.verdict == "unknown", answer
    assert "lost part of the log" in answer.answer
    assert "the damaged log was salvaged" in answer.chain[0].text


def test_damaged_log_that_is_only_read_is_not_proven_either(recorded, tmp_path):
    """The end of the log is lost: it is read from a copy, and nothing is changed."""
    live, data = tmp_path / "live", tmp_path / "data"
    shutil.copytree(recorded, live)
    with SqliteStore(live / "log.db", CODEC) as store:
        end = store.position
        Kernel(store, read_clock).start("other", "0")
        shutil.copytree(live, data)
    (data / "log.db-wal").unlink()
    with open_timeline(data) as timeline:
        assert timeline.position == end + 1
        assert audit(timeline.reader, "script-1").verdict == "unproven"
        assert any(f"@{end} to @{end}" in each.text for each in examine(timeline).findings)
    assert damage_of(data)


def test_damaged_run_does_not_hide_the_others_in_the_list(data, tmp_path):
    shutil.copytree(data, tmp_path / "destroyed")
    (tmp_path / "destroyed" / "log.db").write_bytes(b"")
    ended = strata("runs", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "script-1" in ended.stdout
    assert "run destroyed is left out: " in ended.stderr


def test_folder_and_subject_that_do_not_exist_are_not_found(data, tmp_path):
    for verb in (["runs", "nowhere"], ["story", "worker:nobody", "--data", str(data)]):
        for flags in ([], ["--json"]):
            ended = strata(*verb, *flags, cwd=tmp_path)
            assert ended.returncode == NOT_FOUND
            assert ended.stdout == ""


def test_time_that_was_lost_is_not_counted_as_the_workers(data):
    """A salvage may follow days after the damage; the time in between is unknown."""
    with open_timeline(data) as timeline:
        whole = audit(timeline.reader, "script-1").effective
    damage_row(data, 20)
    salvaged = salvage_in_place(data)
    assert salvaged.lost
    with open_timeline(data) as timeline:
        (record,) = timeline.records(kinds={"LogSalvaged"})
        found = audit(timeline.reader, "script-1").effective
        shown = TimelineQueries(timeline).lanes(None, None).lanes
        before_ns = max(
            r.at_ns for r in timeline.records(None, record.at_ns) if r.kind != "FactLost"
        )
    assert found.total_s <= whole.total_s + 0.001
    assert shown
    for lane in shown:
        assert all(span.to_ms <= before_ns / 1e6 + 1 for span in lane.spans if span.kind != "lost")


@pytest.mark.parametrize("size", [0, 100, 4096])
def test_destroyed_log_is_damaged_and_not_empty(data, size):
    with (data / "log.db").open("r+b") as file:
        file.truncate(size)
    ended = strata("timeline", "--data", str(data), cwd=data)
    assert ended.returncode == DAMAGED
    assert "nothing is recorded" not in ended.stderr


def test_salvaged_log_that_is_damaged_again_is_salvaged_again(data):
    damage_row(data, 30)
    first = salvage_in_place(data)
    damage_row(data, 10)
    second = salvage_in_place(data)
    assert damage_of(data) == []
    facts, state = salvaged_facts(data)
    assert state.unknown_from is None
    assert [event.seq for event in facts] == list(range(len(facts)))
    assert second.position > first.position
    lost = {event.seq for event in facts if isinstance(event.body, FactLost)}
    assert lost >= {each.first for each in (*first.lost, *second.lost)}
    assert state.last_incarnation > SKIP
    assert len(list((data / "damaged").iterdir())) == 2


def test_salvage_writes_a_new_folder_and_lists_what_is_lost(data, tmp_path):
    damage_row(data, 20)
    files = [path for path in data.rglob("*") if path.is_file() and path.suffix != ".lock"]
    before = {path: path.read_bytes() for path in files}
    ended = strata("salvage", "data", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "lost: facts @" in ended.stdout
    assert "next: strata up --data-dir data-salvaged" in ended.stdout
    assert {path: path.read_bytes() for path in before} == before
    assert damage_of(tmp_path / "data-salvaged") == []
    assert (tmp_path / "data-salvaged" / "checkpoints").is_dir()
    as_json = strata("salvage", "data", "--to", "other", "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout)["lost"][0]["first"] >= 0


def test_salvage_refuses_what_it_cannot_write_or_read(data, tmp_path):
    with pytest.raises(AlreadyExists):
        salvage_to(data, tmp_path)
    with pytest.raises(InvalidArgument, match="inside"):
        salvage_to(data, data / "new")
    with pytest.raises(NotFound):
        salvage_to(tmp_path / "none", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_up_refuses_a_damaged_log_and_names_the_verbs(data, tmp_path):
    with (data / "log.db").open("r+b") as file:
        file.truncate((data / "log.db").stat().st_size // 2)
    ended = strata("up", "--data-dir", "data", "--http-port", "0", "--grpc-port", "0", cwd=tmp_path)
    assert ended.returncode != 0
    assert "strata salvage DATA_DIR" in ended.stderr
    assert "strata up --salvage" in ended.stderr


def test_task_continues_after_the_coordinator_lost_the_end_of_the_log(up, tmp_path):
    """The coordinator is killed, its log cut, `up --salvage` runs, and new incarnations train."""
    (tmp_path / "train.py").write_text(SAVING, "utf-8")
    up.start()
    agent = Agent(tmp_path, f"127.0.0.1:{up.grpc_port}", slots=2)
    try:
        task = submitted(up, tmp_path)
        until(lambda: saved(up, task) >= 2, 60)
        assert up.running.end() == 0, "the write-ahead log goes into the main file"
        up.start()
        until(lambda: saved(up, task) >= 4, 60)
        before = workers_of(up)
        up.kill()
        (tmp_path / "data" / "log.db-wal").unlink()
        up.start("--salvage")
        said = "".join(up.running.err)
        assert "lost: facts @" in said
        shown = get(up, "dashboard")
        assert any("the log was damaged" in item["text"] for item in shown["attention"])
        until(lambda: running_again(up, task, before), 60)
        status = strata("status", "--url", up.url, cwd=tmp_path)
        assert "the log was damaged" in status.stdout
    finally:
        (tmp_path / "finish").write_text("")
        agent.close()


def submitted(up, folder):
    body = {"name": "train", "entry": str(folder / "train.py"), "worker_count": 2}
    answer = httpx.post(f"{up.url}/api/tasks", json={**body, "env": {"PWD": str(folder)}})
    return answer.raise_for_status().json()["task_id"]


def get(up, path):
    return httpx.get(f"{up.url}/api/{path}").raise_for_status().json()


def saved(up, task):
    return sum(each["status"] == "completed" for each in get(up, "checkpoints"))


def workers_of(up):
    return {each["id"]: each["incarnation"] for each in get(up, "workers")}


def running_again(up, task, before):
    found = {each["id"]: each for each in get(up, "tasks")}[task]
    now = workers_of(up)
    return (
        found["status"] == "running"
        and set(now) >= set(before)
        and all(now[worker] > SKIP for worker in before)
    )
