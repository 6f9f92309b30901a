"""Checkpoints and barriers: what was saved, and who waits for whom."""

from itertools import islice
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

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
    MAX_LIMIT,
    Cursor,
    Limit,
    page,
    paged,
)
from strata.coordinator.http.ports import TheApi
from strata.core.barriers import BarrierState
from strata.core.checkpoints import CheckpointType
from strata.errors import NotFound

OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
CheckpointFilter = Annotated[
    CheckpointStatus | None, QueryParameter(description="Only of this status.")
]
BarrierFilter = Annotated[BarrierState | None, QueryParameter(description="Only of this status.")]


class PartResponse(Struct, frozen=True):
    """What one rank has written, and how much of its share had not changed (`size_kept`)."""

    rank: int
    worker_id: str
    size: int
    path: str
    checksum: str
    size_kept: int


class CheckpointDetail(CheckpointResponse, frozen=True):
    """A checkpoint with its parts, by rank; those that are missing are still being written."""

    type: CheckpointType
    generation: int
    metadata: dict[str, str]
    written: list[PartResponse]


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
        shown = [views.checkpoint(api.observed, task, saved) for task, saved in found.items]
        return paged(shown, found.total, found.next_cursor)


@get("/checkpoints/{checkpoint_id:str}", responses=READS_ONE)
async def get_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: OfTask = ""
) -> CheckpointDetail:
    """One checkpoint with its parts; of several tasks' with that id the newest."""
    async with api.engine.settled() as state:
        found = [
            each for each in views.shown_checkpoints(state, task_id) if each[1].id == checkpoint_id
        ]
        if not found:
            raise NotFound(
                f"there is no checkpoint {checkpoint_id!r}", hint="GET /api/checkpoints lists them"
            )
        task, saved = min(found, key=views.checkpoint_order)
        parts = islice(sorted(saved.parts.items()), MAX_LIMIT)
        return CheckpointDetail(
            **msgspec.structs.asdict(views.checkpoint(api.observed, task, saved)),
            type=saved.type,
            generation=saved.generation,
            metadata=saved.metadata,
            written=[
                PartResponse(
                    rank=rank,
                    worker_id=part.worker,
                    size=part.size_bytes,
                    path=part.path,
                    checksum=part.checksum,
                    size_kept=part.kept_bytes,
                )
                for rank, part in parts
            ],
        )


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
