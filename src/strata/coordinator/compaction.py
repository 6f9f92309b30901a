"""Joins older facts of the log to segments, in a thread beside everything else.

One segment at a time, with a pause after each, so that appends and the event loop hardly wait. The
newest facts stay as they are. If rows of the log cannot be read, nothing is joined until the next
start; readers of the log report the damage.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

from strata.coordinator.background import background
from strata.errors import Corrupt, StrataError
from strata.store.base import EventStore

log = logging.getLogger(__name__)

LOOK_S = 5.0
PAUSE_S = 0.05
RETRY_S = 60.0


def compacting(store: EventStore) -> AbstractAsyncContextManager[None]:
    """Compacts a store for as long as the context is open."""
    return background(_compact(store), "strata-compaction")


async def _compact(store: EventStore) -> None:
    while True:
        try:
            joined = await asyncio.to_thread(store.compact, store.position)
        except Corrupt as error:
            log.warning("facts of the log are not compacted until the next start: %s", error)
            return
        except StrataError as error:
            log.warning("compacting the log is tried again in %g s: %s", RETRY_S, error)
            await asyncio.sleep(RETRY_S)
            continue
        await asyncio.sleep(PAUSE_S if joined else LOOK_S)
