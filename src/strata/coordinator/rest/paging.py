"""Paging of lists by cursor.

A cursor is the encoded sort key of the last item of a page. It stays valid while items are added
and removed, and no item is shown twice.
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
"""Sort key in ascending order; for newest-first lists the time is negated."""

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="Maximum number of items.")]
Cursor = Annotated[
    str,
    QueryParameter(
        max_length=1024, description=f"The {NEXT} of the previous page; empty for the first page."
    ),
]

HEADERS = [
    ResponseHeader(
        name=TOTAL, documentation_only=True, description="Total number of items.", required=True
    ),
    ResponseHeader(
        name=NEXT,
        documentation_only=True,
        description="Value of `cursor` for the next page; absent on the last page.",
    ),
]

_decoder: msgspec.json.Decoder[Key] = msgspec.json.Decoder(Key)


class Page(Struct, Generic[Item], frozen=True):
    """Items of one page, the total number of items, and the cursor of the next page."""

    items: list[Item]
    total: int
    next_cursor: str = ""


class Named(Protocol):
    """Something with an id."""

    @property
    def id(self) -> str:
        """The id."""


def by_id(item: Named) -> Key:
    """Sort key by id, with `worker-9` before `worker-10`."""
    name = item.id
    return len(name), name, ""


def newest_first(moment_ns: int, *names: str) -> Key:
    """Sort key by time, newest first, then by names."""
    first, second = (*names, "", "")[:2]
    return -moment_ns, first, second


def page(items: Iterable[Item], key: Callable[[Item], Key], limit: int, cursor: str) -> Page[Item]:
    """The first `limit` items after the cursor, in the order of their keys."""
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
            f"invalid cursor {cursor[:40]!r}",
            hint=f"pass the {NEXT} header of the previous page, or no cursor for the first page",
        ) from error


def within(shown: list[Shown]) -> list[Shown]:
    """As many items as fit in an answer, at least one."""
    room_bytes = ANSWER_BYTES
    for count, item in enumerate(shown):
        room_bytes -= len(msgspec.json.encode(item))
        if room_bytes < 0 and count:
            return shown[:count]
    return shown


def paged(shown: list[Shown], total: int, next_cursor: str) -> Response[list[Shown]]:
    """A page as a response."""
    headers = {TOTAL: str(total)}
    if next_cursor:
        headers[NEXT] = next_cursor
    return Response(shown, headers=headers)
