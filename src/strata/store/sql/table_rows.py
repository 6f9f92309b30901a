"""Rows of the tables of a store in an SQL database, and their checksums.

A checksum covers the table's name, the row's number and every column, so that a flipped bit, a
moved row or one of another table is noticed when it is read. It is xxh3 with one bit dropped, since
the integers of SQL are signed. Functions that read raise `Corrupt` when it is wrong.

Statements are written in the SQL that SQLite and PostgreSQL share, with `?` and `:name` for values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import xxhash
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.errors import Corrupt
from strata.store import seq_ranges
from strata.store.event_batches import deflate, inflate, parts
from strata.store.event_store import (
    FOREVER_NS,
    NEVER_NS,
    Batch,
    Range,
    Snapshot,
    Window,
)
from strata.store.snapshots import MAX_STATE_BYTES

Row: TypeAlias = Sequence[Any]
Values: TypeAlias = Sequence[Any] | dict[str, object]
Ask: TypeAlias = Callable[[str, Values], list[Row]]
"""Runs a query and returns all of its rows."""
Reading: TypeAlias = tuple[str, Callable[[Row], Batch]]

FACTS = "position, count, incarnation, wall_from_ns, wall_to_ns, high_ns, kinds, checksum, payload"
BATCHES = (
    "id, node, incarnation, first_seq, count, wall_from_ns, wall_to_ns, kinds, checksum, payload"
)
SNAPSHOTS = "position, wall_ns, schema, checksum, state"
ARCHIVED = "id, node, incarnation, first_seq, count, checksum"
HEAD = "id, checksum, fields"

TALLIES = (
    "SELECT node, incarnation, kinds, sum(count), min(wall_from_ns), max(wall_to_ns) FROM batches "
    "GROUP BY node, incarnation, kinds"
)


class Head(Struct, array_like=True):
    """The totals of the store; written by every commit.

    `high_ns` is the log clock, `longest_ns` the longest span of time of any batch. `batches` counts
    all worker batches ever stored, `archived` those of them that were released since. Facts before
    `compacted` are in segments if that saves space; `segment_ns` is the longest span of time of a
    segment.
    """

    log: str
    commits: int = 0
    position: int = 0
    batches: int = 0
    high_ns: int = NEVER_NS
    longest_ns: int = 0
    archived: int = 0
    compacted: int = 0
    segment_ns: int = 0


_head = msgspec.msgpack.Decoder(Head)


def _checksum(table: str, fields: Sequence[object], payload: bytes = b"") -> int:
    digest = xxhash.xxh3_64(msgspec.msgpack.encode((table, fields)))
    digest.update(payload)
    return digest.intdigest() >> 1


def _checked(table: str, fields: Sequence[object], checksum: object, payload: object) -> None:
    intact = isinstance(payload, bytes) and checksum == _checksum(table, fields, payload)
    if not intact:
        raise Corrupt(f"row {fields[0]} of {table} is damaged: its checksum is wrong")


def fact_row(facts: Batch, high_ns: int) -> Row:
    """The row of a batch of facts, with the log clock after it."""
    fields = (
        facts.first_seq,
        facts.count,
        facts.incarnation,
        facts.wall_from_ns,
        facts.wall_to_ns,
        high_ns,
        _joined(facts.kinds),
    )
    return (*fields, _checksum("facts", fields, facts.payload), facts.payload)


def read_fact(row: Row) -> Batch:
    """The batch of facts in a row."""
    *fields, checksum, payload = row
    _checked("facts", fields, checksum, payload)
    position, count, incarnation, wall_from_ns, wall_to_ns, _, kinds = fields
    names = tuple(kinds.split())
    return Batch(
        node=COORDINATOR,
        incarnation=incarnation,
        first_seq=position,
        count=count,
        wall_from_ns=wall_from_ns,
        wall_to_ns=wall_to_ns,
        kinds=names,
        payload=payload,
    )


def batch_row(number: int, batch: Batch) -> Row:
    """The row of a worker's batch."""
    fields = (
        number,
        batch.node,
        batch.incarnation,
        batch.first_seq,
        batch.count,
        batch.wall_from_ns,
        batch.wall_to_ns,
        _joined(batch.kinds),
    )
    return (*fields, _checksum("batches", fields, batch.payload), batch.payload)


def read_batch(row: Row) -> Batch:
    """The worker's batch in a row."""
    *fields, checksum, payload = row
    _checked("batches", fields, checksum, payload)
    _, node, incarnation, first_seq, count, wall_from_ns, wall_to_ns, kinds = fields
    names = tuple(kinds.split())
    return Batch(
        node=node,
        incarnation=incarnation,
        first_seq=first_seq,
        count=count,
        wall_from_ns=wall_from_ns,
        wall_to_ns=wall_to_ns,
        kinds=names,
        payload=payload,
    )


def fact_header(row: Row) -> Batch:
    """The header in the first columns of a row of facts."""
    position, count, incarnation, wall_from_ns, wall_to_ns, _, kinds = row
    names = tuple(kinds.split())
    return Batch(
        node=COORDINATOR,
        incarnation=incarnation,
        first_seq=position,
        count=count,
        wall_from_ns=wall_from_ns,
        wall_to_ns=wall_to_ns,
        kinds=names,
        payload=b"",
    )


def batch_header(row: Row) -> Batch:
    """The header in the first columns of a row of a worker's batch."""
    _, node, incarnation, first_seq, count, wall_from_ns, wall_to_ns, kinds = row
    names = tuple(kinds.split())
    return Batch(
        node=node,
        incarnation=incarnation,
        first_seq=first_seq,
        count=count,
        wall_from_ns=wall_from_ns,
        wall_to_ns=wall_to_ns,
        kinds=names,
        payload=b"",
    )


def cut(facts: Batch, wanted: Sequence[Range]) -> Iterator[Batch]:
    """Parts of a row of facts, or of its header."""
    if facts.payload:
        return parts(facts, wanted)
    return (
        msgspec.structs.replace(facts, first_seq=first, count=stop - first)
        for first, stop in wanted
    )


CHECKED: dict[str, Reading] = {"facts": (FACTS, read_fact), "batches": (BATCHES, read_batch)}
"""How rows that hold events are read whole: the columns, and what makes a batch of them."""

HEADERS: dict[str, Reading] = {
    "facts": (FACTS.removesuffix(", checksum, payload"), fact_header),
    "batches": (BATCHES.removesuffix(", checksum, payload"), batch_header),
}
"""How only their headers are read."""


class Paging:
    """Reads the rows of a table that touch a window by the start of their span; a page ends where
    the next begins. No row is longer than `longest_ns`, and only rows before `stop` are read."""

    def __init__(
        self, table: str, reading: Reading, wanted: Window, stop: int, longest_ns: int
    ) -> None:
        columns, _ = reading
        number = columns.partition(",")[0]
        node = " AND node = :node" if table == "batches" and wanted.node is not None else ""
        kinds = {f"kind{index}": f" {kind} " for index, kind in enumerate(sorted(wanted.kinds))}
        named = " OR ".join(f"replace(kinds, :{name}, '') <> kinds" for name in kinds) or "TRUE"
        self.sql = (
            f"SELECT {columns} FROM {table} WHERE (wall_from_ns, {number}) > (:from_ns, :after) "
            f"AND wall_from_ns < :until AND wall_to_ns >= :since AND {number} < :stop"
            f"{node} AND ({named}) ORDER BY wall_from_ns, {number}"
        )
        since_ns = max(wanted.since_ns, NEVER_NS)
        values: dict[str, object] = {
            "node": wanted.node,
            "since": since_ns,
            "until": min(wanted.until_ns, FOREVER_NS),
            "stop": stop,
            "from_ns": max(since_ns - longest_ns, NEVER_NS),
            "after": -1,
        }
        self.values = values | kinds
        self._span = columns.split(", ").index("wall_from_ns")

    def move_to(self, last: Row) -> None:
        """Continue after a row."""
        self.values |= {"from_ns": last[self._span], "after": last[0]}


def _joined(kinds: Sequence[str]) -> str:
    # A space on both sides of each name, so that a search for ' Kind ' finds whole names only.
    return f" {' '.join(kinds)} "


def snapshot_row(snapshot: Snapshot) -> Row:
    """The row of a snapshot, its state compressed."""
    fields = (snapshot.position, snapshot.wall_ns, snapshot.schema)
    state = deflate(snapshot.state)
    return (*fields, _checksum("snapshots", fields, state), state)


def read_snapshot(row: Row) -> Snapshot:
    """The snapshot in a row."""
    position, wall_ns, schema, checksum, state = row
    _checked("snapshots", (position, wall_ns, schema), checksum, state)
    return Snapshot(
        position=position, wall_ns=wall_ns, schema=schema, state=inflate(state, MAX_STATE_BYTES)
    )


def plain_row(table: str, *fields: object) -> Row:
    """The row of a table without a payload."""
    return (*fields, _checksum(table, fields))


def read_plain(table: str, row: Row) -> Row:
    """The fields of a row of a table without a payload."""
    *fields, checksum = row
    _checked(table, fields, checksum, b"")
    return fields


def head_row(head: Head) -> Row:
    """The one row of the table `head`."""
    payload = msgspec.msgpack.encode(head)
    return (1, _checksum("head", (1,), payload), payload)


def read_head(row: Row) -> Head:
    """The head in its row."""
    number, checksum, payload = row
    _checked("head", (number,), checksum, payload)
    return _head.decode(payload)


def known_seqs(ask: Ask, node: str, incarnation: int) -> list[Range]:
    """Every range of seq of a worker's incarnation that is stored or was archived."""
    stream = (node, incarnation)
    known: list[Range] = []
    archived = f"SELECT {ARCHIVED} FROM archived WHERE node = ? AND incarnation = ?"
    for row in ask(archived, stream):
        *_, first, count = read_plain("archived", row)
        seq_ranges.add(known, first, first + count)
    stored = (
        "SELECT first_seq, count FROM batches WHERE node = ? AND incarnation = ? ORDER BY first_seq"
    )
    for first, count in ask(stored, stream):
        seq_ranges.add(known, first, first + count)
    return known


def released_seqs(ask: Ask) -> dict[tuple[str, int], list[Range]]:
    """The ranges of seq of each worker's incarnation that were released."""
    found: dict[tuple[str, int], list[Range]] = {}
    for row in ask(f"SELECT {ARCHIVED} FROM archived", ()):
        _, node, incarnation, first, count = read_plain("archived", row)
        seq_ranges.add(found.setdefault((node, incarnation), []), first, first + count)
    return found


def new_seqs(ask: Ask, batch: Batch) -> list[Range]:
    """The ranges of a batch's seqs that are neither stored nor archived."""
    first, stop = batch.first_seq, batch.stop_seq
    of = {"node": batch.node, "incarnation": batch.incarnation, "first": first, "stop": stop}
    known: list[Range] = []
    for table in ("archived", "batches"):
        which = f"FROM {table} WHERE node = :node AND incarnation = :incarnation AND first_seq"
        # Ranges in a table do not overlap: the first that matters is the last one that begins
        # before the batch.
        sql = (
            f"SELECT first_seq, first_seq + count {which} < :stop AND first_seq >= "
            f"coalesce((SELECT max(first_seq) {which} <= :first), :first)"
        )
        for known_first, known_stop in ask(sql, of):
            seq_ranges.add(known, known_first, known_stop)
    return seq_ranges.missing(known, first, stop)
