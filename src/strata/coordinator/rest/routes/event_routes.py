"""Endpoints of recorded facts, and streams of facts and log lines as server-sent events.

The next facts are read only when the client has received the last ones, so a slow client costs one
bounded list and does not affect others: it reads missed facts from the store, in order.

The `id` of an event is the position of its fact. A client that reconnects sends the last id as
Last-Event-ID (browsers do so by themselves) and continues after it. A comment is sent as a
heartbeat, so that both sides detect a dead connection; if facts were skipped because of `kinds`, an
empty event updates the client's position.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Response, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from strata.coordinator.engine.engine import Engine
from strata.coordinator.logs.log_entries import LogEntry, Skipped
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.rest.error_responses import READS, STREAMS
from strata.coordinator.rest.paging import ANSWER_BYTES, DEFAULT_LIMIT, HEADERS, Limit, paged
from strata.coordinator.rest.ports import Api, Closing, HeartbeatSeconds, TheApi
from strata.coordinator.rest.response_models import FactResponse
from strata.coordinator.rest.routes.log_routes import (
    Level,
    Regex,
    Search,
    Source,
    TaskId,
    WorkerId,
)
from strata.coordinator.rest.views import state_views
from strata.core.cluster import CODEC
from strata.core.events import Event, Fact
from strata.errors import InvalidArgument, StrataError

log = logging.getLogger(__name__)

PATHS = frozenset({"/api/stream", "/api/logs/stream", "/api/live"})
MEDIA_TYPE = "text/event-stream"
CHUNK_BYTES = 64 * 1024
BACKLOG_LINES = 100
OPENING = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"
KINDS = frozenset(tag.partition("/")[0] for tag in CODEC.kinds)

Kinds = Annotated[
    str, QueryParameter(max_length=2000, description="Kinds of facts, separated by commas.")
]
FromPosition = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=2**53 - 1, description="Position of the first fact; default: the next new fact."
    ),
]
LastEventId = Annotated[
    int | None,
    HeaderParameter(
        name="Last-Event-ID",
        ge=0,
        le=2**53 - 1,
        description="Position of the last received fact; it wins over `position`.",
    ),
]

Item = TypeVar("Item")


@get("/stream", media_type=MEDIA_TYPE, responses=STREAMS)
async def stream_facts(
    api: TheApi,
    closing: Closing,
    heartbeat_s: HeartbeatSeconds,
    position: FromPosition = None,
    last_event_id: LastEventId = None,
    kinds: Kinds = "",
) -> Stream:
    """Facts as they are recorded, as server-sent events.

    The id of an event is its position; its data is the fact as `/api/events` shows it.
    """
    end = api.engine.position
    start = last_event_id + 1 if last_event_id is not None else position
    if start is not None and start > end:
        raise InvalidArgument(
            f"position {start} is beyond the {end} recorded facts",
            hint="omit position to start with the next new fact",
        )
    return Stream(
        facts(api, end if start is None else start, wanted_kinds(kinds), heartbeat_s, closing),
        media_type=MEDIA_TYPE,
    )


@get("/logs/stream", media_type=MEDIA_TYPE, responses=STREAMS)
async def stream_logs(
    api: TheApi,
    closing: Closing,
    heartbeat_s: HeartbeatSeconds,
    level: Level = None,
    source: Source = "",
    task_id: TaskId = "",
    worker_id: WorkerId = "",
    search: Search = "",
    regex: Regex = False,
    last_event_id: Annotated[
        str,
        HeaderParameter(
            name="Last-Event-ID",
            max_length=40,
            pattern="^(log_[0-9a-f]{1,16})?$",
            description="Id of the last received line.",
        ),
    ] = "",
) -> Stream:
    """Log lines as server-sent events: the newest stored lines, then new ones.

    An event `skipped` has the number of lines that the client was too slow to receive.
    """
    query = LogQuery(
        level=level,
        source=source,
        task_id=task_id,
        worker_id=worker_id,
        search=search,
        regex=regex,
        after=last_event_id,
    )
    return Stream(lines(api, query, heartbeat_s, closing), media_type=MEDIA_TYPE)


def wanted_kinds(kinds: str) -> frozenset[str]:
    """Parse a comma-separated list of kinds; an empty list means all."""
    wanted = frozenset(kind.strip() for kind in kinds.split(",") if kind.strip())
    unknown = sorted(wanted - KINDS)
    if unknown:
        raise InvalidArgument(
            f"kinds: unknown kind of fact {unknown[0][:100]!r}",
            hint=f"the kinds are {', '.join(sorted(KINDS))}",
        )
    return wanted


async def facts(
    api: Api, position: int, kinds: frozenset[str], heartbeat_s: float, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """The stream of facts as bytes."""
    yield OPENING
    sent = position
    batches = api.engine.subscribe(position)
    async for events in with_heartbeat(batches, heartbeat_s, closing, "facts"):
        if events is None:
            yield (f"id: {position - 1}\n\n".encode() if sent < position else b"") + HEARTBEAT
            sent = position
            continue
        for chunk in chunks(event for event in events if not kinds or event.kind in kinds):
            yield chunk
        position += len(events)
        if not kinds:
            sent = position


def chunks(events: Iterable[Event]) -> Iterable[bytes]:
    """Facts as server-sent events, in chunks of bounded size; a fact is never split."""
    piece = bytearray()
    for event in events:
        piece += b"id: %d\ndata: %b\n\n" % (event.seq, msgspec.json.encode(state_views.fact(event)))
        if len(piece) >= CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def lines(
    api: Api, query: LogQuery, heartbeat_s: float, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """The stream of log lines as bytes."""
    yield OPENING
    following = api.logs.follow(query, backlog=BACKLOG_LINES)
    async for line in with_heartbeat(following, heartbeat_s, closing, "log lines"):
        yield HEARTBEAT if line is None else line_event(line)


def line_event(line: LogEntry | Skipped) -> bytes:
    """A log line or a `Skipped` as a server-sent event."""
    if isinstance(line, Skipped):
        return b"event: skipped\ndata: %b\n\n" % msgspec.json.encode(line)
    return b"id: %b\ndata: %b\n\n" % (line.id.encode(), msgspec.json.encode(line))


async def with_heartbeat(
    source: AsyncIterator[Item], interval_s: float, closing: asyncio.Event, what: str
) -> AsyncGenerator[Item | None, None]:
    """Items of the source, and None after `interval_s` without one; ends when the server closes.

    The pending read is not cancelled for a heartbeat, because that would end the source. An error
    of the source ends the stream: the client reconnects and receives the error.
    """
    closed = asyncio.ensure_future(closing.wait())
    pending: asyncio.Future[Item] | None = None
    try:
        while not closed.done():
            pending = pending or asyncio.ensure_future(anext(source))
            waiting: set[asyncio.Future[Any]] = {pending, closed}
            await asyncio.wait(waiting, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            if pending.done():
                item, pending = pending.result(), None
                yield item
            elif not closed.done():
                yield None
    except StopAsyncIteration:
        return
    except StrataError as error:
        log.warning("a stream of %s ended: %s", what, error)
    finally:
        await _end(closed)
        if pending is not None:
            await _end(pending)


async def _end(future: "asyncio.Future[Item]") -> None:
    future.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration, StrataError):
        await future


NEWEST_LOOKED_AT = 16_384

Newest = Annotated[
    bool,
    QueryParameter(description="Newest first, of the last few thousand; `position` is ignored."),
]
Position = Annotated[
    int, QueryParameter(ge=0, le=2**53 - 1, description="Position of the first fact.")
]


@get("/events", responses=READS, response_headers=HEADERS)
async def list_events(
    api: TheApi,
    position: Position = 0,
    limit: Limit = DEFAULT_LIMIT,
    kinds: Kinds = "",
    newest: Newest = False,
) -> Response[list[FactResponse]]:
    """Facts in the order they were recorded.

    The total counts facts of all kinds; the next cursor is a position. An answer may have fewer
    facts than `limit`, even none, if few facts have the requested kinds.
    """
    wanted = wanted_kinds(kinds)
    if newest:
        latest = await look_back(api.engine, wanted, limit)
        return paged([state_views.fact(event) for event in latest], api.engine.position, "")
    shown: list[FactResponse] = []
    room_bytes = ANSWER_BYTES
    following = position
    for event in await read(api.engine, position):
        if not wanted or event.kind in wanted:
            fact = state_views.fact(event)
            room_bytes -= len(msgspec.json.encode(fact))
            if len(shown) == limit or (shown and room_bytes < 0):
                break
            shown.append(fact)
        following = event.seq + 1
    end = api.engine.position
    return paged(shown, end, str(following) if following < end else "")


async def read(engine: Engine, position: int) -> list[Event]:
    """Some facts from a position on, without waiting for new ones."""
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
    """The fact classes of these kinds; comparing classes is faster than comparing names."""
    return frozenset(fact for tag, fact in CODEC.kinds.items() if tag.partition("/")[0] in kinds)
