"""Guards the audit of a damaged record: it names the damage, reports the affected steps as
unproven, and never reports damage as a lost or repeated sample."""

import json
import random
import shutil
import sqlite3

import httpx
import pytest

from strata.errors import Corrupt
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.audit.sample_audit import audit
from strata.timeline.export.event_files import write_parquet
from strata.timeline.read.log_trust import examine
from tests.cli.conftest import strata
from tests.coordinator.rest.served import Coordinator


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the run's log that a test may damage."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in trained[0].glob("log.db*"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def task(trained):
    with open_timeline(trained[0]) as timeline:
        return next(timeline.records(kinds={"TaskSubmitted"})).text("task")


def flip(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one bit inverted."""
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def damage(log, table: str, key: str, number: int) -> None:
    """Flip one bit of the payload of a row."""
    with sqlite3.connect(log) as db:
        found = db.execute(f"SELECT payload FROM {table} WHERE {key} = ?", (number,)).fetchone()
        payload = flip(found[0], random.Random(number))
        db.execute(f"UPDATE {table} SET payload = ? WHERE {key} = ?", (payload, number))


def audited(folder, task):
    with open_timeline(folder) as timeline:
        return audit(timeline.reader, task)


def test_flipped_bit_in_a_batch_of_events_is_named_and_leaves_its_steps_unproven(copy, task):
    with sqlite3.connect(copy / "log.db") as db:
        rows = db.execute("SELECT id, node, first_seq, count, kinds FROM batches").fetchall()
    number, node, first, count, _ = next(row for row in rows if "TrainingFinished" in row[4])
    damage(copy / "log.db", "batches", "id", number)
    found = audited(copy, task)
    assert found.verdict == "unproven"
    assert f"events {first} to {first + count - 1} of {node}" in found.damaged[0]
    assert 0 < found.feeds[0].unproven < found.feeds[0].steps
    assert found.feeds[0].contradicted == 0


def test_log_with_a_damaged_batch_is_not_called_whole(copy):
    damage(copy / "log.db", "batches", "id", 2)
    with open_timeline(copy) as timeline:
        trust = examine(timeline)
    assert trust.verdict == "no"
    assert "row 2 of batches is damaged" in trust.findings[0].text
    assert trust.holes_of("any worker", trust.holes[0].from_ns, trust.holes[0].to_ns)
    shown = strata("at", "end", "--data", str(copy), cwd=copy)
    assert "✗ incomplete" in shown.stdout


def test_sql_says_that_rows_are_missing(copy):
    query = "select count(*) from events"
    whole = strata("sql", query, "--data", str(copy), "--json", cwd=copy)
    assert whole.returncode == 0
    assert whole.stderr == ""
    damage(copy / "log.db", "batches", "id", 2)
    (copy / "timeline-v1.duckdb").unlink()
    for _ in range(2):  # the second query finds the rows decoded
        shown = strata("sql", query, "--data", str(copy), "--json", cwd=copy)
        assert shown.returncode == 0
        assert shown.stdout != whole.stdout
        assert "row 2 of batches is damaged" in json.loads(shown.stderr)["note"]


def test_flipped_bit_in_the_facts_is_named_and_leaves_later_steps_unproven(copy, task):
    whole = audited(copy, task)
    assert whole.verdict == "proven"
    with sqlite3.connect(copy / "log.db") as db:
        rows = db.execute("SELECT position, count, kinds FROM facts ORDER BY position").fetchall()
    commits = [(position, count) for position, count, kinds in rows if "StepsCommitted" in kinds]
    position, count = commits[len(commits) // 2]
    damage(copy / "log.db", "facts", "position", position)
    found = audited(copy, task)
    assert found.verdict == "unproven"
    assert f"facts @{position} to @{position + count - 1}" in found.damaged[0]
    assert "not compared" in found.damaged[0]
    assert found.effective is None
    assert 0 < found.committed < whole.committed
    assert found.feeds[0].proven == found.feeds[0].steps == found.committed
    assert found.feeds[0].contradicted == 0
    shown = strata("audit", task, "--data", str(copy), cwd=copy)
    assert shown.returncode == 3, shown.stderr
    assert f"facts @{position}" in shown.stdout


@pytest.mark.parametrize(
    ("table", "kind"), [("batches", "TrainingFinished"), ("facts", "StepsCommitted")]
)
def test_rest_answers_unproven(copy, task, table, kind):
    for file in copy.glob("log.db*"):
        file.rename(copy / file.name.replace("log.db", "log"))
    with Coordinator(copy) as served:  # a coordinator does not start on damaged facts
        with sqlite3.connect(copy / "log") as db:
            key = "id" if table == "batches" else "position"
            rows = db.execute(f"SELECT {key} FROM {table} WHERE kinds LIKE '%{kind}%'").fetchall()
        damage(copy / "log", table, key, rows[0][0])
        answer = httpx.get(f"{served.url}/api/tasks/{task}/audit")
    assert answer.status_code == 200, answer.text
    assert answer.json()["verdict"] == "unproven"
    assert answer.json()["damaged"]


class TestArchive:
    @pytest.fixture
    def kept(self, trained, tmp_path):
        folder = tmp_path / "kept"
        with open_timeline(trained[0]) as timeline:
            write_parquet(timeline, folder)
        return folder

    def test_archive_with_a_damaged_group_of_events_is_not_called_whole(self, kept):
        data = (kept / "events.parquet").read_bytes()
        (kept / "events.parquet").write_bytes(data[:2000] + bytes(8) + data[2008:])
        with open_timeline(kept) as timeline:
            trust = examine(timeline)
        assert trust.verdict == "no"
        assert "row group 0" in trust.findings[0].text

    @pytest.mark.parametrize("file", ["events.parquet", "facts.parquet"])
    def test_flipped_bit_in_an_archive_is_never_taken_for_a_record(self, kept, task, file):
        with open_timeline(kept) as timeline:
            records = {record.ref: record for record in timeline.records()}
        rng = random.Random(file)
        data = (kept / file).read_bytes()
        for _ in range(16):
            (kept / file).write_bytes(flip(data, rng))
            try:
                timeline = open_timeline(kept)
            except Corrupt:  # of so short a run all facts are one group of rows
                continue
            assert audit(timeline.reader, task).verdict in ("proven", "unproven")
            assert all(record == records[record.ref] for record in timeline.records())
