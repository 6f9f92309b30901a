"""Events as Arrow columns, for Parquet and SQL.

One row per event: the envelope, the tags in their own columns, and the body as JSON. Exports also
have the body as recorded (`raw`), so that reading it back loses nothing: JSON has no NaN, and kinds
of a newer release must be restored exactly.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from strata.core.events import COORDINATOR, TAGS, Codec, Event, Fact, UnknownFact
from strata.errors import Corrupt
from strata.timeline.read.records import Record

NUMBERS = frozenset({"step", "epoch"})
ROWS = 65_536

SCHEMA = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("node", pa.string()),
        ("incarnation", pa.int64()),
        ("seq", pa.int64()),
        ("position", pa.int64()),
        ("wall_ns", pa.int64()),
        ("mono_ns", pa.int64()),
        ("kind", pa.string()),
        ("version", pa.int32()),
        ("op", pa.string()),
        ("cause", pa.list_(pa.string())),
        *((tag, pa.int64() if tag in NUMBERS else pa.string()) for tag in TAGS),
        ("body", pa.string()),
    ]
)
EXACT = SCHEMA.append(pa.field("raw", pa.binary()))
"""The schema with the body as recorded."""

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


def tables(records: Iterable[Record], exact: bool) -> Iterator[pa.Table]:
    """Records as tables of at most `ROWS` rows."""
    rest = iter(records)
    while chunk := list(islice(rest, ROWS)):
        yield table(chunk, exact)


def table(records: list[Record], exact: bool) -> pa.Table:
    """Some records as one table."""
    shapes = [_shape(type(record.event.body)) or _shape_of_unknown(record) for record in records]
    columns: dict[str, list[object]] = {
        "at_ns": [record.at_ns for record in records],
        "node": [record.node for record in records],
        "incarnation": [record.incarnation for record in records],
        "seq": [record.event.seq for record in records],
        "position": [
            record.event.seq if record.node == COORDINATOR else None for record in records
        ],
        "wall_ns": [record.event.wall_ns for record in records],
        "mono_ns": [record.event.mono_ns for record in records],
        "kind": [shape.kind for shape in shapes],
        "version": [shape.version for shape in shapes],
        "op": [record.event.op for record in records],
        "cause": [record.event.cause for record in records],
        "body": [_shown(record.event) for record in records],
        **{tag: [None] * len(records) for tag in TAGS},
    }
    for row, (record, shape) in enumerate(zip(records, shapes, strict=True)):
        for tag in shape.tags:
            columns[tag][row] = _tag(record, tag)
    if exact:
        columns["raw"] = [_recorded(record.event) for record in records]
    return pa.table(columns, schema=EXACT if exact else SCHEMA)


class Shape(NamedTuple):
    """What all events of a kind have in common; cached per kind, which halves the time."""

    kind: str
    version: int
    tags: tuple[str, ...]


@cache
def _shape(body: type[Fact]) -> Shape | None:
    if body is UnknownFact:
        return None
    name, _, version = str(body.__struct_config__.tag).partition("/")
    tags = tuple(tag for tag in TAGS if tag in body.__struct_fields__)
    return Shape(name, int(version or 1), tags)


def _shape_of_unknown(record: Record) -> Shape:
    return Shape(record.kind, record.version, TAGS)


def _tag(record: Record, tag: str) -> object:
    value = record.get(tag)
    if value is None or value in ("", -1):
        return None
    if tag in NUMBERS:
        return value if isinstance(value, int) else None
    return str(value)


def _shown(event: Event) -> str:
    body = event.body
    if isinstance(body, UnknownFact):
        return _json.encode(body.fields).decode()
    return _json.encode(msgspec.structs.asdict(body)).decode()


def _recorded(event: Event) -> bytes:
    body = event.body
    if isinstance(body, UnknownFact):
        return _msgpack.encode({"kind": body.tag, **body.fields})
    return _msgpack.encode(body)


def events_of(rows: pa.RecordBatch, codec: Codec) -> Iterator[tuple[str, int, Event]]:
    """The events of some rows, each with its node and incarnation."""
    named = zip(*(rows.column(name).to_pylist() for name in ("node", "incarnation")), strict=True)
    parts = (
        rows.column(name).to_pylist()
        for name in ("seq", "wall_ns", "mono_ns", "raw", "cause", "op")
    )
    try:
        loose = [
            (seq, wall_ns, mono_ns, msgspec.Raw(raw), tuple(cause), op)
            for seq, wall_ns, mono_ns, raw, cause, op in zip(*parts, strict=True)
        ]
    except TypeError as error:  # a value is missing
        raise Corrupt(f"some rows are not events: {error}") from error
    events = codec.decode(_msgpack.encode(loose))
    for (node, incarnation), event in zip(named, events, strict=True):
        yield node, incarnation, event
