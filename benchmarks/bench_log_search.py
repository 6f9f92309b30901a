"""The coordinator's log store compared with SQLite FTS5: ingest, search and size on disk.

Both store the same lines with the same fields in batches of 500. A search returns the newest 100
matches; the store's searches match any part of a line, as FTS5 does with its trigram index only.
Run: `python benchmarks/bench_log_search.py [lines]`, CPU seconds except for searches.
"""

import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from common import cpu_timed, median, show, timed

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.logs.log_store import LogStore

LINES = 1_000_000
BATCH = 500
LIMIT = 100
RARE_EVERY = 100_000
WORKERS = 64
SEARCHES = {
    "frequent": "samples",
    "rare": "checksum",
    "part_of_a_word": "hecksu",
    "absent": "zebra",
}
TOKENIZERS = {"fts5_words": "unicode61", "fts5_trigram": "trigram"}
COLUMNS = "timestamp, level, message, source, task_id, worker_id, stream"


def batches(count: int) -> Iterator[list[LogLine]]:
    """Lines as training scripts print them; a rare word in one of `RARE_EVERY`."""
    for first in range(0, count, BATCH):
        yield [line(number) for number in range(first, min(first + BATCH, count))]


def line(number: int) -> LogLine:
    loss = 2.0 / (1 + number / 50_000) + (number * 7919 % 1000) / 5_000
    message = (
        f"step {number // WORKERS} loss {loss:.4f} {780 + number * 31 % 97}.{number % 10} samples/s"
    )
    if number % RARE_EVERY == RARE_EVERY // 2:
        message += " checksum differs"
    return LogLine(
        level="info",
        message=message,
        source="worker",
        task_id="task-1",
        worker_id=f"worker-{number % WORKERS}",
        stream="stdout",
        timestamp=1_700_000_000_000 + number,
    )


def size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def measured(
    count: int, folder: Path, ingest: Callable[[], object], search: Callable[[str], int]
) -> dict[str, object]:
    """The figures of one store; every search must find the lines that contain its text."""
    seconds = cpu_timed(ingest)
    found: dict[str, object] = {
        "ingest_lines_per_cpu_s": round(count / seconds),
        "bytes_per_line": round(size_bytes(folder) / count, 1),
    }
    for name, word in SEARCHES.items():
        hits = search(word)
        found[f"{name}_ms"] = median([timed(lambda: search(word)) for _ in range(3)], 1e3, 2)  # noqa: B023
        found[f"{name}_found"] = hits
    return found


def own_store(count: int, folder: Path) -> dict[str, object]:
    store = LogStore(folder, max_bytes=2**40)

    def ingest() -> None:
        for batch in batches(count):
            store.extend(batch)
            store.flush()

    def search(word: str) -> int:
        return len(store.recent(LogQuery(search=word), limit=LIMIT, budget_s=600).entries)

    try:
        return measured(count, folder, ingest, search)
    finally:
        store.close()


def fts5(count: int, folder: Path, tokenizer: str) -> dict[str, object]:
    database = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(f"CREATE TABLE lines (id INTEGER PRIMARY KEY, {COLUMNS})")
    database.execute(
        "CREATE VIRTUAL TABLE words USING fts5(message, content='lines', content_rowid='id',"
        f" tokenize='{tokenizer}', detail={'full' if tokenizer == 'trigram' else 'none'})"
    )

    def ingest() -> None:
        number = 0
        for batch in batches(count):
            rows = [
                (number + at, *(getattr(each, name) for name in COLUMNS.split(", ")))
                for at, each in enumerate(batch)
            ]
            number += len(rows)
            database.execute("BEGIN")
            database.executemany("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany(
                "INSERT INTO words (rowid, message) VALUES (?, ?)",
                [(row[0], row[3]) for row in rows],
            )
            database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def search(word: str) -> int:
        rows = database.execute(
            f"SELECT id, {COLUMNS} FROM lines WHERE id IN"
            " (SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?)"
            " ORDER BY id DESC",
            (f'"{word}"', LIMIT),
        )
        return len(rows.fetchall())

    try:
        return measured(count, folder, ingest, search)
    finally:
        database.close()


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else LINES
    making_s = cpu_timed(lambda: [None for _ in batches(count)])
    result: dict[str, object] = {"lines": count, "making_the_lines_cpu_s": round(making_s, 2)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "own"
        result["log_store"] = own_store(count, place)
        for name, tokenizer in TOKENIZERS.items():
            place = Path(folder) / name
            place.mkdir()
            result[name] = fts5(count, place, tokenizer)
        show("log_search", result, Path(folder))


if __name__ == "__main__":
    main()
