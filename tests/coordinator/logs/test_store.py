"""The log store keeps lines in order, within its size limit, across restarts and crashes; lost
lines are counted."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import zstandard

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.logs.log_store import LogStore
from strata.errors import Unavailable


def lines(count, start=0, **fields):
    return [LogLine("info", f"line {i}", **fields) for i in range(start, start + count)]


def messages(store, query=None):
    """Every matching message, oldest first, read page by page."""
    found, cursor = [], ""
    while True:
        page = store.recent(query, limit=777, cursor=cursor)
        found += [entry.message for entry in page.entries]
        cursor = page.cursor
        if not cursor:
            return found[::-1]


def noise(count, seed=1):
    """Lines that do not compress."""
    draw = random.Random(seed)
    return [LogLine("info", draw.randbytes(400).hex(), worker_id=f"w{i % 9}") for i in range(count)]


def test_empty_log(store):
    page = store.recent()
    assert (page.entries, page.cursor, page.total, page.exact) == ([], "", 0, True)
    assert store.stats().oldest_ms is None


def test_pages_are_newest_first_without_gap_or_overlap(store):
    store.extend(lines(2500))
    page = store.recent(limit=10)
    assert [entry.message for entry in page.entries] == [f"line {i}" for i in range(2499, 2489, -1)]
    assert (page.total, page.exact, page.complete) == (2500, True, True)
    assert messages(store) == [f"line {i}" for i in range(2500)]


def test_line_is_readable_at_once(store):
    for i in range(50):
        store.append(LogLine("info", str(i)))
        assert store.recent(limit=1).entries[0].message == str(i)


def test_paging_is_stable_while_lines_arrive(store):
    store.extend(lines(100))
    first = store.recent(limit=50)
    store.extend(lines(100, start=100))
    second = store.recent(limit=50, cursor=first.cursor)
    assert [e.message for e in second.entries] == [f"line {i}" for i in range(49, -1, -1)]


def test_lines_of_many_threads_keep_their_order(store):
    def write(name):
        for i in range(2000):
            store.append(LogLine("info", str(i), worker_id=name))

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        assert messages(store, LogQuery(worker_id=f"w{n}")) == [str(i) for i in range(2000)]


def test_restart_keeps_lines_and_never_reuses_an_id(opened):
    written, ids = [], set()
    for turn in range(4):
        store = opened()
        store.extend(lines(300, start=turn * 300))
        written += [f"line {i}" for i in range(turn * 300, turn * 300 + 300)]
        assert messages(store) == written
        ids |= {entry.id for entry in store.recent(limit=300).entries}
    assert len(ids) == 1200


def test_result_does_not_depend_on_segments_and_blocks(opened):
    store = opened(max_bytes=8 * 1024 * 1024)
    written = noise(4000)
    store.extend(written)
    assert messages(store) == [line.message for line in written]
    assert messages(store, LogQuery(worker_id="w3")) == [
        line.message for line in written if line.worker_id == "w3"
    ]
    store = opened(max_bytes=8 * 1024 * 1024)
    assert messages(store) == [line.message for line in written]


def test_size_limit_drops_oldest_lines_and_counts_them(opened, tmp_path):
    store = opened(max_bytes=1024 * 1024)
    for part in range(40):
        store.extend(noise(100, seed=part))
        store.flush()
        on_disk = sum(file.stat().st_size for file in (tmp_path / "logs").iterdir())
        assert on_disk <= 1024 * 1024
    stats = store.stats()
    assert stats.size_bytes == on_disk
    assert stats.dropped_lines > 0
    assert stats.lines + stats.dropped_lines == 4000
    assert len(messages(store)) == stats.lines
    assert messages(store)[-1] == noise(100, seed=39)[-1].message
    again = opened(max_bytes=1024 * 1024).stats()
    assert (again.lines, again.dropped_lines) == (stats.lines, stats.dropped_lines)


def test_zstdcat_prints_sealed_segments(opened, tmp_path):
    opened(max_bytes=8 * 1024 * 1024).extend(noise(3000))
    opened()
    files = sorted((tmp_path / "logs").glob("*.zst"))
    assert files
    read = []
    for file in files:
        if shutil.which("zstdcat"):
            text = subprocess.run(["zstdcat", file], check=True, capture_output=True).stdout
        else:
            with file.open("rb") as raw:
                stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
                text = stream.read()
        read += [json.loads(row)["message"] for row in text.splitlines()]
    assert read == [line.message for line in noise(3000)]


@pytest.mark.parametrize("seed", range(8))
def test_incomplete_last_line_is_cut(tmp_path, seed):
    folder = tmp_path / "logs"
    store = LogStore(folder)
    store.extend(lines(200))
    store.flush()
    (plain,) = folder.glob("*.jsonl")
    whole = plain.read_bytes()
    store.close()
    cut = random.Random(seed).randrange(len(whole))
    plain.write_bytes(whole[:cut] + b"\0" * (seed % 3))
    store = LogStore(folder)
    assert messages(store) == [f"line {i}" for i in range(whole[:cut].count(b"\n"))]
    store.append(LogLine("info", "after"))
    assert messages(store)[-1] == "after"
    store.close()


def test_kill_while_sealing_loses_and_repeats_nothing(opened, tmp_path):
    opened().extend(lines(500))
    opened().close()
    (sealed,) = (tmp_path / "logs").glob("*.zst")
    plain = sealed.with_suffix("")
    plain.write_bytes(zstandard.ZstdDecompressor().stream_reader(sealed.read_bytes()).read())
    sealed.with_name(sealed.name + ".tmp").write_bytes(b"half of it")
    assert messages(opened()) == [f"line {i}" for i in range(500)]
    assert not plain.exists()


WRITER = """
    import sys
    from strata.coordinator.logs.log_entries import LogLine
    from strata.coordinator.logs.log_store import LogStore
    store = LogStore(sys.argv[1])
    for i in range(10**9):
        store.append(LogLine("info", f"line {i}"))
        if i % 5000 == 4999:
            store.flush()
            print(i + 1, store.recent(limit=1).entries[0].id, flush=True)
"""


def test_kill_9_loses_nothing_that_was_written(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "logs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        rows = [writer.stdout.readline().split() for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        rows += [row.split() for row in writer.stdout.read().splitlines()]
    count, newest = int(rows[-1][0]), rows[-1][1]
    store = LogStore(tmp_path / "logs")
    kept = messages(store)
    assert kept == [f"line {i}" for i in range(len(kept))]
    assert len(kept) >= count
    store.append(LogLine("info", "after"))
    assert store.recent(limit=1).entries[0].seq > int(newest.removeprefix("log_"), 16)
    store.close()


@pytest.mark.parametrize("where", [0, 4, 10, 40, -20])
def test_damaged_file_loses_only_its_own_lines(opened, tmp_path, where):
    store = opened(max_bytes=8 * 1024 * 1024)
    store.extend(noise(3000))
    store.flush()
    oldest = sorted((tmp_path / "logs").glob("*.zst"))[0]
    store.close()
    raw = bytearray(oldest.read_bytes())
    raw[where] ^= 0xFF
    oldest.write_bytes(raw)
    store = opened()
    written = [line.message for line in noise(3000)]
    kept = messages(store)
    assert 0 < len(kept) < 3000
    assert kept == [message for message in written if message in set(kept)]
    assert kept[-1] == written[-1]


FULL_DISK = """
    import resource, signal, sys
    from strata.coordinator.logs.log_entries import LogLine
    from strata.coordinator.logs.log_store import LogStore
    store = LogStore(sys.argv[1])
    store.append(LogLine("info", "before"))
    store.flush()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))
    store.extend([LogLine("info", "x" * 100 + str(i)) for i in range(1000)])
    store.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    store.append(LogLine("info", "after"))
    page = store.recent(limit=10_000)
    stats = store.stats()
    print(len(page.entries), stats.lost_lines, page.entries[-1].message)
    print([entry.message for entry in page.entries[:2]])
    store.close()
"""


def test_full_disk_loses_lines_and_counts_them(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "logs")]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    counts, newest = ended.stdout.splitlines()
    kept, lost, oldest = counts.split()
    assert oldest == "before"
    assert 0 < int(lost) <= 1000
    assert int(kept) + int(lost) == 1000 + 3
    assert f"{lost} log lines could not be stored" in newest
    assert "after" in newest
    assert "cannot be written" in ended.stderr
    store = LogStore(tmp_path / "logs")
    assert len(messages(store)) == int(kept)
    store.close()


def test_lines_beyond_the_buffer_are_counted(store):
    for _ in range(3000):
        store.append(LogLine("info", "x" * 60_000))
    page = store.recent(LogQuery(source="coordinator"))
    stats = store.stats()
    assert stats.lost_lines > 0
    assert stats.lines + stats.dropped_lines + stats.lost_lines == 3000 + page.total
    said = [
        int(entry.message.removesuffix(" log lines could not be stored")) for entry in page.entries
    ]
    assert sum(said) == stats.lost_lines
    assert {entry.level for entry in page.entries} == {"warn"}


def test_append_is_reentrant(store):
    """Like a finalizer that logs, run by the garbage collector during a call."""

    def lines_that_log():
        for i in range(3):
            store.append(LogLine("info", f"inner {i}"))
            yield LogLine("info", f"outer {i}")

    store.extend(lines_that_log())
    assert sorted(messages(store)) == sorted(
        f"{n} {i}" for n in ("inner", "outer") for i in range(3)
    )


def test_unusable_folder_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match=r"the log in .*file/logs cannot be opened: Not a dir"):
        LogStore(tmp_path / "file" / "logs")


def test_close_writes_buffered_lines_and_is_idempotent(opened, store):
    store.extend(lines(10))
    store.close()
    store.close()
    assert messages(opened()) == [f"line {i}" for i in range(10)]


def test_many_lines_at_once_lose_none(store):
    taken = lines(50_000, worker_id="w", task_id="t")
    for first in range(0, len(taken), 500):
        store.extend(taken[first : first + 500])
    store.flush()
    assert store.recent(limit=1).entries[0].message == taken[-1].message
    assert store.stats().lost_lines == 0
