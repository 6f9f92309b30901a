"""A crash at any byte of a write loses no acknowledged fact and never prevents a restart.

Files are composed as a crash would leave them: the write torn at some byte, followed by the
previous bytes, nothing, or garbage. In addition, real processes are killed.
"""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strata.store.sqlite import SqliteReader, SqliteStore
from tests.store import images
from tests.store.kinds import CODEC, batch, compact, contents, events, fill

ROOT = Path(__file__).parents[2]
WAL = "log.db-wal"
FRAME_BYTES = 4096 + 24


def offsets(written: range, step: int) -> list[int]:
    """Cut at every step and around every frame's edges."""
    edges = [
        at + near
        for at in range(32, written.stop + 1, FRAME_BYTES)
        for near in (-1, 0, 1, 25)
        if at + near in written
    ]
    return sorted({*written[::step], *edges, written.start, written.stop})


def torn(before: bytes, after: bytes, cut: int, behind: str) -> bytes:
    """A write that got as far as `cut`, and what is behind it."""
    if behind == "nothing":
        return after[:cut]
    if behind == "garbage":
        return after[:cut] + random.Random(cut).randbytes(len(after) - cut)
    return after[:cut] + before[cut:]


def require_restart(folder, image, allowed):
    """Open, finds one of the allowed contents whole, carries on, and finds it again."""
    path = images.put(folder, image)
    with SqliteStore(path, CODEC) as store:
        found = contents(store)
        assert found in allowed
        assert store.verify() == []
        assert store.gaps("w0", 1) == []
        fill(store, rows=2)
    with SqliteStore(path, CODEC) as store:
        assert contents(store)[0] == events(0, len(found[0]) + 20)


def fresh(store):
    """The log grows behind what was acknowledged."""
    fill(store, rows=5)


def reused(store):
    """All was moved to the main file: the next append writes the log over from its start."""
    fill(store, rows=30)
    store._db.execute("PRAGMA wal_checkpoint(RESTART)")


def growing(store):
    """The next row is large: it needs new pages and overflow pages."""
    fill(store, rows=2, facts=250)


def torn_appends(ram, prepare, step):
    (ram / "origin").mkdir()
    with SqliteStore(ram / "origin" / "log.db", CODEC) as store:
        prepare(store)
        before, acknowledged = images.take(ram / "origin"), contents(store)
        fill(store, rows=1, facts=250 if prepare is growing else 10)
        after, more = images.take(ram / "origin"), contents(store)
    written = images.changed(before[WAL], after[WAL])
    assert len(written) > FRAME_BYTES
    for behind in ("nothing", "garbage", "old"):
        for cut in offsets(written, step):
            wal = torn(before[WAL], after[WAL], cut, behind)
            image = before | {WAL: wal}
            require_restart(ram / "crashed", image, (acknowledged, more))


@pytest.mark.parametrize("prepare", [fresh, reused, growing])
def test_append_torn_at_many_bytes(ram, prepare):
    torn_appends(ram, prepare, step=4_500)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("prepare", [fresh, reused, growing])
def test_append_torn_at_very_many_bytes(ram, prepare):
    torn_appends(ram, prepare, step=211)


@pytest.mark.usefixtures("small_segments")
def test_compaction_torn_at_many_bytes(ram):
    (ram / "origin").mkdir()
    with SqliteStore(ram / "origin" / "log.db", CODEC) as store:
        fill(store, rows=20)
        before, acknowledged = images.take(ram / "origin"), contents(store)
        assert compact(store)
        after = images.take(ram / "origin")
    written = images.changed(before[WAL], after[WAL])
    for behind in ("nothing", "garbage", "old"):
        for cut in offsets(written, 4_500):
            wal = torn(before[WAL], after[WAL], cut, behind)
            require_restart(ram / "crashed", before | {WAL: wal}, (acknowledged,))


def test_checkpoint_torn_at_many_bytes(ram):
    (ram / "origin").mkdir()
    with SqliteStore(ram / "origin" / "log.db", CODEC) as store:
        fill(store, rows=40)
        before = images.take(ram / "origin")
        store._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        after, acknowledged = images.take(ram / "origin"), contents(store)
    assert before[WAL] == after[WAL]
    assert len(after["log.db"]) > 10 * 4096
    for cut in range(0, len(after["log.db"]), 1_111):
        main = torn(before["log.db"], after["log.db"], cut, "old")
        require_restart(ram / "crashed", before | {"log.db": main}, (acknowledged,))


def test_making_a_store_torn_at_many_bytes(ram):
    (ram / "origin").mkdir()
    store = SqliteStore(ram / "origin" / "log.db", CODEC)
    made = images.take(ram / "origin")
    del made["log.db.mark"]
    store.close()
    for cut in offsets(range(len(made[WAL])), 999):
        require_restart(ram / "crashed", made | {WAL: made[WAL][:cut]}, (([], []),))
    for main in (b"", made["log.db"]):
        require_restart(ram / "crashed", {"log.db": main}, (([], []),))


CHILD = """
import sys
from strata.store.sqlite import SqliteStore
from tests.store.kinds import CODEC, fill
store = SqliteStore(sys.argv[1], CODEC)
while True:
    fill(store, rows=1, facts=1 + store.position % 30)
    print(store.position, flush=True)
"""


def killed(path, lines):
    """Start a process that appends, kills it after that many acknowledgements."""
    command = [sys.executable, "-c", CHILD, str(path)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with child:
        told = [int(child.stdout.readline()) for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        told += [int(line) for line in child.stdout.read().splitlines()]
    assert child.returncode == -signal.SIGKILL
    return told[-1]


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_process_loses_nothing_acknowledged(tmp_path, rounds):
    path = tmp_path / "log.db"
    for each in range(rounds):
        acknowledged = killed(path, 1 + random.Random(each).randrange(300))
        with SqliteReader(path, CODEC) as reader:
            assert reader.position >= acknowledged
            assert list(reader.read()) == events(0, reader.position)
            assert reader.last_seq("w0", 1) == reader.position - 1
            assert reader.gaps("w0", 1) == []
    with SqliteStore(path, CODEC) as store:
        fill(store, rows=1)


RELEASING = """
import sys
from strata.store.sql import sql_store
from strata.store.sqlite import SqliteStore
from tests.store.kinds import CODEC
sql_store.RELEASED_ROWS = 2
released = SqliteStore._remember
def told(self, change, node, incarnation, gone):
    released(self, change, node, incarnation, gone)
    print(gone[-1][1], flush=True)
SqliteStore._remember = told
with SqliteStore(sys.argv[1], CODEC) as log:
    log.release("w0", 1, 10**9)
    print("done", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 7, 15])
def test_process_killed_while_it_releases_leaves_every_event_stored_or_noted(tmp_path, lines):
    path = tmp_path / "log.db"
    with SqliteStore(path, CODEC) as store:
        fill(store, rows=30)
        facts = list(store.read())
    command = [sys.executable, "-c", RELEASING, str(path)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with child:
        for _ in range(lines):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    with SqliteStore(path, CODEC) as store:
        assert store.verify() == []
        kept = [event.seq for event in store.stream("w0", 1)]
        assert kept == [*range(300 - len(kept), 300)]
        assert store.gaps("w0", 1) == []
        assert store.last_seq("w0", 1) == 299
        assert list(store.read()) == facts
        store.append([], incarnation=1, expected=300, batches=[batch(0, 300, offset_ns=500)])
        assert [event.seq for event in store.stream("w0", 1)] == kept, "a resend is recognised"
        assert store.release("w0", 1, 300) == len(kept)
