"""What can be done to a checkpoint that was saved: read all of it and compare, or delete it."""

import asyncio
from typing import Annotated

from litestar import delete, post
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from strata.checkpoint.format import MANIFEST_SUFFIX, decode_manifest
from strata.checkpoint.reach import ReachedStorage, Unreachable
from strata.checkpoint.reader import CheckpointReader
from strata.coordinator.http import views
from strata.coordinator.http.faults import WRITES
from strata.coordinator.http.ports import TheApi
from strata.core.retention import DeleteCheckpoint
from strata.core.saving import FailCheckpoint
from strata.errors import Corrupt, NotAllowedNow, NotFound
from strata.storage.base import StorageBackend

OfTask = Annotated[str, QueryParameter(max_length=200, description="Of this task.")]


class VerifiedResponse(Struct, frozen=True):
    """Whether a place holds it with every byte as it was saved; `reason` names the part that is
    damaged, in that place or in a nearer one."""

    id: str
    task_id: str
    ok: bool
    size_verified: int
    reason: str = ""


class DeletedResponse(Struct, frozen=True):
    """The checkpoint is no longer real; its files go."""

    id: str
    task_id: str


@post("/checkpoints/{checkpoint_id:str}/verify", status_code=200, responses=WRITES)
async def verify_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: OfTask = ""
) -> VerifiedResponse:
    """Reads a completed checkpoint and compares all checksums; a damaged one counts as failed.

    One at a time is read. Large ones take a while: `strata checkpoints verify` shows how far it is.
    """
    task = await _task_of(api, checkpoint_id, task_id)
    places = api.places
    if places is None:
        raise NotAllowedNow("a simulated checkpoint has no files", hint="ask a real coordinator")
    trouble, away = "", None
    async with places.reading:
        for number, storage in enumerate(places.storages(task)):
            try:
                size = await asyncio.to_thread(verified_bytes, storage, checkpoint_id)
                return VerifiedResponse(checkpoint_id, task, True, size, trouble)
            except Corrupt as error:
                trouble = trouble or str(error)
            except Unreachable as error:
                trouble = trouble or str(error)
                if number == 0 or not error.missing:
                    away = away or error
    if away is not None:
        raise away  # what was not read is not damaged
    await api.engine.submit(
        FailCheckpoint(task=task, checkpoint=checkpoint_id, reason=trouble, damaged=True)
    )
    return VerifiedResponse(checkpoint_id, task, False, 0, trouble)


@delete("/checkpoints/{checkpoint_id:str}", status_code=200, responses=WRITES)
async def delete_checkpoint(
    api: TheApi, checkpoint_id: FromPath[str], task_id: OfTask = ""
) -> DeletedResponse:
    """Deletes a completed checkpoint, unless it is the newest of its task or being read."""
    task = await _task_of(api, checkpoint_id, task_id)
    reason = "asked for through the API"
    await api.engine.submit(DeleteCheckpoint(task=task, checkpoint=checkpoint_id, reason=reason))
    return DeletedResponse(checkpoint_id, task)


async def _task_of(api: TheApi, checkpoint_id: str, task_id: str) -> str:
    """The task whose completed checkpoint that is."""
    async with api.engine.settled() as state:
        found = [
            (task.id, saved)
            for task, saved in views.shown_checkpoints(state, task_id)
            if saved.id == checkpoint_id
        ]
    if not found:
        raise NotFound(
            f"there is no checkpoint {checkpoint_id!r}", hint="GET /api/checkpoints lists them"
        )
    if len(found) > 1:
        tasks = ", ".join(task for task, _ in found[:5])
        raise NotAllowedNow(
            f"several tasks have a checkpoint {checkpoint_id!r}: {tasks}", hint="name the task_id"
        )
    task, saved = found[0]
    if saved.state != "committed":
        raise NotAllowedNow(
            f"checkpoint {checkpoint_id!r} is {views.CHECKPOINT_STATUS[saved.state]}",
            hint="choose a completed one",
        )
    return task


def verified_bytes(storage: StorageBackend, checkpoint_id: str) -> int:
    """Reads a checkpoint and compares all of it; returns how many bytes that were."""
    reached, name = ReachedStorage(storage), checkpoint_id + MANIFEST_SUFFIX
    manifest = decode_manifest(reached.get(name), f"{storage.url}/{name}")
    with CheckpointReader(reached, manifest) as reader:
        return reader.verify()
