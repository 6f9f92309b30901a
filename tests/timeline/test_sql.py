"""Guards `strata sql`: it reads the tables of one run; it writes nothing and reads nothing else.

Every statement goes through the command, on a live log and on an archived run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from strata.cli import build_app
from strata.errors import Corrupt, InvalidArgument, StrataError
from strata.timeline.export import sql_queries
from strata.timeline.export.event_files import write_parquet
from strata.timeline.read.run_timeline import Timeline
from tests.timeline.fleet import Fleet

FORBIDDEN = (
    "COPY (SELECT 1) TO '{inside}'",
    "COPY (SELECT 1) TO '{outside}'",
    "COPY events TO '{outside}' (FORMAT parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{inside}'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{inside}'",
    "SELECT 1; COPY (SELECT 1) TO '{inside}'",
    "EXPORT DATABASE '{outside}'",
    "ATTACH '{outside}' AS other",
    "ATTACH '{cache}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "RESET lock_configuration",
    "PRAGMA enable_external_access = true",
    "PRAGMA temp_directory = '{outside}'",
    "CALL enable_logging(storage = 'file', storage_path = '{outside}')",
    "DROP TABLE events",
    "DROP VIEW steps",
    "CREATE TABLE mine AS SELECT 1",
    "INSERT INTO events (node) VALUES ('w9')",
    "DELETE FROM events",
    "CHECKPOINT",
    "SELECT * FROM read_csv('{readable}')",
    "SELECT * FROM read_text('{readable}')",
    "SELECT * FROM '{readable}'",
    "SELECT * FROM glob('/etc/*')",
    "SELEC 1",
    "",
)


def strata(*arguments):
    result = CliRunner().invoke(build_app(), arguments)
    if isinstance(result.exception, StrataError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def live(crashed, tmp_path_factory):
    """A data folder whose log was queried before."""
    folder = crashed.saved(tmp_path_factory.mktemp("sql") / "live")
    strata("sql", "SELECT count(*) FROM events", "--data", str(folder))
    return folder


@pytest.fixture(scope="module")
def kept(crashed, tmp_path_factory):
    """An archived run."""
    folder = tmp_path_factory.mktemp("runs") / "kept"
    write_parquet(crashed.timeline, folder)
    return folder


class TestReadOnly:
    @pytest.mark.parametrize("text", FORBIDDEN)
    @pytest.mark.parametrize("archived", [False, True])
    def test_statement_that_is_not_a_query_is_refused_and_writes_nothing(
        self, live, kept, tmp_path, text, archived
    ):
        folder = kept if archived else live
        readable = tmp_path / "other.csv"
        readable.write_text("a,b\n1,2\n")
        held = contents(folder)
        file = "facts.parquet" if archived else sql_queries.CACHE
        places = {
            "inside": folder / file,
            "outside": tmp_path / "written",
            "cache": folder / sql_queries.CACHE,
            "readable": readable,
        }
        with pytest.raises(InvalidArgument):
            strata("sql", text.format(**places), "--data", str(folder))
        assert contents(folder) == held
        assert not (tmp_path / "written").exists()

    def test_archive_that_was_overwritten_is_named_as_damaged(self, kept, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(kept, copy)
        duckdb.sql(f"COPY (SELECT 1 AS node) TO '{copy / 'facts.parquet'}' (FORMAT parquet)")
        with pytest.raises(Corrupt, match=r"facts\.parquet"):
            strata("timeline", "--data", str(copy))

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT count(*) AS n FROM events",
            "WITH a AS (SELECT 1 AS n) FROM a",
            "DESCRIBE events",
            "SHOW TABLES",
            "SUMMARIZE steps",
            "EXPLAIN SELECT * FROM steps",
            "EXPLAIN ANALYZE SELECT count(*) FROM steps",
        ],
    )
    def test_queries_are_answered(self, kept, text):
        assert strata("sql", text, "--data", str(kept), "--json")


@pytest.mark.parametrize("name", ["it's", 'a "quoted" run', "a [0-9]* run"])
def test_path_may_hold_any_character(crashed, timeline, tmp_path, name):
    text = "SELECT count(*) AS n FROM events"
    live = crashed.saved(tmp_path / name)
    write_parquet(timeline, tmp_path / "runs" / name)
    found = [
        strata("sql", text, "--data", str(folder), "--json")
        for folder in (live, tmp_path / "runs" / name)
    ]
    assert found[0] == found[1]


def test_columns_of_one_name_are_all_in_the_json(folder):
    text = "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n"
    shown = json.loads(strata("sql", text, "--data", str(folder), "--json"))
    assert shown == {"n": 1, "n_2": 2, "n_1": 3, "n_3": 4}


def test_every_table_of_the_documents_is_listed(crashed):
    listed = {name for (name,) in sql_queries.query(crashed.timeline, "SHOW TABLES").rows}
    assert listed == {"events", sql_queries.ACTIVITY, *sql_queries.VIEWS}


class TestTemporaryDecode:
    @pytest.fixture
    def scratch(self, tmp_path, monkeypatch):
        place = tmp_path / "scratch"
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        return place

    def test_decode_of_a_folder_that_cannot_be_written_is_removed(
        self, crashed, tmp_path, scratch, monkeypatch
    ):
        folder = crashed.saved(tmp_path / "live")
        allowed = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode, **how: path != folder and allowed(path, mode, **how)
        )
        assert "n" in strata("sql", "SELECT count(*) AS n FROM events", "--data", str(folder))
        assert not (folder / sql_queries.CACHE).exists()
        assert list(scratch.iterdir()) == []

    def test_decode_beside_another_query_is_removed(self, crashed, tmp_path, scratch):
        folder = crashed.saved(tmp_path / "live")
        strata("sql", "SELECT 1 AS n", "--data", str(folder))
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import duckdb, sys; db = duckdb.connect({str(folder / sql_queries.CACHE)!r}); "
                "print('held', flush=True); sys.stdin.read()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout.readline() == b"held\n"
            shown = strata("sql", "SELECT count(*) AS n FROM events", "--data", str(folder))
            assert "n" in shown
            assert list(scratch.iterdir()) == []
        finally:
            holder.communicate()


def test_rollback_voids_the_steps_after_its_target_only():
    fleet = Fleet(2, samples=2400, batch=12)
    fleet.read(92)
    fleet.finish(92)
    fleet.applied = dict.fromkeys(fleet.applied, 92)
    finish_save = fleet.begin_save()
    fleet.train(8)  # one commit of a hundred steps, within which the checkpoint lies
    finish_save()
    for worker in list(fleet.row.members):
        fleet.lose(worker)
    for worker in ("w0", "w1"):
        fleet.join(worker)
    assert fleet.sync() == 92
    fleet.train(4)
    rows = sql_queries.query(
        Timeline(fleet.store, "rollback"),
        "SELECT first_step, last_step, first_sample, stop_sample, voided FROM samples "
        "ORDER BY committed_at, first_step",
    ).rows
    assert rows == [
        (0, 91, 0, 92 * 12, False),
        (92, 99, 92 * 12, 100 * 12, True),
        (92, 95, 92 * 12, 96 * 12, False),
    ]
