"""Facts of the past, from a position on."""

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from strata.coordinator.engine import Engine
from strata.coordinator.http import views
from strata.coordinator.http.faults import READS
from strata.coordinator.http.models import FactResponse
from strata.coordinator.http.paging import ANSWER_BYTES, DEFAULT_LIMIT, HEADERS, Limit, paged
from strata.coordinator.http.ports import TheApi
from strata.coordinator.http.stream import Kinds, wanted_kinds
from strata.core.cluster import CODEC
from strata.core.events import Event, Fact

NEWEST_LOOKED_AT = 16_384

Newest = Annotated[
    bool,
    QueryParameter(description="The newest first, of the last few thousand; `position` is unused."),
]
Position = Annotated[int, QueryParameter(ge=0, le=2**53 - 1, description="The first fact wanted.")]


@get("/events", responses=READS, response_headers=HEADERS)
async def list_events(
    api: TheApi,
    position: Position = 0,
    limit: Limit = DEFAULT_LIMIT,
    kinds: Kinds = "",
    newest: Newest = False,
) -> Response[list[FactResponse]]:
    """Facts in the order they were recorded.

    The total is how many there are of all kinds; the next cursor is a position. An answer may
    hold fewer facts than asked for, even none, where few of the wanted kinds are found.
    """
    wanted = wanted_kinds(kinds)
    if newest:
        latest = await look_back(api.engine, wanted, limit)
        return paged([views.fact(event) for event in latest], api.engine.position, "")
    shown: list[FactResponse] = []
    room_bytes = ANSWER_BYTES
    following = position
    for event in await read(api.engine, position):
        if not wanted or event.kind in wanted:
            fact = views.fact(event)
            room_bytes -= len(msgspec.json.encode(fact))
            if len(shown) == limit or (shown and room_bytes < 0):
                break
            shown.append(fact)
        following = event.seq + 1
    end = api.engine.position
    return paged(shown, end, str(following) if following < end else "")


async def read(engine: Engine, position: int) -> list[Event]:
    """Some facts from a position on, without waiting for more to happen."""
    if position < engine.position:
        async for events in engine.subscribe(position):
            return events
    return []


async def look_back(engine: Engine, kinds: frozenset[str], limit: int) -> list[Event]:
    """The newest facts of these kinds among the last few thousand, newest first."""
    first = max(engine.position - NEWEST_LOOKED_AT, 0)
    if engine.recent and engine.recent[0].seq <= first:
        facts: Iterable[Event] = reversed(engine.recent)
    else:
        stored = await asyncio.to_thread(lambda: list(engine.kernel.store.read(first)))
        facts = reversed(stored)
    wanted = types_of(kinds)
    return list(islice((e for e in facts if not kinds or type(e.body) in wanted), limit))


@lru_cache(64)
def types_of(kinds: frozenset[str]) -> frozenset[type[Fact]]:
    """The facts of these kinds: thousands are compared, and a type is told apart at once."""
    return frozenset(fact for tag, fact in CODEC.kinds.items() if tag.partition("/")[0] in kinds)
