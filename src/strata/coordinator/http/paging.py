"""Bounded lists: a page of what comes after a key.

A cursor is the key of the last item that was shown, packed. It stays valid while items come and
go, and nothing is shown twice because of that.
"""

import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Annotated, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from litestar import Response
from litestar.datastructures import ResponseHeader
from litestar.params import QueryParameter
from msgspec import Struct

from strata.errors import InvalidArgument

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
ANSWER_BYTES = 4 * 1024 * 1024
TOTAL = "X-Total-Count"
NEXT = "X-Next-Cursor"

Item = TypeVar("Item")
Shown = TypeVar("Shown")
Key: TypeAlias = tuple[int, str, str]
"""Ascending is the order of the list: a moment for newest-first comes negated."""

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="How many at most.")]
Cursor = Annotated[
    str,
    QueryParameter(
        max_length=1024, description=f"The {NEXT} of the page before; empty for the first."
    ),
]

HEADERS = [
    ResponseHeader(
        name=TOTAL, documentation_only=True, description="How many there are.", required=True
    ),
    ResponseHeader(
        name=NEXT,
        documentation_only=True,
        description="Pass it as `cursor` for the next page; absent on the last.",
    ),
]

_decoder: msgspec.json.Decoder[Key] = msgspec.json.Decoder(Key)


class Page(Struct, Generic[Item], frozen=True):
    """Some items of a list, how many there are, and how to ask for those that follow."""

    items: list[Item]
    total: int
    next_cursor: str = ""


class Named(Protocol):
    """Something with an id."""

    @property
    def id(self) -> str:
        """Its name."""


def by_id(item: Named) -> Key:
    """Orders names so that `worker-9` comes before `worker-10`."""
    name = item.id
    return len(name), name, ""


def newest_first(moment_ns: int, *names: str) -> Key:
    """Orders by time, newest first; names tell apart what happened at the same moment."""
    first, second = (*names, "", "")[:2]
    return -moment_ns, first, second


def page(items: Iterable[Item], key: Callable[[Item], Key], limit: int, cursor: str) -> Page[Item]:
    """The `limit` items that follow the cursor, in the order of their keys."""
    everything = list(items)
    after = unpack(cursor) if cursor else None
    rest = everything if after is None else [item for item in everything if key(item) > after]
    chosen = heapq.nsmallest(limit, rest, key=key)
    more = len(rest) > len(chosen)
    return Page(chosen, len(everything), pack(key(chosen[-1])) if more else "")


def pack(key: Key) -> str:
    """The cursor of a key."""
    return urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def unpack(cursor: str) -> Key:
    """The key of a cursor."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return _decoder.decode(urlsafe_b64decode(padded))
    except ValueError as error:  # not ASCII, not base64, not JSON, or not a key
        raise InvalidArgument(
            f"cursor {cursor[:40]!r} is not one that was handed out",
            hint=f"pass the {NEXT} header of the page before, or no cursor to begin anew",
        ) from error


def within(shown: list[Shown]) -> list[Shown]:
    """As many items as an answer may hold, at least one."""
    room_bytes = ANSWER_BYTES
    for count, item in enumerate(shown):
        room_bytes -= len(msgspec.json.encode(item))
        if room_bytes < 0 and count:
            return shown[:count]
    return shown


def paged(shown: list[Shown], total: int, next_cursor: str) -> Response[list[Shown]]:
    """A page as an answer."""
    headers = {TOTAL: str(total)}
    if next_cursor:
        headers[NEXT] = next_cursor
    return Response(shown, headers=headers)
