"""Random messages of any protobuf type, from a seed: any fields, of which some name real things."""

from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import Struct

ODD_TEXTS = ("", "\x00", "\n", "../../x", "é" * 300, "x" * 5_000, "[" * 3_000, '{"a": NaN}')
ODD_BYTES = (b"", b"garbage", b"\x28\xb5\x2f\xfd" + bytes(20), b"\x91" * 3_000, b"\xff" * 50)
ODD_NUMBERS = (0, 1, -1, 2, 7, 1_000, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
ODD_FLOATS = (0.0, -1.0, 0.5, 1e308, float("inf"), float("-inf"), float("nan"))
MOST_ITEMS = 3
MOST_DEPTH = 4
TEXT = FieldDescriptor.TYPE_STRING
LIMITS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}


class Known(Struct):
    """Texts and numbers that mean something at the moment, such as ids and generations."""

    texts: Sequence[str] = ()
    numbers: Sequence[int] = ()


def fill(dice: Random, message: Message, known: Known, depth: int = 0) -> None:
    """Set some fields of a message; of a `oneof` the last one that is set stays."""
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    for field in fields:
        if dice.random() < 0.4 or depth >= MOST_DEPTH:
            continue
        if _is_map(field):
            entries = getattr(message, field.name)
            value = field.message_type.fields_by_name["value"]
            for _ in range(dice.randrange(MOST_ITEMS) if value.message_type is None else 0):
                entries[_scalar_text(dice, known)] = _scalar(dice, value, known)
        elif field.message_type is not None:
            _fill_inner(dice, message, field, known, depth)
        elif field.is_repeated:
            count = dice.randrange(MOST_ITEMS + 1)
            getattr(message, field.name).extend(_scalar(dice, field, known) for _ in range(count))
        else:
            setattr(message, field.name, _scalar(dice, field, known))


def _fill_inner(dice: Random, message: Message, field: Any, known: Known, depth: int) -> None:
    inner = getattr(message, field.name)
    if not field.is_repeated:
        inner.SetInParent()
        fill(dice, inner, known, depth + 1)
        return
    for _ in range(dice.randrange(MOST_ITEMS + 1)):
        fill(dice, inner.add(), known, depth + 1)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar(dice: Random, field: Any, known: Known) -> Any:
    if field.type == TEXT:
        return _scalar_text(dice, known)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return dice.choice(ODD_BYTES)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return dice.random() < 0.5
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return dice.choice(ODD_FLOATS)
    lowest, highest = LIMITS[field.type]
    usual = known.numbers if known.numbers and dice.random() < 0.6 else ODD_NUMBERS
    number = dice.randrange(12) if field.type == FieldDescriptor.TYPE_ENUM else dice.choice(usual)
    return min(max(number, lowest), highest)


def _scalar_text(dice: Random, known: Known) -> str:
    return dice.choice(known.texts if known.texts and dice.random() < 0.7 else ODD_TEXTS)
