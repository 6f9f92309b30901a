"""Work that goes on beside everything else for as long as a context is open."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress


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
