"""References to facts that were moved out of the log.

The row of moved facts still has their positions and times. Its payload is a reference: the place of
the segment, and its checksum. A reader is given a function that fetches a reference; the fetched
bytes are compared with the checksum.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import xxhash
from msgspec import Struct

from strata.errors import UNDECODABLE, Corrupt, Unavailable

MAGIC = b"\xc1mov1"
"""The first bytes of a reference; neither a segment nor a zstd frame begins like this."""


class Moved(Struct, frozen=True, array_like=True):
    """The place of a payload: an object in a storage, its size and its checksum."""

    place: str
    name: str
    size_bytes: int
    xxh3: str


Fetch: TypeAlias = Callable[[Moved], bytes]
_moved = msgspec.msgpack.Decoder(Moved)


def checksum(payload: bytes) -> str:
    """The checksum of a payload in a reference."""
    return xxhash.xxh3_128_hexdigest(payload)


def reference(moved: Moved) -> bytes:
    """The payload of a row whose facts are elsewhere."""
    return MAGIC + msgspec.msgpack.encode(moved)


def is_moved(payload: bytes) -> bool:
    """Whether a payload is a reference."""
    return payload.startswith(MAGIC)


def fetched(payload: bytes, fetch: Fetch) -> bytes:
    """The payload of a reference; `Corrupt` if it is not the one that was moved."""
    try:
        moved = _moved.decode(payload.removeprefix(MAGIC))
    except UNDECODABLE as error:
        raise Corrupt(f"a reference to moved facts cannot be read: {error}") from error
    found = fetch(moved)
    if len(found) != moved.size_bytes or checksum(found) != moved.xxh3:
        raise Corrupt(f"{moved.place}/{moved.name} does not hold the facts that were moved there")
    return found


def unreachable(moved: Moved) -> bytes:
    """The fetch function of a reader without access to storage: always refuses."""
    raise Unavailable(
        f"facts were moved to {moved.place}, which this reader has no access to",
        hint="ask the coordinator, or read its data folder with `strata timeline --data`",
    )
