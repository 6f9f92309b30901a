"""Workers: who trains, and how they are."""

from typing import Annotated

from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from strata.coordinator.http import views
from strata.coordinator.http.faults import READS, READS_ONE
from strata.coordinator.http.models import WorkerResponse, WorkerStatus
from strata.coordinator.http.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    by_id,
    page,
    paged,
)
from strata.coordinator.http.ports import TheApi

Status = Annotated[WorkerStatus | None, QueryParameter(description="Only of this status.")]
OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
Ended = Annotated[
    bool, QueryParameter(description="Also workers that were lost in tasks that have ended since.")
]


@get("/workers", responses=READS, response_headers=HEADERS)
async def list_workers(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    status: Status = None,
    task_id: OfTask = "",
    ended: Ended = False,
) -> Response[list[WorkerResponse]]:
    """The workers that are connected or belong to a task that goes on, by name."""
    async with api.engine.settled() as state:
        wanted = (
            worker
            for worker in views.shown_workers(state, ended)
            if task_id in ("", worker.task) and status in (None, views.WORKER_STATUS[worker.state])
        )
        found = page(wanted, by_id, limit, cursor)
        shown = views.workers(state, api.observed, found.items)
        return paged(shown, found.total, found.next_cursor)


@get("/workers/{worker_id:str}", responses=READS_ONE)
async def get_worker(api: TheApi, worker_id: FromPath[str]) -> WorkerResponse:
    """One worker."""
    async with api.engine.settled() as state:
        [shown] = views.workers(state, api.observed, [views.find_worker(state, worker_id)])
        return shown
