"""Endpoints of the timeline."""

from typing import Annotated, Any, Literal

from litestar import Request, Response, get
from litestar.params import FromPath, QueryParameter

from strata.coordinator.rest.error_responses import READS, READS_ONE, documented
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    NEXT,
    Cursor,
    Key,
    Limit,
    newest_first,
    page,
    paged,
)
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.request_checks import CHECKED_BY_ENDPOINT
from strata.coordinator.rest.views.past_state import AtResponse, TheArchive, ThePast, dashboard_at
from strata.errors import InvalidArgument
from strata.timeline.answers import (
    DensityAnswer,
    DiffAnswer,
    EventAnswer,
    EventDetail,
    LanesAnswer,
    QuestionAnswer,
    RunRow,
    SeekAnswer,
    SpanAnswer,
    StoryAnswer,
    WhyAnswer,
)
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.records import LAST_MS

EXPORTED_EVENTS = 200_000
SUFFIXES = {"perfetto": "json", "jsonl": "jsonl", "parquet": "parquet"}
FILE = "application/octet-stream"
ASKED = frozenset({"question", "ref", "run"})
COMPARES_RUNS = "differs"

Moment = Annotated[float | None, QueryParameter(ge=0, le=LAST_MS, description="Unix milliseconds.")]
MomentNeeded = Annotated[float, QueryParameter(ge=0, le=LAST_MS, description="Unix milliseconds.")]
Needed = Annotated[str, QueryParameter(min_length=1, max_length=400)]
Format = Annotated[
    Literal["perfetto", "jsonl", "parquet"], QueryParameter(description="File format.")
]
Direction = Annotated[
    Literal["next", "previous"], QueryParameter(description="Direction of the search.")
]
Buckets = Annotated[int, QueryParameter(ge=1, le=1000, description="Number of time slices.")]
LaneLimit = Annotated[int, QueryParameter(ge=1, le=200, description="Maximum number of lanes.")]
Newest = Annotated[
    bool, QueryParameter(description="The newest events first, one page; `cursor` is unused.")
]
Text = Annotated[str, QueryParameter(max_length=400)]
Number = Annotated[int | None, QueryParameter(ge=0, le=2**53 - 1)]


@get("/runs", responses=READS, response_headers=HEADERS)
async def list_runs(
    archive: TheArchive, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[RunRow]]:
    """Archived runs, newest first; the parameter `run` of other endpoints reads one of them."""
    found = page(await archive.runs(), newest_run_first, limit, cursor)
    return paged(found.items, found.total, found.next_cursor)


def newest_run_first(run: RunRow) -> Key:
    """Sort key of archived runs, newest first."""
    return newest_first(int(run.to_ms), run.name)


@get("/timeline/span", responses=READS_ONE)
async def get_span(past: ThePast) -> SpanAnswer:
    """Start and end of the timeline, number of events by node, and missing or damaged parts."""
    return await past.ask(lambda queries: queries.span())


@get("/timeline/density", responses=READS_ONE)
async def get_density(
    past: ThePast,
    from_ms: Moment = None,
    to_ms: Moment = None,
    buckets: Buckets = 200,
    task: Text = "",
) -> DensityAnswer:
    """Number of events in each time slice."""
    return await past.ask(lambda queries: queries.density(from_ms, to_ms, buckets, task))


@get("/timeline/lanes", responses=READS_ONE)
async def get_lanes(
    past: ThePast,
    from_ms: Moment = None,
    to_ms: Moment = None,
    task: Text = "",
    limit: LaneLimit = 100,
    cursor: Text = "",
    node: Text = "",
) -> LanesAnswer:
    """Activity of each worker as spans and marks; very short ones are merged."""
    return await past.ask(lambda queries: queries.lanes(from_ms, to_ms, task, limit, cursor, node))


@get("/timeline/at", responses=READS_ONE)
async def get_at(
    api: TheApi,
    past: ThePast,
    time_ms: Moment = None,
    position: Number = None,
    step: Number = None,
    task: Text = "",
) -> AtResponse:
    """The dashboard at a past moment: a time, a position, or a step of a task."""

    def look(queries: TimelineQueries) -> AtResponse:
        found = queries.moment(time_ms, position, step, task)
        return dashboard_at(queries, *found, api)

    return await past.ask(look)


@get("/timeline/events", responses=READS_ONE)
async def list_timeline_events(
    past: ThePast,
    from_ms: Moment = None,
    to_ms: Moment = None,
    node: Text = "",
    kind: Text = "",
    task: Text = "",
    subject: Text = "",
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    newest: Newest = False,
) -> Response[list[EventAnswer]]:
    """Facts and worker events in one order; `kind` may be a comma-separated list."""
    if newest:
        return Response(
            await past.ask(
                lambda queries: queries.newest_events(
                    from_ms, to_ms, node, kind, task, subject, limit
                )
            )
        )
    shown, following = await past.ask(
        lambda queries: queries.events(from_ms, to_ms, node, kind, task, subject, limit, cursor)
    )
    return Response(shown, headers={NEXT: following} if following else {})


@get("/timeline/event/{ref:path}", responses=READS_ONE)
async def get_timeline_event(past: ThePast, ref: FromPath[str]) -> EventDetail:
    """One event with all fields, its operation, causes and effects."""
    return await past.ask(lambda queries: queries.event(ref.lstrip("/")))


@get("/timeline/story", responses=READS_ONE)
async def get_story(
    past: ThePast, subject: Needed, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> StoryAnswer:
    """All events about one subject, KIND:ID, of all nodes."""
    return await past.ask(lambda queries: queries.story(subject, limit, cursor))


@get("/timeline/why", responses=READS_ONE, opt={CHECKED_BY_ENDPOINT: True})
async def get_why(
    past: ThePast, request: Request[Any, Any, Any], question: Text = "", ref: Text = ""
) -> WhyAnswer:
    """The causes of an event by its `ref`, or the answer to a question with its parameters."""
    given = {name: str(value) for name, value in request.query_params.items()}
    params = {name: value for name, value in given.items() if name not in ASKED}
    if question == COMPARES_RUNS and not params.get("task"):
        raise InvalidArgument(
            "the coordinator cannot read the data folder of another run",
            hint="name two tasks of one tree of forks (task, other), or compare two folders with "
            "`strata why differs --data A other=B`",
        )
    return await past.ask(lambda queries: queries.why(question, ref, params))


@get("/timeline/questions", responses=READS_ONE)
async def list_questions(past: ThePast) -> list[QuestionAnswer]:
    """The questions of `/api/timeline/why` with their parameters."""
    return await past.ask(lambda queries: queries.questions())


@get("/timeline/diff", responses=READS_ONE)
async def get_diff(past: ThePast, a: MomentNeeded, b: MomentNeeded) -> DiffAnswer:
    """Differences between the states at two moments."""
    return await past.ask(lambda queries: queries.diff(a, b))


@get("/timeline/seek", responses=READS_ONE)
async def get_seek(
    past: ThePast,
    predicate: Text = "",
    from_ms: Moment = None,
    direction: Direction = "next",
    position: Number = None,
) -> SeekAnswer:
    """The next or previous moment at which a condition holds, such as `worker NAME not training`.

    The search starts at a time or a position; without one it covers the whole run.
    """
    return await past.ask(lambda queries: queries.seek(predicate, from_ms, direction, position))


@get("/timeline/export", responses=documented(404, 413), media_type=FILE)
async def get_export(
    past: ThePast,
    format: Format = "perfetto",
    from_ms: Moment = None,
    to_ms: Moment = None,
) -> Response[bytes]:
    """A time window as a file: a trace for ui.perfetto.dev, JSON lines, or Parquet."""
    body = await past.ask(
        lambda queries: b"".join(queries.export(format, from_ms, to_ms, EXPORTED_EVENTS))
    )
    name = f'attachment; filename="strata-timeline.{SUFFIXES[format]}"'
    return Response(body, media_type=FILE, headers={"Content-Disposition": name})


ENDPOINTS = [
    list_runs,
    get_export,
    get_story,
    get_why,
    list_questions,
    get_diff,
    get_seek,
    get_span,
    get_density,
    get_lanes,
    get_at,
    list_timeline_events,
    get_timeline_event,
]
