"""Copies what is readable of a damaged store into a new one, and says what is missing.

Rows are taken from the pages themselves (see `pages`) and believed only when their checksum is
right, so one damaged page costs the rows on it and nothing else. The damaged file is only read.
The result is a new store with the same positions. Facts that are missing in the middle are replaced
by what `fill` makes, one for each position; without it, reading across the hole raises `Corrupt`.
What was lost at the end cannot be told apart from never written by the new store: the report says
it, from the mark, the head and the snapshots. An append that failed (a full disk, say)
may come out whole although it was refused. In one case that is wrong and cannot be told: when
other facts took its positions later, and exactly their page is the damaged one.
"""

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, Codec, Envelope, Event, Fact, Now
from strata.errors import AlreadyExists, Corrupt, NotFound
from strata.store import ranges
from strata.store.base import NEVER_NS, Batch, Range
from strata.store.batches import MAX_EVENTS, encoded_events, pack, parts, unpack
from strata.store.moved import is_moved
from strata.store.segments import MAGIC, is_segment
from strata.store.sqlite import database, pages, rows
from strata.store.sqlite.rows import Head, Row
from strata.store.sqlite.sidecar import Lock, Mark, beside, read_mark

COMMIT_ROWS = 4096
_KINDS = re.compile(r"( [A-Z][A-Za-z]*)+ ")

# Every table has its own number of columns, so a row tells by its length where it belongs.
_TABLES: dict[int, tuple[str, Callable[[Row], object]]] = {
    len(columns.split(", ")): (table, read)
    for table, columns, read in (
        ("archived", rows.ARCHIVED, partial(rows.read_plain, "archived")),
        ("batches", rows.BATCHES, rows.read_batch),
        ("facts", rows.FACTS, rows.read_fact),
        ("head", rows.HEAD, rows.read_head),
        ("snapshots", rows.SNAPSHOTS, rows.read_snapshot),
    )
}


class Salvaged(Struct, frozen=True):
    """What was found and what is known to be missing.

    `missing_facts` are positions, `missing_seqs` holes in the events of a node and incarnation.
    `missing_batches` counts worker batches that are gone, also at the end of a worker's events;
    it is None when neither head nor mark was readable to tell how many there were. `certain` says
    that the mark was readable: then no fact is missing but those that are listed. `kinds` are
    the kinds of facts in damaged rows by position, as these rows say; they are not checked.
    """

    facts: int
    missing_facts: list[Range]
    batches: int
    missing_batches: int | None
    missing_seqs: dict[tuple[str, int], list[Range]]
    snapshots: int
    certain: bool
    kinds: dict[int, str]


class Filling(Struct, frozen=True):
    """What takes the place of a missing fact: a fact made of the missing range.

    With `end`, also of those that are missing at the end of the log.
    """

    codec: Codec
    fact: Callable[[int, int], Fact]
    end: bool = False


def salvage(
    path: str | Path, to: str | Path, *, stop: int | None = None, fill: Filling | None = None
) -> Salvaged:
    """Copies what is readable of a store into a new one; `stop` leaves out facts from there on."""
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
            db.execute("UPDATE head SET id = ?, checksum = ?, fields = ?", rows.head_row(head))
            db.execute("COMMIT")
            return report
    finally:
        lock.release()


def _copy(path: Path, db: sqlite3.Connection, damaged: dict[int, str]) -> Head:
    """Stores every row that is what was written; returns the newest head found, or a new one.

    Notes the kinds that damaged rows of facts name, by position.
    """
    head: Head | None = None
    db.execute("BEGIN IMMEDIATE")
    for copied, (table, row, content) in enumerate(_intact(path, damaged), 1):
        if isinstance(content, Head):
            head = max(head or content, content, key=lambda each: each.commits)
            continue
        places = ", ".join("?" * len(row))
        # A segment holds only facts that were acknowledged, so it is right where rows differ. A
        # reference to one that was moved is newer than the segment.
        which = "REPLACE" if table == "facts" and _is_joined(row[-1]) else "IGNORE"
        db.execute(f"INSERT OR {which} INTO {table} VALUES ({places})", row)
        if copied % COMMIT_ROWS == 0:
            db.execute("COMMIT")
            db.execute("BEGIN IMMEDIATE")
    db.execute("COMMIT")
    return head or Head(log=uuid.uuid4().hex)


def _intact(path: Path, damaged: dict[int, str]) -> Iterator[tuple[str, Row, object]]:
    for row in pages.rows(path):
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
    """Takes out what had been released, or joined to a segment, or is not wanted.

    Pages that were set free still hold rows that had been released or joined; they came along.
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
    """Deletes rows of facts that a segment holds as well."""
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
    """Deletes the facts from a position on; of a row that holds facts on both sides, part stays."""
    before = "SELECT coalesce(max(high_ns), ?) FROM facts WHERE position + count <= ?"
    high_ns = db.execute(before, (NEVER_NS, stop)).fetchone()[0]
    across = f"SELECT {rows.FACTS} FROM facts WHERE position < ? AND position + count > ?"
    found = [rows.read_fact(row) for row in db.execute(across, (stop, stop))]
    db.execute("DELETE FROM facts WHERE position + count > ?", (stop,))
    for facts in found:
        for part in parts(facts, [(facts.first_seq, stop)]):
            walls = [event.wall_ns for event in _walls.decode(encoded_events(part))]
            row = rows.fact_row(part, max(high_ns, *walls))
            db.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


class _Timed(Struct, array_like=True):
    """An event, as far as its wall clock."""

    seq: int
    wall_ns: int


_walls = msgspec.msgpack.Decoder(list[_Timed])


def _merge_archived(db: sqlite3.Connection) -> None:
    streams: dict[tuple[str, int], list[Range]] = {}
    for row in db.execute(f"SELECT {rows.ARCHIVED} FROM archived").fetchall():
        _, node, incarnation, first, count, _ = row
        ranges.add(streams.setdefault((node, incarnation), []), first, first + count)
    db.execute("DELETE FROM archived")
    every = ((stream, seqs) for stream, known in streams.items() for seqs in known)
    for number, (stream, (first, stop)) in enumerate(every, 1):
        row = rows.plain_row("archived", number, *stream, first, stop - first)
        db.execute("INSERT INTO archived VALUES (?, ?, ?, ?, ?, ?)", row)


def _fill(db: sqlite3.Connection, holes: list[Range], fill: Filling) -> None:
    """Stores a fact at every missing position, recorded when the fact before the hole was."""
    around = f"SELECT {rows.FACTS} FROM facts WHERE position {{}} ? ORDER BY position {{}} LIMIT 1"
    for first, stop in holes:
        before = db.execute(around.format("<", "DESC"), (first,)).fetchone()
        row = before or db.execute(around.format(">=", "ASC"), (stop,)).fetchone()
        neighbour = rows.read_fact(row)
        near = _near(neighbour, fill.codec, last=before is not None)
        body = fill.fact(first, stop)
        for begin in range(first, stop, MAX_EVENTS):
            filled: list[Event] = [
                Envelope(seq, near.wall_ns, near.mono_ns, body)
                for seq in range(begin, min(begin + MAX_EVENTS, stop))
            ]
            batch = pack(fill.codec, COORDINATOR, neighbour.incarnation, filled)
            high_ns = row[rows.FACTS.split(", ").index("high_ns")] if before else near.wall_ns
            db.execute(
                "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows.fact_row(batch, high_ns),
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
    """Counts what is there against what the head and the mark say; completes the head."""
    known: list[Range] = []
    for first, count in db.execute("SELECT position, count FROM facts ORDER BY position"):
        ranges.add(known, first, first + count)
    position = known[-1][1] if known else 0
    saved = db.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()[0]
    acknowledged = max(position, head.position, mark.position if mark else 0, saved)
    missing = ranges.missing(known, 0, acknowledged)
    batches, last = db.execute("SELECT count(*), coalesce(max(id) + 1, 0) FROM batches").fetchone()
    told = head.commits > 0 or mark is not None
    total = max(last, head.batches, mark.batches if mark else 0)
    streams = db.execute("SELECT node, incarnation FROM batches GROUP BY 1, 2").fetchall()
    holes = {stream: _holes(rows.known_seqs(db, *stream)) for stream in streams}
    longest = "SELECT coalesce(max(wall_to_ns - wall_from_ns), 0) FROM "
    spans = [db.execute(longest + table).fetchone()[0] for table in ("facts", "batches")]
    clock = db.execute("SELECT max(high_ns) FROM facts").fetchone()[0]
    head.position, head.batches, head.longest_ns = position, total, max(spans)
    head.high_ns = NEVER_NS if clock is None else clock
    return Salvaged(
        facts=sum(stop - first for first, stop in known),
        missing_facts=missing,
        batches=batches,
        missing_batches=total - head.archived - batches if told else None,
        missing_seqs={stream: found for stream, found in holes.items() if found},
        snapshots=db.execute("SELECT count(*) FROM snapshots").fetchone()[0],
        certain=mark is not None,
        kinds={
            at: kinds for at, kinds in damaged.items() if ranges.overlapping(missing, at, at + 1)
        },
    )


def _holes(known: list[Range]) -> list[Range]:
    return ranges.missing(known, 0, known[-1][1]) if known else []
