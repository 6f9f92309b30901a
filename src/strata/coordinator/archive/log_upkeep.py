"""Upkeep of the facts in the log: join older facts to segments, move the oldest to the archive.

`compacting` joins older facts to segments in a background thread. It joins one segment at a time,
with a pause after each, so that appends and the event loop hardly wait. The newest facts are left
as they are. If rows of the log cannot be read, compaction stops until the next start; readers of
the log report the damage.

`FactMover` keeps the log of a long-lived cluster from filling a disk. It works only if `archive_to`
is set: moving facts within the disk of the log would free nothing. When the facts take more than
`facts_bytes`, the oldest segments are stored in the archive and read back. Then the move is
recorded as a fact, and each row of the log keeps a reference instead of the facts. After a crash in
between the move is repeated and writes the same objects. A restart starts from a snapshot and needs
none of the moved facts; readers fetch them when they need them.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

from strata.config import Settings
from strata.coordinator.background import background
from strata.coordinator.engine.engine import Engine
from strata.core.record.record_retention import MoveFacts
from strata.errors import Corrupt, StrataError
from strata.store.event_store import Batch, EventStore
from strata.store.fact_references import Moved, fetched, reference
from strata.store.sql.sql_store import SqlStore
from strata.timeline.archive.moved_facts import fetching, put_away

log = logging.getLogger(__name__)

AT_ONCE = 256
"""Segments that are moved at once."""


class FactMover:
    """Moves facts of the log to the archive."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def look(self) -> None:
        """Move surplus facts, oldest first."""
        store = self._engine.kernel.store
        if not self._settings.archive_to or not isinstance(store, SqlStore):
            return
        while surplus := await asyncio.to_thread(self._surplus, store):
            moved = await asyncio.to_thread(self._put_away, surplus)
            await self._engine.submit(
                MoveFacts(
                    first=surplus[0].first_seq,
                    last=surplus[-1].stop_seq - 1,
                    facts=sum(segment.count for segment in surplus),
                    place=self._settings.archive_to,
                )
            )
            for segment, where in zip(surplus, moved, strict=True):
                await asyncio.to_thread(store.move_out, segment, where)
            log.info(
                "facts @%d to @%d moved to %s",
                surplus[0].first_seq,
                surplus[-1].stop_seq - 1,
                self._settings.archive_to,
            )

    def _surplus(self, store: SqlStore) -> list[Batch]:
        """The oldest segments above the limit."""
        over = store.fact_bytes() - self._settings.facts_bytes
        found: list[Batch] = []
        for segment in store.segments(AT_ONCE) if over > 0 else ():
            if over <= 0:
                break
            found.append(segment)
            over -= len(segment.payload)
        return found

    def _put_away(self, segments: list[Batch]) -> list[Moved]:
        """Store segments in the archive and read them back."""
        fetch = fetching(self._settings)
        cluster = self._engine.kernel.state.cluster
        place = self._settings.archive_to
        moved = []
        for segment in segments:
            where = put_away(segment.payload, segment.first_seq, cluster, place, self._settings)
            fetched(reference(where), fetch)  # raises if the stored bytes differ
            moved.append(where)
        return moved


LOOK_S = 5.0
PAUSE_S = 0.05
RETRY_S = 60.0


def compacting(store: EventStore) -> AbstractAsyncContextManager[None]:
    """Compact a store while the context is open."""
    return background(_compact(store), "strata-compaction")


async def _compact(store: EventStore) -> None:
    while True:
        try:
            joined = await asyncio.to_thread(store.compact, store.position)
        except Corrupt as error:
            log.warning("the log is not compacted until the next start: %s", error)
            return
        except StrataError as error:
            log.warning("compacting the log failed; retrying in %g s: %s", RETRY_S, error)
            await asyncio.sleep(RETRY_S)
            continue
        await asyncio.sleep(PAUSE_S if joined else LOOK_S)
