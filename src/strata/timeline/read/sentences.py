"""Every kind of fact as one plain sentence.

A kind's `sentence` is a template over its fields; a test checks that no kind lacks one. The subject
of a worker's own event is left out, because the worker is shown beside the sentence. A user's own
kind is shown by its name and fields.

How a template is written:

    {size_bytes}         the field's value, in the unit that its name ends with
    {slots:slot}         a number of things: 1 slot, 2 slots
    {offset_ns:ahead}    a difference of time: 2 ms ahead, 2 ms behind
    {lost:positions}     ranges of positions: @5 to @9
    [: {reason}]         left out when the field has no value
    [{ok:?}did|did not]  the second text when the field has no value; `?` prints nothing itself
"""

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import NamedTuple

import msgspec

from strata.timeline.read.records import SECOND_NS, Record

TEXT_CHARS = 200
ITEMS = 4
HASH_CHARS = 12
FORMATTER = Formatter()
CHOICE = re.compile(r"\[([^\[\]|]*)(?:\|([^\[\]|]*))?\]")


class Piece(NamedTuple):
    """Text of a template, and the field after it, if there is one."""

    text: str
    field: str | None
    unit: str


class Part(NamedTuple):
    """A part of a template; one in brackets has another text for when a field has no value."""

    pieces: tuple[Piece, ...]
    otherwise: tuple[Piece, ...] | None


def sentence(record: Record) -> str:
    """What a record says, in one line."""
    template, fields = record.event.body.sentence, record.fields()
    if template:
        text = "".join(_filled(part, fields) for part in parsed(template))
    else:
        given = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
        text = f"{record.kind}: {_listed(given)}" if given else record.kind
    return shortened(" ".join(text.split()))


@cache
def parsed(template: str) -> tuple[Part, ...]:
    """A template as its parts."""
    parts, end = [], 0
    for found in CHOICE.finditer(template):
        parts.append(Part(_pieces(template[end : found.start()]), None))
        parts.append(Part(_pieces(found[1]), _pieces(found[2] or "")))
        end = found.end()
    return (*parts, Part(_pieces(template[end:]), None))


def _pieces(text: str) -> tuple[Piece, ...]:
    return tuple(Piece(before, name, unit or "") for before, name, unit, _ in FORMATTER.parse(text))


def _filled(part: Part, fields: Mapping[str, object]) -> str:
    pieces = part.pieces
    if part.otherwise is not None and not all(
        _has_value(piece.field, fields.get(piece.field)) for piece in pieces if piece.field
    ):
        pieces = part.otherwise
    return "".join(
        piece.text + (_measured(piece, fields.get(piece.field)) if piece.field else "")
        for piece in pieces
    )


def _has_value(name: str, value: object) -> bool:
    """Whether a field says something; a size, a duration or a signal of 0 says nothing."""
    if name == "signal" or name.endswith(("_bytes", "_s")):
        return bool(value)
    return value is not False and value not in (None, "", -1, [], {})


def _listed(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in fields.items())


def _measured(piece: Piece, value: object) -> str:
    """A field in the unit that its name ends with, or that the template names."""
    name = str(piece.field)
    if piece.unit == "?":
        return ""
    if isinstance(value, list) and piece.unit == "positions":
        return shown([f"@{first} to @{stop - 1}" for first, stop in value])
    if isinstance(value, int) and piece.unit == "ahead":
        return f"{seconds(abs(value))} {'behind' if value < 0 else 'ahead'}"
    if isinstance(value, int) and piece.unit:
        return counted(value, piece.unit)
    if isinstance(value, int) and name.endswith("_ns"):
        return seconds(value)
    if isinstance(value, int | float) and name.endswith("_s"):
        return lasting(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return sized(value)
    return str(value)[:HASH_CHARS] if name == "blob" else shown(value)


def shown(value: object) -> str:
    """A value of a field, short enough for a sentence."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        value = [f"{name} {shown(each)}" for name, each in value.items()]
    if isinstance(value, list):
        more = f" and {len(value) - ITEMS} more" if len(value) > ITEMS else ""
        return (", ".join(map(shown, value[:ITEMS])) or "none") + more
    return value if isinstance(value, str) else str(msgspec.to_builtins(value))


def sized(count: int) -> str:
    """A number of bytes in the unit that people read it in."""
    if count < 1_000:
        return f"{count} B"
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def shortened(text: str, most: int = TEXT_CHARS) -> str:
    """A text cut to a length."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seconds(span_ns: float) -> str:
    """A span of time in words."""
    span_s = span_ns / SECOND_NS
    if abs(span_s) < 0.001:
        return f"{span_ns / 1000:.0f} µs"
    if abs(span_s) < 1:
        return f"{span_s * 1000:.0f} ms"
    if abs(span_s) < 120:
        return f"{span_s:.1f} s"
    if abs(span_s) < 7_200:
        return f"{span_s / 60:.1f} min"
    return f"{span_s / 3_600:.1f} h"


def lasting(span_s: float) -> str:
    """The same of a span in seconds."""
    return seconds(span_s * SECOND_NS)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things, in the right number."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"
