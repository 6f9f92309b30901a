"""Background work: tasks while a context is open, archive jobs in a subprocess, sample counts."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress

import msgspec

from strata.core.state import DatasetSpec
from strata.data import dataset_specs
from strata.errors import StrataError, Unavailable
from strata.timeline.archive import archive_job
from strata.timeline.archive.archive_job import Job
from strata.timeline.archive.run_file import Held

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Run a coroutine while the context is open; cancel it at exit."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def attempt(work: Awaitable[None], what: str) -> bool:
    """Await some work; log its error and return False if it failed."""
    try:
        await work
    except (StrataError, OSError) as error:
        log.warning("%s failed and will be retried: %s", what, error)
        return False
    return True


async def run_job(job: Job) -> list[Held]:
    """Run a job in a subprocess and return its result; a cancelled caller kills the process."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", archive_job.__name__, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        found, errors = await process.communicate(msgspec.json.encode(job))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = errors.decode(errors="replace").strip()[-500:]
        raise Unavailable(reason or "the archiver process was killed")
    return msgspec.json.decode(found, type=list[Held])


async def measured(dataset: str, spec: DatasetSpec) -> DatasetSpec:
    """The spec with its samples counted, in a thread because the first read may take long."""
    return await asyncio.to_thread(dataset_specs.measured, dataset, spec)
