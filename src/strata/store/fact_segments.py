"""Segments: facts of many appends as one compact payload.

A step commit in a row of its own takes about 250 bytes: its names and its reason are repeated each
time, and a payload that small does not compress. A segment holds some thousand facts by column: the
fields of each kind side by side, numbers as differences, repeated texts as numbers, and a cause as
the distance to the fact it names. Then zstd compresses the whole. A step commit then takes 4 bytes,
where zstd alone over the same facts takes 14 (benchmarks/bench_store.py).

A segment is exact: `expand` returns byte for byte the list of events that `compress` was given, and
`compress` verifies that before it returns. Events that do not fit into columns are refused, and
stay in their rows.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import zstandard
from msgspec import Struct

from strata.core.events import position_id
from strata.errors import UNDECODABLE, Corrupt, InvalidArgument

MAGIC = b"\xc1seg1"
"""The first bytes of a segment; no zstd frame begins like this."""

LEVEL = 12
MAX_BYTES = 64 * 2**20
MAX_EVENTS = 65_536

Integers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
Column: TypeAlias = tuple[str, Any]
"""How the values are stored, and what is stored."""

_encode = msgspec.msgpack.encode
_INT64 = range(-(2**63), 2**63)


class _Segment(Struct, array_like=True):
    """The columns of a segment. A form is the names of the fields of a body, in their order; each
    body's form is a number in `forms`."""

    first: int
    count: int
    wall_ns: Column
    mono_ns: Column
    causes: Column
    cause_counts: Column
    ops: Column
    forms: Column
    fields: list[list[str]]
    columns: list[list[Column]]


_segment = msgspec.msgpack.Decoder(_Segment)
Row: TypeAlias = tuple[int, int, int, dict[str, object], list[str], str]
_events = msgspec.msgpack.Decoder(list[Row])


def is_segment(payload: bytes) -> bool:
    """Whether a payload is a segment, not one compressed list of events."""
    return payload.startswith(MAGIC)


def compress(encoded: bytes) -> bytes:
    """A segment of a list of events in msgpack; `InvalidArgument` if it cannot be one."""
    try:
        events = _events.decode(encoded)
    except UNDECODABLE as error:
        raise InvalidArgument(f"these events do not fit into a segment: {error}") from error
    if not 0 < len(events) <= MAX_EVENTS:
        raise InvalidArgument(f"{len(events)} events do not make one segment")
    try:
        columns = _encode(_columns_of(events))
    except OverflowError as error:  # clocks that are centuries apart
        raise InvalidArgument(f"these events do not fit into a segment: {error}") from error
    segment = MAGIC + zstandard.ZstdCompressor(level=LEVEL).compress(columns)
    if not _holds(segment, encoded):
        raise InvalidArgument("these events would not be restored exactly from a segment")
    return segment


def _holds(segment: bytes, encoded: bytes) -> bool:
    try:
        return expand(segment) == encoded
    except Corrupt:
        return False


def _columns_of(events: Sequence[Row]) -> _Segment:
    first = events[0][0]
    bodies: dict[tuple[str, ...], list[dict[str, object]]] = defaultdict(list)
    numbers: dict[tuple[str, ...], int] = {}
    forms = []
    for *_, body, _, _ in events:
        form = tuple(body)
        forms.append(numbers.setdefault(form, len(numbers)))
        bodies[form].append(body)
    return _Segment(
        first=first,
        count=len(events),
        wall_ns=_column([wall for _, wall, *_ in events]),
        mono_ns=_column([mono - wall for _, wall, mono, *_ in events]),
        causes=_column([_distance(seq, each) for seq, *_, named, _ in events for each in named]),
        cause_counts=_column([len(named) for *_, named, _ in events]),
        ops=_column([op for *_, op in events]),
        forms=_column(forms),
        fields=[list(form) for form in numbers],
        columns=[_fields(form, bodies[form]) for form in numbers],
    )


def _fields(form: tuple[str, ...], bodies: list[dict[str, object]]) -> list[Column]:
    """The columns of the fields of bodies of one form.

    A number that follows from a text, as an incarnation does from its worker, is stored once for
    each text.
    """
    values = {name: [body[name] for body in bodies] for name in form}
    columns = {name: _column(values[name]) for name in form}
    texts = [name for name in form if columns[name][0] == "texts"]
    for name in form:
        if columns[name][0] in ("plain", "steps"):
            by_text = next((t for t in texts if _follows(values[t], values[name])), None)
            if by_text is not None:
                known = dict(zip(values[by_text], values[name], strict=True))
                columns[name] = ("follows", (by_text, known))
    return [columns[name] for name in form]


def _follows(texts: list[object], values: list[object]) -> bool:
    """Whether equal texts always have equal values."""
    found: dict[object, object] = {}
    return all(found.setdefault(t, v) == v for t, v in zip(texts, values, strict=True))


def _distance(seq: int, cause: str) -> object:
    """A cause as the number of facts between it and the fact that names it, if it is a fact."""
    if cause.startswith("@") and cause[1:].isdecimal() and position_id(int(cause[1:])) == cause:
        return seq - int(cause[1:])
    return cause


def _column(values: Sequence[object]) -> Column:
    if not values:
        return ("all", [])
    if _are_same(values):
        return ("same", values[0])
    if all(type(value) is int and value in _INT64 for value in values):
        return _numbers(np.array(values, np.int64))
    if all(type(value) is str for value in values):
        known = {text: number for number, text in enumerate(dict.fromkeys(values))}
        if 2 * len(known) <= len(values):
            return ("texts", (list(known), _column([known[text] for text in values])))
    return ("all", list(values))


def _are_same(values: Sequence[object]) -> bool:
    """Whether all values have the same encoding: 1, 1.0 and True are equal, but not encoded
    alike."""
    first = values[0]
    if type(first) in (int, str, bool):
        return all(type(value) is type(first) and value == first for value in values)
    encoded = _encode(first)
    return all(_encode(value) == encoded for value in values)


def _numbers(values: Integers) -> Column:
    """Integers, or the differences between them, whichever is smaller; lowest bytes first."""
    plain, steps = _planes(values - values[0]), _planes(np.diff(values))
    if _size(steps) <= _size(plain):
        return ("steps", (int(values[0]), steps))
    return ("plain", (int(values[0]), plain))


def _planes(values: Integers) -> bytes:
    """Numbers of either sign as unsigned ones: all lowest bytes, then all second ones, ..."""
    unsigned = ((values << 1) ^ (values >> 63)).astype("<u8")
    width = (int(unsigned.max()).bit_length() + 7) // 8
    return unsigned.view(np.uint8).reshape(-1, 8).T[:width].tobytes()


def _from_planes(data: bytes, count: int) -> Integers:
    planes = np.zeros((8, count), np.uint8)
    width = len(data) // count
    planes[:width] = np.frombuffer(data, np.uint8).reshape(width, count)
    unsigned = np.ascontiguousarray(planes.T).view("<u8").reshape(count)
    negative = (unsigned & np.uint64(1)).astype(np.int64)
    return (unsigned >> np.uint64(1)).astype(np.int64) ^ -negative


def _size(data: bytes) -> int:
    return len(zstandard.ZstdCompressor(level=1).compress(data))


def expand(segment: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """The list of events in a segment, in msgpack; `Corrupt` if it is not a segment."""
    try:
        frame = segment.removeprefix(MAGIC)
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_bytes:
            raise Corrupt(f"a segment states a size of {size} bytes")
        columns = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        return _encode(_events_of(_segment.decode(columns)))
    except (zstandard.ZstdError, *UNDECODABLE, *_MALFORMED) as error:
        raise Corrupt(f"a segment of facts cannot be read: {error!r}") from error


_MALFORMED = (ValueError, TypeError, KeyError, IndexError, OverflowError, StopIteration)


def _events_of(segment: _Segment) -> list[tuple[object, ...]]:
    count = segment.count
    if not 0 < count <= MAX_EVENTS:
        raise ValueError(f"{count} events")
    walls: list[int] = _values(segment.wall_ns, count)
    offsets: list[int] = _values(segment.mono_ns, count)
    counts: list[int] = _values(segment.cause_counts, count)
    causes = iter(_values(segment.causes, sum(counts)))
    ops = _values(segment.ops, count)
    forms = _values(segment.forms, count)
    bodies = [
        _bodies(names, columns, forms.count(number))
        for number, (names, columns) in enumerate(zip(segment.fields, segment.columns, strict=True))
    ]
    return [
        (seq, wall, wall + offset, next(bodies[form]), _named(seq, causes, named), op)
        for seq, wall, offset, form, named, op in zip(
            range(segment.first, segment.first + count),
            walls,
            offsets,
            forms,
            counts,
            ops,
            strict=True,
        )
    ]


def _named(seq: int, causes: Iterator[Any], count: int) -> list[str]:
    if not count:
        return []
    found = [next(causes) for _ in range(count)]
    return [each if isinstance(each, str) else position_id(seq - each) for each in found]


def _bodies(names: list[str], columns: list[Column], count: int) -> Iterator[dict[str, object]]:
    values: dict[str, list[Any]] = {}
    for name, column in zip(names, columns, strict=True):
        if column[0] != "follows":
            values[name] = _values(column, count)
    for name, (way, stored) in zip(names, columns, strict=True):
        if way == "follows":
            by_text, known = stored
            values[name] = [known[text] for text in values[by_text]]
    rows = zip(*(values[name] for name in names), strict=True)
    return (dict(zip(names, row, strict=True)) for row in rows)


def _values(column: Column, count: int) -> list[Any]:
    """The values of a column."""
    way, stored = column
    if way == "same":
        return [stored] * count
    if way == "texts":
        texts, numbers = stored
        return [texts[number] for number in _values(numbers, count)]
    if way == "plain":
        first, planes = stored
        return list((_from_planes(planes, count) + np.int64(first)).tolist())
    if way == "steps":
        first, planes = stored
        steps = np.concatenate([np.array([first], np.int64), _from_planes(planes, count - 1)])
        return list(np.cumsum(steps).tolist())
    if way != "all" or len(stored) != count:
        raise ValueError(f"a column of {count} values is stored as {way!r}")
    return list(stored)
