"""Has a process of its own do a job of the archiver (`timeline/archiver`)."""

import asyncio
import sys

import msgspec

from strata.errors import Unavailable
from strata.timeline import archiver
from strata.timeline.archiver import Job
from strata.timeline.runfile import Held


async def carried_out(job: Job) -> list[Held]:
    """Starts the process and waits for its end; what it found. It ends with whoever waits."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", archiver.__name__, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        found, told = await process.communicate(msgspec.json.encode(job))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Unavailable(told.decode(errors="replace").strip()[-500:] or "it was killed")
    return msgspec.json.decode(found, type=list[Held])
