"""Endpoints of what scripts logged: images, texts, histograms, and pages for other tools."""

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from strata.coordinator.rest.error_responses import READS_ONE, documented
from strata.coordinator.rest.paging import DEFAULT_LIMIT, NEXT, Cursor, Limit
from strata.coordinator.rest.views.past_state import ThePast
from strata.core.workers.worker_facts import MediaKind, MediaLogged
from strata.errors import Corrupt
from strata.timeline.answers import HistogramAnswer, MediaItem
from strata.timeline.forward.logged_pages import LoggedPage
from strata.timeline.read.logged_items import Wanted

IMAGES = {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}

Text = Annotated[str, QueryParameter(max_length=400)]
Kind = Annotated[MediaKind | None, QueryParameter(description="Only items of this kind.")]
Rank = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]
Place = Annotated[
    str,
    QueryParameter(max_length=32_768, description="The cursor of the page before; empty at first."),
]
Step = Annotated[int | None, QueryParameter(ge=0, le=2**53 - 1)]


@get("/timeline/media", responses=READS_ONE)
async def list_media(
    past: ThePast,
    task: Text = "",
    name: Text = "",
    kind: Kind = None,
    from_step: Step = None,
    to_step: Step = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
) -> Response[list[MediaItem]]:
    """Images, texts and histograms that scripts logged, oldest first; without their content."""
    wanted = Wanted(task=task, name=name, kind=kind, from_step=from_step, to_step=to_step)
    shown, following = await past.ask(lambda queries: queries.media(wanted, limit, cursor))
    return Response(shown, headers={NEXT: following} if following else {})


@get("/timeline/media/{ref:path}", responses=documented(404), media_type="image/png")
async def get_media(past: ThePast, ref: FromPath[str]) -> Response[bytes]:
    """The bytes of a logged image, a logged text, or a logged histogram as JSON."""
    found = await past.ask(lambda queries: queries.media_content(ref.lstrip("/")))
    body, media_type = content(found)
    return Response(body, media_type=media_type)


@get("/timeline/logged", responses=READS_ONE)
async def list_logged(
    past: ThePast,
    task: Text = "",
    rank: Rank = 0,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Place = "",
) -> LoggedPage:
    """What one rank of a task logged, in order, without what a recovery undid; for other tools. An
    empty task is the only one."""
    return await past.ask(lambda queries: queries.logged.page(task, rank, cursor, limit))


def content(item: MediaLogged) -> tuple[bytes, str]:
    """An item as bytes, and their media type."""
    if item.media == "text":
        return item.text.encode(), "text/plain"
    if item.media == "histogram":
        shown = HistogramAnswer(item.edges, item.counts, item.not_finite)
        return msgspec.json.encode(shown), "application/json"
    if item.format not in IMAGES:
        raise Corrupt(f"the image {item.name!r} has the unknown format {item.format[:40]!r}")
    return item.data, IMAGES[item.format]


ENDPOINTS = [list_media, get_media, list_logged]
"""All endpoints of this module."""
