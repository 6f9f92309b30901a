"""Endpoints of folders that travel with tasks."""

import asyncio

from litestar import get, post
from litestar.params import FromPath, JSONBody

from strata.coordinator.rest.action_responses import (
    AnnounceWorkdirResponse,
    PiecesResponse,
    WorkdirResponse,
)
from strata.coordinator.rest.error_responses import READS_ONE, WRITES
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.request_models import AddPiecesRequest, AnnounceWorkdirRequest
from strata.coordinator.workdir_store import Workdirs, needed_by
from strata.core.tasks.workdirs import Workdir
from strata.errors import NotFound


@post("/workdirs", status_code=200, responses=WRITES)
async def announce_workdir(
    api: TheApi, data: JSONBody[AnnounceWorkdirRequest]
) -> AnnounceWorkdirResponse:
    """Announce the files of a folder; the response says which pieces the coordinator does not have.

    A file is sent in pieces of 524288 bytes, the last one may be shorter. Send the missing pieces,
    then submit a task with the digest. Folders that no task uses are deleted after an hour.
    """
    async with api.engine.settled() as state:
        needed = needed_by(state)
    workdir, workdirs = Workdir(data.files), of(api)
    missing = await asyncio.to_thread(workdirs.announce, workdir, needed)
    return AnnounceWorkdirResponse(digest=workdir.digest, missing=missing)


@post("/workdirs/{digest:str}/pieces", status_code=200, responses=WRITES)
async def add_pieces(
    api: TheApi, digest: FromPath[str], data: JSONBody[AddPiecesRequest]
) -> PiecesResponse:
    """Send pieces of the files of an announced folder."""
    stored = await asyncio.to_thread(of(api).add, digest, data.pieces)
    return PiecesResponse(stored=stored)


@get("/workdirs/{digest:str}", responses=READS_ONE)
async def get_workdir(api: TheApi, digest: FromPath[str]) -> WorkdirResponse:
    """The files of a folder, while it is stored; the fact `WorkdirRecorded` of a task stays."""
    workdir = await asyncio.to_thread(of(api).store.workdir, digest)
    return WorkdirResponse(digest=digest, size_bytes=workdir.size_bytes, files=workdir.files)


async def stored_workdir(api: Api, digest: str) -> Workdir | None:
    """The files of the folder of a task that starts; raises unless all of them are stored."""
    return await asyncio.to_thread(of(api).complete, digest) if digest else None


def of(api: Api) -> Workdirs:
    """The stored folders; a simulated cluster has none."""
    if api.workdirs is None:
        raise NotFound(
            "a simulated cluster stores no folders", hint="start a coordinator with strata up"
        )
    return api.workdirs


ENDPOINTS = [announce_workdir, add_pieces, get_workdir]
"""All endpoints of this module."""
