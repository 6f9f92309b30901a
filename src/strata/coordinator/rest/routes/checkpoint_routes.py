"""Endpoints of checkpoints and barriers: list, show, verify, pin, delete."""

import asyncio
from itertools import islice
from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Struct

from strata.checkpoint.manifest import MANIFEST_SUFFIX, decode_manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.read.reachability import ReadOnlyStorage, Unreachable
from strata.coordinator.rest.action_responses import PinResponse
from strata.coordinator.rest.error_responses import READS_ONE, WRITES
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    MAX_LIMIT,
    Cursor,
    Limit,
    page,
    paged,
)
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.request_models import PinCheckpointRequest
from strata.coordinator.rest.response_models import (
    BarrierResponse,
    BarrierState,
    CheckpointDetail,
    CheckpointResponse,
    CheckpointStatus,
    PartResponse,
)
from strata.coordinator.rest.views import state_views
from strata.core.checkpoints.checkpoint_commits import FailCheckpoint
from strata.core.checkpoints.checkpoint_retention import (
    DeleteCheckpoint,
    PinCheckpoint,
    ReleaseCheckpoint,
)
from strata.core.checkpoints.keep_reasons import USER, keep_reasons, kept_because
from strata.errors import Corrupt, NotAllowedNow, NotFound
from strata.storage.backend import StorageBackend

OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
CheckpointFilter = Annotated[
    CheckpointStatus | None, QueryParameter(description="Only with this status.")
]
BarrierFilter = Annotated[BarrierState | None, QueryParameter(description="Only with this status.")]


@get("/checkpoints", responses=READS_ONE, response_headers=HEADERS)
async def list_checkpoints(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    task_id: OfTask = "",
    status: CheckpointFilter = None,
) -> Response[list[CheckpointResponse]]:
    """Checkpoints, newest first, without deleted ones."""
    async with api.engine.settled() as state:
        wanted = (
            (task, saved)
            for task, saved in state_views.shown_checkpoints(state, task_id)
            if status in (None, state_views.CHECKPOINT_STATUS[saved.state])
        )
        found = page(wanted, state_views.checkpoint_order, limit, cursor)
        shown = state_views.checkpoints(api.heartbeats, found.items)
        return paged(shown, found.total, found.next_cursor)


@get("/checkpoints/{checkpoint_id:str}", responses=READS_ONE)
async def get_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: OfTask = ""
) -> CheckpointDetail:
    """One checkpoint with its parts; the newest if several tasks have one with this id."""
    async with api.engine.settled() as state:
        found = [
            each
            for each in state_views.shown_checkpoints(state, task_id)
            if each[1].id == checkpoint_id
        ]
        if not found:
            raise NotFound(
                f"there is no checkpoint {checkpoint_id!r}", hint="GET /api/checkpoints lists them"
            )
        task, saved = min(found, key=state_views.checkpoint_order)
        parts = islice(sorted(saved.parts.items()), MAX_LIMIT)
        reasons = kept_because(task, saved)
        shown = state_views.checkpoint(api.heartbeats, task, saved, reasons)
        return CheckpointDetail(
            **msgspec.structs.asdict(shown),
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
    """Barriers with their missing workers, newest first."""
    async with api.engine.settled() as state:
        wanted = (
            (task, met)
            for task, met in state_views.shown_barriers(state, task_id)
            if status in (None, met.state)
        )
        found = page(wanted, state_views.barrier_order, limit, cursor)
        shown = [state_views.barrier(task, met) for task, met in found.items]
        return paged(shown, found.total, found.next_cursor)


TaskOfCheckpoint = Annotated[str, QueryParameter(max_length=200, description="Id of the task.")]


class VerifiedResponse(Struct, frozen=True):
    """Whether a storage has an undamaged copy; `reason` names a damaged part, in that storage or
    in a nearer one."""

    id: str
    task_id: str
    ok: bool
    size_verified: int
    reason: str = ""


class DeletedResponse(Struct, frozen=True):
    """A deleted checkpoint; its files are deleted next."""

    id: str
    task_id: str


@post("/checkpoints/{checkpoint_id:str}/verify", status_code=200, responses=WRITES)
async def verify_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: TaskOfCheckpoint = ""
) -> VerifiedResponse:
    """Read a completed checkpoint and compare all checksums; a damaged one is marked as failed.

    One checkpoint is read at a time. For large ones `strata checkpoints verify` shows the progress.
    """
    task = await _task_of(api, checkpoint_id, task_id)
    places = api.places
    if places is None:
        raise NotAllowedNow(
            "a simulated checkpoint has no files", hint="verify checkpoints of a real run"
        )
    trouble, away = "", None
    async with places.reading:
        for number, storage in enumerate(places.storages(task)):
            try:
                size = await asyncio.to_thread(verified_bytes, storage, checkpoint_id)
                return VerifiedResponse(
                    id=checkpoint_id, task_id=task, ok=True, size_verified=size, reason=trouble
                )
            except Corrupt as error:
                trouble = trouble or str(error)
            except Unreachable as error:
                trouble = trouble or str(error)
                if number == 0 or not error.missing:
                    away = away or error
    if away is not None:
        raise away  # unreachable is not damaged
    await api.engine.submit(
        FailCheckpoint(task=task, checkpoint=checkpoint_id, reason=trouble, damaged=True)
    )
    return VerifiedResponse(
        id=checkpoint_id, task_id=task, ok=False, size_verified=0, reason=trouble
    )


@delete("/checkpoints/{checkpoint_id:str}", status_code=200, responses=WRITES)
async def delete_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: TaskOfCheckpoint = ""
) -> DeletedResponse:
    """Delete a completed checkpoint, unless it is the newest of its task, pinned or being
    restored."""
    task = await _task_of(api, checkpoint_id, task_id)
    reason = "requested through the API"
    await api.engine.submit(DeleteCheckpoint(task=task, checkpoint=checkpoint_id, reason=reason))
    return DeletedResponse(checkpoint_id, task)


@post("/checkpoints/{checkpoint_id:str}/pin", status_code=200, responses=WRITES)
async def pin_checkpoint(
    api: TheApi,
    checkpoint_id: FromPath[str],
    data: JSONBody[PinCheckpointRequest | None] = None,
    task_id: TaskOfCheckpoint = "",
) -> PinResponse:
    """Protect a completed checkpoint from deletion; a new note replaces the old one."""
    task = await _task_of(api, checkpoint_id, task_id)
    note = data.note if data is not None else ""
    command = PinCheckpoint(task=task, checkpoint=checkpoint_id, holder=USER, note=note)
    await api.engine.submit(command)
    return await _pin_response(api, task, checkpoint_id)


@delete("/checkpoints/{checkpoint_id:str}/pin", status_code=200, responses=WRITES)
async def unpin_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: TaskOfCheckpoint = ""
) -> PinResponse:
    """Release a pinned checkpoint; it is deleted if no other rule keeps it."""
    task = await _task_of(api, checkpoint_id, task_id)
    await api.engine.submit(ReleaseCheckpoint(task=task, checkpoint=checkpoint_id, holder=USER))
    return await _pin_response(api, task, checkpoint_id)


async def _pin_response(api: TheApi, task: str, checkpoint_id: str) -> PinResponse:
    async with api.engine.settled() as state:
        reasons = keep_reasons(state.task(task)).get(checkpoint_id, [])
        return PinResponse(id=checkpoint_id, task_id=task, kept_because=reasons)


async def _task_of(api: TheApi, checkpoint_id: str, task_id: str) -> str:
    """The task that has this completed checkpoint."""
    async with api.engine.settled() as state:
        found = [
            (task.id, saved)
            for task, saved in state_views.shown_checkpoints(state, task_id)
            if saved.id == checkpoint_id
        ]
    if not found:
        raise NotFound(
            f"there is no checkpoint {checkpoint_id!r}", hint="GET /api/checkpoints lists them"
        )
    if len(found) > 1:
        tasks = ", ".join(task for task, _ in found[:5])
        raise NotAllowedNow(
            f"several tasks have a checkpoint {checkpoint_id!r}: {tasks}", hint="set task_id"
        )
    task, saved = found[0]
    if saved.state != "committed":
        raise NotAllowedNow(
            f"checkpoint {checkpoint_id!r} is {state_views.CHECKPOINT_STATUS[saved.state]}",
            hint="choose a completed checkpoint",
        )
    return task


def verified_bytes(storage: StorageBackend, checkpoint_id: str) -> int:
    """Read a checkpoint and compare all checksums; returns the number of bytes."""
    reached, name = ReadOnlyStorage(storage), checkpoint_id + MANIFEST_SUFFIX
    manifest = decode_manifest(reached.get(name), f"{storage.url}/{name}")
    with CheckpointReader(reached, manifest) as reader:
        return reader.verify()
