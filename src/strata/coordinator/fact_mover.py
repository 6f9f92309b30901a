"""Moves older facts to the archive, so that the log of a long-lived cluster does not fill a disk.

Only with `archive_to`: on the disk of the log itself nothing would be gained. When the facts take
more than `facts_bytes`, the oldest segments are stored in the archive and read back. Then the move
is recorded as a fact, and each row of the log keeps a reference instead of the facts. Killed in
between, it begins again and writes the same objects. A restart needs none of the moved facts: it
begins at a snapshot. A reader that needs older facts fetches them.
"""

import asyncio
import logging

from strata.config import Settings
from strata.coordinator.engine import Engine
from strata.core.keeping import MoveFacts
from strata.store.base import Batch
from strata.store.moved import Moved, fetched, reference
from strata.store.sqlite import SqliteStore
from strata.timeline.moved_facts import fetching, put_away

log = logging.getLogger(__name__)

AT_ONCE = 256
"""Segments that are moved between two looks at what is left."""


class FactMover:
    """Looks at what the facts of the log take."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def look(self) -> None:
        """Moves what is too much, oldest first."""
        store = self._engine.kernel.store
        if not self._settings.archive_to or not isinstance(store, SqliteStore):
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

    def _surplus(self, store: SqliteStore) -> list[Batch]:
        """The oldest segments, as many as are too much."""
        over = store.fact_bytes() - self._settings.facts_bytes
        found: list[Batch] = []
        for segment in store.segments(AT_ONCE) if over > 0 else ():
            if over <= 0:
                break
            found.append(segment)
            over -= len(segment.payload)
        return found

    def _put_away(self, segments: list[Batch]) -> list[Moved]:
        """Stores segments in the archive and reads them back."""
        fetch = fetching(self._settings)
        cluster = self._engine.kernel.state.cluster
        place = self._settings.archive_to
        moved = []
        for segment in segments:
            where = put_away(segment.payload, segment.first_seq, cluster, place, self._settings)
            fetched(reference(where), fetch)  # raises if it is not what was stored
            moved.append(where)
        return moved
