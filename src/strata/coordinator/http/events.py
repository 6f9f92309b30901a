"""Facts of the past, from a position on."""

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from strata.coordinator.engine import Engine
from strata.coordinator.http import views
from strata.coordinator.http.faults import READS
from strata.coordinator.http.models import FactResponse
from strata.coordinator.http.paging import DEFAULT_LIMIT, HEADERS, Limit, paged
from strata.coordinator.http.ports import TheApi
from strata.coordinator.http.stream import Kinds, wanted_kinds
from strata.core.events import Event

ANSWER_BYTES = 4 * 1024 * 1024

Position = Annotated[int, QueryParameter(ge=0, le=2**53 - 1, description="The first fact wanted.")]


@get("/events", responses=READS, response_headers=HEADERS)
async def list_events(
    api: TheApi, position: Position = 0, limit: Limit = DEFAULT_LIMIT, kinds: Kinds = ""
) -> Response[list[FactResponse]]:
    """Facts in the order they were recorded.

    The total is how many there are of all kinds; the next cursor is a position. An answer may
    hold fewer facts than asked for, even none, where few of the wanted kinds are found.
    """
    wanted = wanted_kinds(kinds)
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
