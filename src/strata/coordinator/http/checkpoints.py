"""Checkpoints and barriers: what was saved, and who waits for whom."""

from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from strata.coordinator.http import views
from strata.coordinator.http.faults import READS_ONE
from strata.coordinator.http.models import (
    BarrierResponse,
    CheckpointResponse,
    CheckpointStatus,
)
from strata.coordinator.http.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    page,
    paged,
)
from strata.coordinator.http.ports import TheApi
from strata.core.barriers import BarrierState

OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
CheckpointFilter = Annotated[
    CheckpointStatus | None, QueryParameter(description="Only of this status.")
]
BarrierFilter = Annotated[BarrierState | None, QueryParameter(description="Only of this status.")]


@get("/checkpoints", responses=READS_ONE, response_headers=HEADERS)
async def list_checkpoints(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    task_id: OfTask = "",
    status: CheckpointFilter = None,
) -> Response[list[CheckpointResponse]]:
    """Checkpoints that were not deleted, newest first."""
    async with api.engine.settled() as state:
        wanted = (
            (task, saved)
            for task, saved in views.shown_checkpoints(state, task_id)
            if status in (None, views.CHECKPOINT_STATUS[saved.state])
        )
        found = page(wanted, views.checkpoint_order, limit, cursor)
        shown = [views.checkpoint(task, saved) for task, saved in found.items]
        return paged(shown, found.total, found.next_cursor)


@get("/barriers", responses=READS_ONE, response_headers=HEADERS)
async def list_barriers(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    task_id: OfTask = "",
    status: BarrierFilter = None,
) -> Response[list[BarrierResponse]]:
    """Barriers with those they wait for, newest first."""
    async with api.engine.settled() as state:
        wanted = (
            (task, met)
            for task, met in views.shown_barriers(state, task_id)
            if status in (None, met.state)
        )
        found = page(wanted, views.barrier_order, limit, cursor)
        shown = [views.barrier(task, met) for task, met in found.items]
        return paged(shown, found.total, found.next_cursor)
