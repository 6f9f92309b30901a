"""Endpoints of a past moment: shards, earlier facts, metrics before it, a worker's resources."""

from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from strata.coordinator.rest.error_responses import READS_ONE
from strata.coordinator.rest.paging import DEFAULT_LIMIT, HEADERS, Cursor, Limit, paged
from strata.coordinator.rest.response_models import FactResponse, ShardResponse
from strata.coordinator.rest.routes.event_routes import Kinds, wanted_kinds
from strata.coordinator.rest.views import shard_views, state_views
from strata.coordinator.rest.views.metrics_history import MetricsHistory
from strata.coordinator.rest.views.past_metrics import history_before, usage_before
from strata.coordinator.rest.views.past_state import ThePast
from strata.timeline.answers import UsageAnswer
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.past_states import require_state
from strata.timeline.read.records import LAST_MS, ns

Moment = Annotated[
    float | None,
    QueryParameter(ge=0, le=LAST_MS, description="Unix milliseconds; default: the end."),
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
    """Shards and their workers at a moment; empty if the dataset was not registered yet."""
    first = shard_views.first_shard(cursor)

    def look(queries: TimelineQueries) -> Response[list[ShardResponse]]:
        position = queries.timeline.position_at(moment_of(queries, time_ms))
        state = require_state(queries.timeline, position)
        dataset = state.datasets.get(dataset_id)
        if dataset is None:
            return paged([], 0, "")
        task = shard_views.feeding_task(state, dataset, "")
        listed = shard_views.ShardList(dataset, task)
        following = str(first + limit) if first + limit < listed.total else ""
        return paged(listed.page(first, limit), listed.total, following)

    return await past.ask(look)


@get("/timeline/facts", responses=READS_ONE)
async def list_facts_before(
    past: ThePast, time_ms: Moment = None, kinds: Kinds = "", limit: Limit = DEFAULT_LIMIT
) -> list[FactResponse]:
    """Facts recorded up to a moment, newest first."""
    wanted = wanted_kinds(kinds)
    found = await past.ask(
        lambda queries: queries.facts_before(moment_of(queries, time_ms), wanted, limit)
    )
    return [state_views.fact(record.event) for record in found]


@get("/timeline/metrics", responses=READS_ONE)
async def get_history_then(past: ThePast, time_ms: Moment = None) -> MetricsHistory:
    """Metrics of the 15 minutes before a moment; null where nothing was recorded."""
    return await past.ask(
        lambda queries: history_before(queries.timeline, moment_of(queries, time_ms))
    )


@get("/timeline/usage", responses=READS_ONE)
async def get_usage_then(past: ThePast, node: Named, time_ms: Moment = None) -> UsageAnswer:
    """A worker's resources in the minutes before a moment, from its own records."""
    return await past.ask(
        lambda queries: usage_before(queries.timeline, node, moment_of(queries, time_ms))
    )


def moment_of(queries: TimelineQueries, time_ms: float | None) -> int:
    """A moment in nanoseconds; by default the end."""
    return queries.timeline.extent().to_ns if time_ms is None else ns(time_ms)


ENDPOINTS = [list_shards_then, list_facts_before, get_history_then, get_usage_then]
