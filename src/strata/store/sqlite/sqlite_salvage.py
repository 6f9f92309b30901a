"""Copies the readable part of a damaged store into a new one, and reports what is missing.

Rows are read from the pages directly (see `page_scan`) and accepted only if their checksum is
right, so one damaged page costs only the rows on it. The damaged file is only read. The result is a
new store with the same positions. Facts that are missing in the middle are replaced by what `fill`
makes, one for each position; without it, reading across the hole raises `Corrupt`. Facts that were
lost at the end look as if they were never written; the report lists them, from the mark, the head
and the snapshots. An append that failed (for example on a full disk) may be recovered whole
although it was refused. In one case that is wrong and cannot be detected: when other facts took its
positions later, and exactly their page is the damaged one.
"""

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, Codec, Envelope, Event, Fact, Now
from strata.errors import AlreadyExists, Corrupt, NotFound
from strata.store import seq_ranges
from strata.store.event_batches import MAX_EVENTS, encoded_events, pack, parts, unpack
from strata.store.event_store import NEVER_NS, Batch, Range
from strata.store.fact_references import is_moved
from strata.store.fact_segments import MAGIC, is_segment
from strata.store.sql import table_rows
from strata.store.sql.table_rows import Head, Row
from strata.store.sqlite import database, page_scan
from strata.store.sqlite.lock_files import Lock, Mark, beside, read_mark

COMMIT_ROWS = 4096
_KINDS = re.compile(r"( [A-Z][A-Za-z]*)+ ")

# Every table has another number of columns, so the length of a row says where it belongs.
_TABLES: dict[int, tuple[str, Callable[[Row], object]]] = {
    len(columns.split(", ")): (table, read)
    for table, columns, read in (
        ("archived", table_rows.ARCHIVED, partial(table_rows.read_plain, "archived")),
        ("batches", table_rows.BATCHES, table_rows.read_batch),
        ("facts", table_rows.FACTS, table_rows.read_fact),
        ("head", table_rows.HEAD, table_rows.read_head),
        ("snapshots", table_rows.SNAPSHOTS, table_rows.read_snapshot),
    )
}


class Salvaged(Struct, frozen=True):
    """What was found and what is known to be missing.

    `missing_facts` are positions, `missing_seqs` holes in the events of a node and incarnation.
    `missing_batches` counts lost worker batches, also at the end of a worker's events; it is None
    if neither head nor mark was readable. `certain` says that the mark was readable: then no fact
    is missing but those that are listed. `kinds` are the kinds of facts in damaged rows by
    position, as these rows say; they are not verified.
    """

    facts: int
    missing_facts: list[Range]
    batches: int
    missing_batches: int | None
    missing_seqs: dict[tuple[str, int], list[Range]]
    snapshots: int
    certain: bool
    kinds: dict[int, str]


class MakeFact(Protocol):
    """Makes the fact that replaces the lost facts `first` to `stop`, exclusive."""

    def __call__(self, *, first: int, stop: int) -> Fact: ...


class Filling(Struct, frozen=True):
    """The fact that replaces each missing fact.

    With `end`, also those that are missing at the end of the log.
    """

    codec: Codec
    fact: MakeFact
    end: bool = False


def salvage(
    path: str | Path, to: str | Path, *, stop: int | None = None, fill: Filling | None = None
) -> Salvaged:
    """Copy the readable part of a store into a new one; `stop` leaves out facts from there on."""
    path, to = Path(path), Path(to)
    if not any(each.exists() for each in (path, beside(path, "-wal"), beside(path, ".mark"))):
        raise NotFound(f"there is no event store at {path}", hint="check the path")
    if to.exists():
        raise AlreadyExists(f"{to} exists already", hint="salvage into a new file")
    lock = Lock(path)
    try:
        with database.translated(to), closing(database.connect(to, write=True)) as db:
            database.create(db, Head(log=uuid.uuid4().hex))
            damaged: dict[int, str] = {}
            head, mark = _copy(path, db, damaged), read_mark(path)
            db.execute("BEGIN IMMEDIATE")
            _tidy(db, stop)
            report = _report(db, head, mark, damaged)
            if fill is not None and report.facts:
                missing = report.missing_facts
                holes = [each for each in missing if fill.end or each[0] < head.position]
                _fill(db, holes, fill)
                head.position = max([head.position, *(stop for _, stop in holes)])
            db.execute(
                "UPDATE head SET id = ?, checksum = ?, fields = ?", table_rows.head_row(head)
            )
            db.execute("COMMIT")
            return report
    finally:
        lock.release()


def _copy(path: Path, db: sqlite3.Connection, damaged: dict[int, str]) -> Head:
    """Copy every intact row; return the newest head found, or a new one.

    Notes the kinds that damaged rows of facts name, by position.
    """
    head: Head | None = None
    db.execute("BEGIN IMMEDIATE")
    for copied, (table, row, content) in enumerate(_intact(path, damaged), 1):
        if isinstance(content, Head):
            head = max(head or content, content, key=lambda each: each.commits)
            continue
        places = ", ".join("?" * len(row))
        # A segment holds only facts that were acknowledged, so it wins if rows differ. A
        # reference to one that was moved is newer than the segment.
        which = "REPLACE" if table == "facts" and _is_joined(row[-1]) else "IGNORE"
        db.execute(f"INSERT OR {which} INTO {table} VALUES ({places})", row)
        if copied % COMMIT_ROWS == 0:
            db.execute("COMMIT")
            db.execute("BEGIN IMMEDIATE")
    db.execute("COMMIT")
    return head or Head(log=uuid.uuid4().hex)


def _intact(path: Path, damaged: dict[int, str]) -> Iterator[tuple[str, Row, object]]:
    for row in page_scan.rows(path):
        table, read = _TABLES.get(len(row), ("", None))
        if read is None:
            continue
        try:
            yield table, row, read(row)
        except Corrupt:
            kinds = row[-3]
            if table == "facts" and isinstance(kinds, str) and _KINDS.fullmatch(kinds):
                damaged[row[0]] = " ".join(kinds.split())


def _tidy(db: sqlite3.Connection, stop: int | None) -> None:
    """Delete rows that had been released or joined to a segment, or are not wanted.

    Freed pages still hold rows that had been released or joined, so they were copied too.
    """
    _merge_archived(db)
    _drop_joined(db)
    db.execute(
        "DELETE FROM batches WHERE EXISTS (SELECT 1 FROM archived AS gone WHERE "
        "gone.node = batches.node AND gone.incarnation = batches.incarnation AND "
        "batches.first_seq >= gone.first_seq AND batches.first_seq < gone.first_seq + gone.count)"
    )
    if stop is not None:
        _cut_facts(db, stop)
        db.execute("DELETE FROM snapshots WHERE position > ?", (stop,))


def _drop_joined(db: sqlite3.Connection) -> None:
    """Delete rows of facts that a segment holds as well."""
    joined_stop = 0
    doubled: list[tuple[int]] = []
    ordered = f"SELECT position, count, substr(payload, 1, {len(MAGIC)}) FROM facts ORDER BY 1"
    for position, count, begin in db.execute(ordered).fetchall():
        if _is_joined(begin):
            joined_stop = position + count
        elif position < joined_stop:
            doubled.append((position,))
    db.executemany("DELETE FROM facts WHERE position = ?", doubled)


def _is_joined(payload: bytes) -> bool:
    """Whether a payload stands for many joined rows: a segment, or a reference to one."""
    return is_segment(payload) or is_moved(payload)


def _cut_facts(db: sqlite3.Connection, stop: int) -> None:
    """Delete the facts from a position on; of a row that holds facts on both sides, part stays."""
    before = "SELECT coalesce(max(high_ns), ?) FROM facts WHERE position + count <= ?"
    high_ns = db.execute(before, (NEVER_NS, stop)).fetchone()[0]
    across = f"SELECT {table_rows.FACTS} FROM facts WHERE position < ? AND position + count > ?"
    found = [table_rows.read_fact(row) for row in db.execute(across, (stop, stop))]
    db.execute("DELETE FROM facts WHERE position + count > ?", (stop,))
    for facts in found:
        for part in parts(facts, [(facts.first_seq, stop)]):
            walls = [event.wall_ns for event in _walls.decode(encoded_events(part))]
            row = table_rows.fact_row(part, max(high_ns, *walls))
            db.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


class _Timed(Struct, array_like=True):
    """An event, as far as its wall clock."""

    seq: int
    wall_ns: int


_walls = msgspec.msgpack.Decoder(list[_Timed])


def _merge_archived(db: sqlite3.Connection) -> None:
    streams: dict[tuple[str, int], list[Range]] = {}
    for row in db.execute(f"SELECT {table_rows.ARCHIVED} FROM archived").fetchall():
        _, node, incarnation, first, count, _ = row
        seq_ranges.add(streams.setdefault((node, incarnation), []), first, first + count)
    db.execute("DELETE FROM archived")
    every = ((stream, seqs) for stream, known in streams.items() for seqs in known)
    for number, (stream, (first, stop)) in enumerate(every, 1):
        row = table_rows.plain_row("archived", number, *stream, first, stop - first)
        db.execute("INSERT INTO archived VALUES (?, ?, ?, ?, ?, ?)", row)


def _fill(db: sqlite3.Connection, holes: list[Range], fill: Filling) -> None:
    """Store a fact at every missing position, recorded when the fact before the hole was."""
    around = (
        f"SELECT {table_rows.FACTS} FROM facts WHERE position {{}} ? ORDER BY position {{}} LIMIT 1"
    )
    for first, stop in holes:
        before = db.execute(around.format("<", "DESC"), (first,)).fetchone()
        row = before or db.execute(around.format(">=", "ASC"), (stop,)).fetchone()
        neighbour = table_rows.read_fact(row)
        near = _near(neighbour, fill.codec, last=before is not None)
        body = fill.fact(first=first, stop=stop)
        for begin in range(first, stop, MAX_EVENTS):
            filled: list[Event] = [
                Envelope(seq=seq, wall_ns=near.wall_ns, mono_ns=near.mono_ns, body=body)
                for seq in range(begin, min(begin + MAX_EVENTS, stop))
            ]
            batch = pack(fill.codec, COORDINATOR, neighbour.incarnation, filled)
            high_ns = row[table_rows.FACTS.split(", ").index("high_ns")] if before else near.wall_ns
            db.execute(
                "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                table_rows.fact_row(batch, high_ns),
            )


def _near(neighbour: Batch, codec: Codec, *, last: bool) -> Now:
    """When the last, or the first, fact of a row was recorded; of moved facts the row's span."""
    if is_moved(neighbour.payload):
        wall_ns = neighbour.wall_to_ns if last else neighbour.wall_from_ns
        return Now(wall_ns, wall_ns)
    event = unpack(codec, neighbour)[-1 if last else 0]
    return Now(event.wall_ns, event.mono_ns)


def _report(
    db: sqlite3.Connection, head: Head, mark: Mark | None, damaged: dict[int, str]
) -> Salvaged:
    """Compare the rows with the head and the mark; complete the head."""
    known: list[Range] = []
    for first, count in db.execute("SELECT position, count FROM facts ORDER BY position"):
        seq_ranges.add(known, first, first + count)
    position = known[-1][1] if known else 0
    saved = db.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()[0]
    acknowledged = max(position, head.position, mark.position if mark else 0, saved)
    missing = seq_ranges.missing(known, 0, acknowledged)
    batches, last = db.execute("SELECT count(*), coalesce(max(id) + 1, 0) FROM batches").fetchone()
    expected_known = head.commits > 0 or mark is not None
    total = max(last, head.batches, mark.batches if mark else 0)
    streams = db.execute("SELECT node, incarnation FROM batches GROUP BY 1, 2").fetchall()
    holes = {
        stream: _holes(table_rows.known_seqs(database.asking(db), *stream)) for stream in streams
    }
    longest = "SELECT coalesce(max(wall_to_ns - wall_from_ns), 0) FROM "
    spans = [db.execute(longest + table).fetchone()[0] for table in ("facts", "batches")]
    clock = db.execute("SELECT max(high_ns) FROM facts").fetchone()[0]
    head.position, head.batches, head.longest_ns = position, total, max(spans)
    head.high_ns = NEVER_NS if clock is None else clock
    return Salvaged(
        facts=sum(stop - first for first, stop in known),
        missing_facts=missing,
        batches=batches,
        missing_batches=total - head.archived - batches if expected_known else None,
        missing_seqs={stream: found for stream, found in holes.items() if found},
        snapshots=db.execute("SELECT count(*) FROM snapshots").fetchone()[0],
        certain=mark is not None,
        kinds={
            at: kinds
            for at, kinds in damaged.items()
            if seq_ranges.overlapping(missing, at, at + 1)
        },
    )


def _holes(known: list[Range]) -> list[Range]:
    return seq_ranges.missing(known, 0, known[-1][1]) if known else []
