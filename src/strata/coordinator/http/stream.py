"""The live stream: facts by position, and log lines, as server-sent events.

A reader is pulled along by its own connection: the next facts are read only when the last ones
were taken, so a slow reader costs one bounded list and disturbs nobody. It falls behind, reads
from the store what it missed, and gets every fact in order.

`id` is the position of a fact. Whoever reconnects sends the last one it saw as Last-Event-ID (a
browser does so by itself) and continues after it. While nothing happens a comment goes out, so
that both sides notice a dead connection; where facts were passed over because of `kinds` an empty
event moves the reader's position on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from strata.coordinator.http import views
from strata.coordinator.http.faults import STREAMS
from strata.coordinator.http.logs import Level, Regex, Search, Source, TaskId, WorkerId
from strata.coordinator.http.ports import Api, Closing, HeartbeatSeconds, TheApi
from strata.coordinator.logs import LogEntry, Query, Skipped
from strata.core.cluster import CODEC
from strata.core.events import Event
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
    str, QueryParameter(max_length=2000, description="Kinds of facts wanted, with commas between.")
]
FromPosition = Annotated[
    int | None,
    QueryParameter(ge=0, le=2**53 - 1, description="The first fact wanted; else what comes next."),
]
LastEventId = Annotated[
    int | None,
    HeaderParameter(
        name="Last-Event-ID",
        ge=0,
        le=2**53 - 1,
        description="The position of the last fact that was seen; it counts before `position`.",
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
            f"position {start} is beyond the {end} facts that are recorded",
            hint="leave position out to get what comes next",
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
            description="The id of the last line that was seen.",
        ),
    ] = "",
) -> Stream:
    """Log lines as they come, after the newest of those that are there, as server-sent events.

    An event `skipped` tells how many lines the reader was too slow for.
    """
    query = Query(
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
    """The kinds in a list with commas; none means all."""
    wanted = frozenset(kind.strip() for kind in kinds.split(",") if kind.strip())
    unknown = sorted(wanted - KINDS)
    if unknown:
        raise InvalidArgument(
            f"kinds: there is no kind of fact {unknown[0][:100]!r}",
            hint=f"the kinds are {', '.join(sorted(KINDS))}",
        )
    return wanted


async def facts(
    api: Api, position: int, kinds: frozenset[str], heartbeat_s: float, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """The stream of facts, as bytes to send."""
    yield OPENING
    told = position
    batches = api.engine.subscribe(position)
    async for events in with_heartbeat(batches, heartbeat_s, closing, "facts"):
        if events is None:
            yield (f"id: {position - 1}\n\n".encode() if told < position else b"") + HEARTBEAT
            told = position
            continue
        for chunk in chunks(event for event in events if not kinds or event.kind in kinds):
            yield chunk
        position += len(events)
        if not kinds:
            told = position


def chunks(events: Iterable[Event]) -> Iterable[bytes]:
    """Facts as server-sent events, in pieces of bounded size; one fact is never cut."""
    piece = bytearray()
    for event in events:
        piece += b"id: %d\ndata: %b\n\n" % (event.seq, msgspec.json.encode(views.fact(event)))
        if len(piece) >= CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def lines(
    api: Api, query: Query, heartbeat_s: float, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """The stream of log lines, as bytes to send."""
    yield OPENING
    following = api.logs.follow(query, backlog=BACKLOG_LINES)
    async for line in with_heartbeat(following, heartbeat_s, closing, "log lines"):
        yield HEARTBEAT if line is None else line_event(line)


def line_event(line: LogEntry | Skipped) -> bytes:
    """A log line, or how many were skipped, as a server-sent event."""
    if isinstance(line, Skipped):
        return b"event: skipped\ndata: %b\n\n" % msgspec.json.encode(line)
    return b"id: %b\ndata: %b\n\n" % (line.id.encode(), msgspec.json.encode(line))


async def with_heartbeat(
    source: AsyncIterator[Item], interval_s: float, closing: asyncio.Event, what: str
) -> AsyncGenerator[Item | None, None]:
    """Items as they come, None when there was none for a while; ends when the server closes.

    Waiting must not be cancelled to send a heartbeat: that would end the source. What goes wrong
    in the source ends the stream: its reader connects anew and is told why.
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
