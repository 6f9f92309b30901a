"""What the views show of a past moment beyond the dashboard of it: who held what, the facts before
it, the figures up to it, and what a worker used."""

from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from strata.coordinator.http import shards, views
from strata.coordinator.http.faults import READS_ONE
from strata.coordinator.http.history import MetricsHistory
from strata.coordinator.http.models import FactResponse, ShardResponse
from strata.coordinator.http.paging import DEFAULT_LIMIT, HEADERS, Cursor, Limit, paged
from strata.coordinator.http.past import ThePast
from strata.coordinator.http.replayed import history_before, usage_before
from strata.coordinator.http.stream import Kinds, wanted_kinds
from strata.timeline.answers import UsageAnswer
from strata.timeline.desk import Desk
from strata.timeline.shaping import LAST_MS, ns
from strata.timeline.states import require_state

Moment = Annotated[
    float | None,
    QueryParameter(ge=0, le=LAST_MS, description="Unix milliseconds; the end if there is none."),
]
Named = Annotated[str, QueryParameter(min_length=1, max_length=400)]


@get("/timeline/shards", responses=READS_ONE, response_headers=HEADERS)
async def list_shards_then(
    past: ThePast,
    dataset_id: Named,
    time_ms: Moment = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
) -> Response[list[ShardResponse]]:
    """Which shard was whose at a moment; none of a dataset that was not known then."""
    first = shards.first_shard(cursor)

    def look(desk: Desk) -> Response[list[ShardResponse]]:
        position = desk.timeline.position_at(moment_of(desk, time_ms))
        state = require_state(desk.timeline, position)
        dataset = state.datasets.get(dataset_id)
        if dataset is None:
            return paged([], 0, "")
        task = shards.feeding_task(state, dataset, "")
        listed = shards.ShardList(dataset, task)
        following = str(first + limit) if first + limit < listed.total else ""
        return paged(listed.page(first, limit), listed.total, following)

    return await past.ask(look)


@get("/timeline/facts", responses=READS_ONE)
async def list_facts_before(
    past: ThePast, time_ms: Moment = None, kinds: Kinds = "", limit: Limit = DEFAULT_LIMIT
) -> list[FactResponse]:
    """The facts that had been recorded by a moment, newest first."""
    wanted = wanted_kinds(kinds)
    found = await past.ask(lambda desk: desk.facts_before(moment_of(desk, time_ms), wanted, limit))
    return [views.fact(record.event) for record in found]


@get("/timeline/metrics", responses=READS_ONE)
async def get_history_then(past: ThePast, time_ms: Moment = None) -> MetricsHistory:
    """The figures of the quarter of an hour before a moment; null where nothing was recorded."""
    return await past.ask(lambda desk: history_before(desk.timeline, moment_of(desk, time_ms)))


@get("/timeline/usage", responses=READS_ONE)
async def get_usage_then(past: ThePast, node: Named, time_ms: Moment = None) -> UsageAnswer:
    """What a worker used in the minutes before a moment, by its own records."""
    return await past.ask(lambda desk: usage_before(desk.timeline, node, moment_of(desk, time_ms)))


def moment_of(desk: Desk, time_ms: float | None) -> int:
    """A moment in nanoseconds; where none is named, the end."""
    return desk.timeline.extent().to_ns if time_ms is None else ns(time_ms)


ENDPOINTS = [list_shards_then, list_facts_before, get_history_then, get_usage_then]
