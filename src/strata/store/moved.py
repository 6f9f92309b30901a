"""Facts that were moved out of the log: what their row keeps in place of them.

The row still says which facts these are and when they were recorded. Its payload is a reference:
where the segment is, and its checksum. A reader is given a function that fetches what a reference
names; what it brings is compared with the checksum.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import xxhash
from msgspec import Struct

from strata.errors import Corrupt, Unavailable

MAGIC = b"\xc1mov1"
"""Begins a reference; neither a segment nor a zstd frame begins like this."""


class Moved(Struct, frozen=True, array_like=True):
    """Where a payload is: an object of a storage, its size and its checksum."""

    place: str
    name: str
    size_bytes: int
    xxh3: str


Fetch: TypeAlias = Callable[[Moved], bytes]
_moved = msgspec.msgpack.Decoder(Moved)


def checksum(payload: bytes) -> str:
    """What a reference keeps of a payload."""
    return xxhash.xxh3_128_hexdigest(payload)


def reference(moved: Moved) -> bytes:
    """The payload of a row whose facts are elsewhere."""
    return MAGIC + msgspec.msgpack.encode(moved)


def is_moved(payload: bytes) -> bool:
    """Whether a payload is a reference."""
    return payload.startswith(MAGIC)


def fetched(payload: bytes, fetch: Fetch) -> bytes:
    """The payload that a reference stands for; `Corrupt` if it is not the one that was moved."""
    try:
        moved = _moved.decode(payload.removeprefix(MAGIC))
    except msgspec.DecodeError as error:
        raise Corrupt(f"a reference to moved facts cannot be read: {error}") from error
    found = fetch(moved)
    if len(found) != moved.size_bytes or checksum(found) != moved.xxh3:
        raise Corrupt(f"{moved.place}/{moved.name} does not hold the facts that were moved there")
    return found


def unreachable(moved: Moved) -> bytes:
    """How a reader fetches that knows no storage."""
    raise Unavailable(
        f"facts were moved to {moved.place}, which is not read here",
        hint="ask the coordinator, or read its data folder with `strata timeline --data`",
    )
