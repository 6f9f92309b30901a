"""The SQLite store: one writer, readers beside it, full disks, missing permissions, foreign
files."""

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from strata.errors import Conflict, Corrupt, NotFound, Unavailable, UnknownKind
from strata.store.event_store import NEVER_NS, Window
from strata.store.sql import table_rows
from strata.store.sqlite import SqliteReader, SqliteStore
from tests.store.kinds import CODEC, batch, contents, event, events, fill

ROOT = Path(__file__).parents[2]
SETTINGS = {"journal_mode": "wal", "synchronous": 2, "page_size": 4_096}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.db"


@pytest.fixture
def store(path):
    with SqliteStore(path, CODEC) as opened:
        yield opened


class TestOneWriter:
    def test_second_writer_is_refused_with_the_pid_of_the_first(self, store, path):
        with pytest.raises(Conflict, match=f"pid {os.getpid()}"):
            SqliteStore(path, CODEC)
        fill(store, rows=1)

    def test_also_in_another_process(self, store, path):
        code = (
            "import sys; from strata.store.sqlite import SqliteStore; "
            "from tests.store.kinds import CODEC; SqliteStore(sys.argv[1], CODEC)"
        )
        command = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"locked by another coordinator, pid {os.getpid()}" in done.stderr

    def test_closing_releases_the_lock(self, path):
        for _ in range(3):
            store = SqliteStore(path, CODEC)
            fill(store, rows=1)
            store.close()
            store.close()
        assert SqliteReader(path, CODEC).position == 30

    def test_full_disk_is_reported_when_locking(self, path):
        path.with_name("log.db.lock").symlink_to("/dev/full")
        with pytest.raises(Unavailable, match=r"lock .* cannot be written: No space left"):
            SqliteStore(path, CODEC)

    def test_failed_opening_releases_the_lock(self, path):
        path.write_bytes(b"something else entirely" * 400)
        for _ in range(2):
            with pytest.raises(Corrupt):
                SqliteStore(path, CODEC)

    def test_writer_that_got_past_the_lock_cannot_win_too(self, store, path):
        fill(store, rows=1)
        path.with_name("log.db.lock").unlink()
        with SqliteStore(path, CODEC) as second:
            second.append([event(10)], incarnation=2, expected=10)
            with pytest.raises(Conflict):
                store.append([event(10)], incarnation=1, expected=10)
        store.append([event(11)], incarnation=1, expected=11)
        assert [number for _, number, _ in store.query()][-2:] == [2, 1]

    def test_closed_store_raises(self, path):
        store = SqliteStore(path, CODEC)
        store.close()
        for call in (
            lambda: store.append([event(0)], incarnation=1, expected=0),
            lambda: list(store.query()),
            lambda: store.position_at(0),
        ):
            with pytest.raises(Unavailable, match="closed"):
                call()


class TestReaders:
    def test_reader_sees_what_the_writer_commits(self, store, path):
        fill(store, rows=1)
        with SqliteReader(path, CODEC) as reader:
            for _ in range(3):
                assert contents(reader) == contents(store)
                assert reader.position == store.position
                fill(store, rows=1)

    @pytest.mark.parametrize(("remembered", "decoded_again"), [(10**6, 0), (15, 3), (0, 3)])
    def test_reader_remembers_no_more_events_than_it_may(
        self, store, path, monkeypatch, remembered, decoded_again
    ):
        fill(store, rows=3)
        decoded = []
        decode = SqliteReader._decode
        monkeypatch.setattr(
            SqliteReader, "_decode", lambda *given: decoded.append(given) or decode(*given)
        )
        with SqliteReader(path, CODEC, remembered) as reader:
            first = list(reader.read())
            decoded.clear()
            assert list(reader.read()) == first == list(store.read())
        assert len([given for given in decoded if given[0] is reader]) == decoded_again

    def test_there_must_be_a_store(self, path):
        with pytest.raises(NotFound):
            SqliteReader(path, CODEC)
        assert not path.exists()

    def test_threads_read_while_one_writes(self, store):
        fill(store, rows=1)
        faults, done = [], threading.Event()

        def reading():
            while not done.is_set():
                facts, found = contents(store)
                if facts != events(0, len(facts)) or len(found) % 20:
                    faults.append((len(facts), len(found)))

        threads = [threading.Thread(target=reading) for _ in range(3)]
        for thread in threads:
            thread.start()
        fill(store, rows=150)
        done.set()
        for thread in threads:
            thread.join()
        assert faults == []
        assert list(store.read()) == events(0, 1_510)

    def test_unfinished_iterators_do_not_keep_the_log_growing(self, store, path, monkeypatch):
        monkeypatch.setattr("strata.store.sqlite.database.TURN_ROWS", 2)
        fill(store, rows=10)
        unfinished = [store.read(), store.query(), store.batches()]
        for each in unfinished:
            next(each)
        fill(store, rows=1_500, facts=1)
        assert path.with_name("log.db-wal").stat().st_size < 8 * 2**20
        assert [len(list(each)) for each in unfinished] == [99, 199, 19]

    def test_log_that_a_foreign_reader_held_up_is_cut_back(self, store, path, monkeypatch):
        monkeypatch.setattr("strata.store.sqlite.database.WAL_KEPT_BYTES", 2**20)
        fill(store, rows=1)
        wal = path.with_name("log.db-wal")
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN")
        foreign.execute("SELECT count(*) FROM facts").fetchone()
        while wal.stat().st_size < 6 * 2**20:
            fill(store, rows=20)
        foreign.close()
        fill(store, rows=300, facts=1, batches=False)
        assert wal.stat().st_size < 6 * 2**20

    def test_read_is_refused_if_events_are_released_meanwhile(self, store, path, monkeypatch):
        monkeypatch.setattr("strata.store.sqlite.database.TURN_ROWS", 2)
        fill(store, rows=10)
        with SqliteReader(path, CODEC) as beside:
            readings = [store.query(), beside.query(), beside.stream("w0", 1), beside.headers()]
            for reading in readings:
                next(reading)
            store.release("w0", 1, 90)
            for reading in readings:
                with pytest.raises(Unavailable, match="moved"):
                    list(reading)

    def test_queries_use_the_indexes(self, store):
        fill(store, rows=1)
        list(store.query())
        plans = []
        for db in store._idle:
            db.set_trace_callback(plans.append)
        list(store.query(Window(5, node="w0")))
        list(store.query(Window(5, kinds=frozenset({"Started"}))))
        store.last_seq("w0", 1)
        wanted = [sql for sql in plans if "wall_from_ns <" in sql or "max(first_seq" in sql]
        details = {
            row[3] for sql in wanted for row in store._db.execute(f"EXPLAIN QUERY PLAN {sql}")
        }
        assert wanted
        for index in ("batches_node", "batches_time", "facts_time", "batches_seq", "archived_seq"):
            assert any(f"INDEX {index}" in detail for detail in details), (index, details)
        assert not [detail for detail in details if "TEMP B-TREE" in detail]
        assert not [each for each in details if each in ("SCAN facts", "SCAN batches")]


def test_store_of_the_first_release_is_opened(store, path):
    fill(store, rows=3)
    store._db.execute("CREATE TABLE archives (stop INTEGER PRIMARY KEY, path TEXT NOT NULL)")
    head = msgspec.to_builtins(store._current)
    older = msgspec.msgpack.encode([*head[:-1], 0, NEVER_NS, head[-1]])
    row = (1, table_rows._checksum("head", (1,), older), older)
    store._db.execute("UPDATE head SET id = ?, checksum = ?, fields = ?", row)
    store.close()
    with SqliteStore(path, CODEC) as opened:
        assert list(opened.read()) == events(0, 30)
        assert opened.release("w0", 1, 10) == 10
        fill(opened, rows=1)
    with SqliteReader(path, CODEC) as reader:
        assert reader.verify() == []
        assert reader.position == 40


class TestForeignFiles:
    def test_text_file(self, path):
        path.write_text("hello " * 1_000)
        with pytest.raises(Corrupt, match=r"log\.db"):
            SqliteStore(path, CODEC)
        assert path.read_text() == "hello " * 1_000

    def test_database_of_another_program(self, path):
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE facts (a)")
        other.close()
        before = path.read_bytes()
        for opening in (SqliteStore, SqliteReader):
            with pytest.raises(Corrupt, match="not a Strata event store"):
                opening(path, CODEC)
        assert path.read_bytes() == before

    def test_newer_format(self, path):
        SqliteStore(path, CODEC).close()
        newer = sqlite3.connect(path)
        newer.execute("PRAGMA user_version = 99")
        newer.close()
        with pytest.raises(UnknownKind, match="format 99"):
            SqliteStore(path, CODEC)

    def test_changed_tables_are_refused(self, path):
        SqliteStore(path, CODEC).close()
        other = sqlite3.connect(path)
        other.execute("DROP INDEX batches_time")
        other.close()
        with pytest.raises(Corrupt, match="tables"):
            SqliteStore(path, CODEC)

    def test_folder(self, path):
        path.mkdir()
        with pytest.raises(Unavailable):
            SqliteStore(path, CODEC)


class TestTheDisk:
    def require_usable(self, store, before):
        assert contents(store) == before
        fill(store, rows=2)
        assert list(store.read()) == events(0, store.position)
        assert store.verify() == []

    def test_full_disk_is_reported_and_the_store_continues(self, store):
        fill(store, rows=5)
        before = contents(store)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Unavailable, match="disk is full") as caught:
            fill(store, rows=1_000)
        assert "free some space" in caught.value.hint
        assert contents(store)[0][: len(before[0])] == before[0]
        before = contents(store)
        store._db.execute("PRAGMA max_page_count = 1000000")
        self.require_usable(store, before)

    def test_writes_that_the_system_refuses(self, store, path):
        fill(store, rows=5)
        before = contents(store)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = path.with_name("log.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5_000, hard))
        try:
            with pytest.raises(Unavailable) as caught:
                fill(store, rows=1, facts=2_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.hint
        self.require_usable(store, before)

    def test_missing_folder(self, tmp_path):
        with pytest.raises(Unavailable, match="folder"):
            SqliteStore(tmp_path / "none" / "log.db", CODEC)

    def test_folder_without_permission(self, as_nobody):
        folder = as_nobody(lambda path: SqliteStore(path, CODEC).close())
        with pytest.raises(Unavailable) as caught:
            SqliteStore(folder / "log.db", CODEC)
        assert caught.value.hint

    def test_store_in_a_read_only_folder_can_be_read(self, as_nobody):
        def make(path):
            with SqliteStore(path, CODEC) as store:
                fill(store, rows=3)

        folder = as_nobody(make)
        with SqliteReader(folder / "log.db", CODEC) as reader:
            assert list(reader.read()) == events(0, 30)

    @pytest.fixture
    def as_nobody(self):
        """Make a store in a read-only folder, then gives up the right to write anywhere."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            own = os.geteuid()

            def prepare(make):
                make(folder / "log.db")
                for file in folder.iterdir():
                    file.chmod(0o444)
                folder.chmod(0o555)
                if own == 0:
                    os.seteuid(65534)
                return folder

            yield prepare
            os.seteuid(own)
            folder.chmod(0o755)


def test_every_commit_waits_for_the_disk(store):
    settings = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS]
    assert settings == list(SETTINGS.values())


def test_worker_payloads_are_never_decoded_on_the_way_in(store, monkeypatch):
    def refuse(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr("strata.store.event_batches.inflate", refuse)
    store.append([], incarnation=1, expected=0, batches=[batch(0, 50), batch(50, 80), batch(0, 50)])
    assert store.last_seq("w0", 1) == 79


def test_long_log_is_read_in_pieces(store, monkeypatch):
    fill(store, rows=20, facts=500, batches=False)
    taken = []
    monkeypatch.setattr("strata.store.sqlite.database.TURN_BYTES", 20_000)
    turn = SqliteReader._turn

    def watching(self, *arguments):
        taken.append(turn(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(SqliteReader, "_turn", watching)
    reading = store.read()
    next(reading)
    assert sum(len(rows) for rows in taken) < 10
    assert sum(1 for _ in reading) == 9_999
