"""Work that goes on beside everything else for as long as a context is open."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress

from strata.errors import StrataError

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Runs it until the context ends, and then ends it wherever it is."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def tried(work: Awaitable[None], what: str) -> bool:
    """Whether some work was done; what went wrong is told, and is tried again later."""
    try:
        await work
    except (StrataError, OSError) as error:
        log.warning("%s is tried again later: %s", what, error)
        return False
    return True
