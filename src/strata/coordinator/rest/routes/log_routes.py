"""Endpoints of log lines."""

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.datastructures import ResponseHeader
from litestar.params import FromPath, QueryParameter

from strata.coordinator.logs.log_entries import Level as LevelName
from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.logs.log_query import LogPage, LogQuery
from strata.coordinator.rest.error_responses import READS, READS_ONE
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    paged,
    within,
)
from strata.coordinator.rest.ports import Api, TheApi
from strata.errors import Unavailable

MESSAGE_CHARS = 400
EXACT = "X-Total-Exact"
LOG_HEADERS = [
    *HEADERS,
    ResponseHeader(
        name=EXACT,
        documentation_only=True,
        description="`false` if the total counts only the lines found so far.",
    ),
]

Level = Annotated[LevelName | None, QueryParameter(description="Least severe level to return.")]
Source = Annotated[
    str, QueryParameter(max_length=200, description="Source: `coordinator`, `worker`, …")
]
TaskId = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
WorkerId = Annotated[str, QueryParameter(max_length=200, description="Only of this worker.")]
Search = Annotated[
    str, QueryParameter(max_length=1000, description="Text in the message, ignoring case.")
]
Regex = Annotated[bool, QueryParameter(description="Treat `search` as a regular expression (RE2).")]
Moment = Annotated[
    int | None, QueryParameter(ge=0, le=2**53 - 1, description="A time in Unix milliseconds.")
]


@get("/logs", responses=READS, response_headers=LOG_HEADERS)
async def list_logs(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    level: Level = None,
    source: Source = "",
    task_id: TaskId = "",
    worker_id: WorkerId = "",
    search: Search = "",
    regex: Regex = False,
    since_ms: Moment = None,
    until_ms: Moment = None,
) -> Response[list[LogEntry]]:
    """Log lines of the coordinator and all workers, newest first."""
    query = LogQuery(
        level=level,
        source=source,
        task_id=task_id,
        worker_id=worker_id,
        search=search,
        regex=regex,
        since_ms=since_ms,
        until_ms=until_ms,
    )
    return await answer(api, query, limit, cursor)


@get("/tasks/{task_id:str}/logs", responses=READS_ONE, response_headers=LOG_HEADERS)
async def list_task_logs(
    api: TheApi,
    task_id: FromPath[str],
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    level: Level = None,
    search: Search = "",
    regex: Regex = False,
) -> Response[list[LogEntry]]:
    """Log lines of one task, newest first, including those of dead workers."""
    async with api.engine.settled() as state:
        state.task(task_id)
    query = LogQuery(level=level, task_id=task_id, search=search, regex=regex)
    return await answer(api, query, limit, cursor)


async def answer(api: Api, query: LogQuery, limit: int, cursor: str) -> Response[list[LogEntry]]:
    """A page of lines, cut if the answer would be too large."""
    found = await recent(api, query, limit, cursor)
    kept = within(found.entries)
    following = kept[-1].id if len(kept) < len(found.entries) else found.cursor
    response = paged(kept, found.total, following)
    response.headers[EXACT] = "true" if found.exact else "false"
    return response


async def recent(api: Api, query: LogQuery, limit: int, cursor: str = "") -> LogPage:
    """The newest matching lines, read in a thread because that may read files."""
    try:
        return await api.log_reads.work(lambda: api.logs.recent(query, limit, cursor))
    except OSError as error:
        raise Unavailable(
            f"log lines cannot be read: {error}", hint="repair the coordinator's log folder"
        ) from error


def shortened(entry: LogEntry) -> LogEntry:
    """A line with its message cut to `MESSAGE_CHARS`."""
    if len(entry.message) <= MESSAGE_CHARS:
        return entry
    return msgspec.structs.replace(entry, message=entry.message[: MESSAGE_CHARS - 1] + "…")
