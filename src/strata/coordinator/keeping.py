"""How long the record of finished runs is kept: in the log as well, and as archived runs.

What workers recorded leaves the log some days after its run's end, once the archived run was
compared with it event for event; archived runs are deleted when they are too old or too much, if
the settings say so. Each is a fact first and done then; killed in between, it is found undone and
done again. A run is told by its name as one that this cluster archived; no other is touched.
"""

import asyncio
import logging
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.coordinator.background import tried
from strata.coordinator.clock import read_clock
from strata.coordinator.engine import Engine
from strata.coordinator.fact_mover import FactMover
from strata.coordinator.jobs import carried_out
from strata.coordinator.mover import Mover
from strata.core.keeping import DeleteRun, ReleaseEvents
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage
from strata.timeline.archiver import Verify
from strata.timeline.opening import kept_at
from strata.timeline.runfile import RUN

log = logging.getLogger(__name__)

DAY_MS = 86_400_000.0


def run_name(task: str, cluster: str) -> str:
    """What the run of a task is archived as."""
    return f"{task}-{cluster}"


class Stream(Struct, frozen=True):
    """A worker's incarnation, as `run.json` names it."""

    node: str
    incarnation: int


class Description(Struct, frozen=True):
    """What of `run.json` counts here."""

    name: str
    to_ms: float
    task: str
    streams: list[Stream]


class Kept(Struct, frozen=True):
    """An archived run and what it takes."""

    run: Description
    size_bytes: int


class Keeper:
    """Looks at what is kept, and lets go of what the settings do not keep."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._where = kept_at(settings)
        self._mover = Mover(engine, settings)
        self._fact_mover = FactMover(engine, settings)

    async def look(self) -> None:
        """Moves, releases and deletes what is due."""
        await tried(self._mover.look(), "moving events of running tasks out of the log")
        await tried(self._fact_mover.look(), "moving facts to the archive")
        now_ms = read_clock().wall_ns / 1e6
        kept = await asyncio.to_thread(self._own)
        tallies = await asyncio.to_thread(self._engine.kernel.store.tallies)
        logged = {Stream(tally.node, tally.incarnation) for tally in tallies}
        moved = await asyncio.to_thread(self._mover.tasks)
        surplus = {run.name: reason for run, reason in self._surplus(kept, now_ms)}
        for run in (each.run for each in kept):
            doomed = surplus.get(run.name)
            old = now_ms - run.to_ms > self._settings.keep_events_days * DAY_MS
            there = run.task in moved or not logged.isdisjoint(run.streams)
            if (doomed or old) and there:
                await tried(self._release(run), f"letting the log go of {run.name}")
            if doomed:
                await tried(self._delete(run, doomed), f"deleting {run.name}")

    def _own(self) -> list[Kept]:
        """The runs that this cluster archived, by their end."""
        storage = open_storage(self._where, self._settings)
        try:
            return sorted(self._described(storage), key=lambda each: each.run.to_ms)
        finally:
            storage.close()

    def _described(self, storage: StorageBackend) -> Iterator[Kept]:
        cluster = self._engine.kernel.state.cluster
        for name in (folder.strip("/") for folder in storage.list("").folders):
            if name.endswith(f"-{cluster}") and storage.exists(f"{name}/{RUN}"):
                run = msgspec.json.decode(storage.get(f"{name}/{RUN}"), type=Description)
                if name == run_name(run.task, cluster):
                    yield Kept(run, sum(file.size_bytes for file in storage.walk(name)))

    def _surplus(self, kept: list[Kept], now_ms: float) -> Iterator[tuple[Description, str]]:
        """The runs that are not to be kept any longer, and why."""
        days, most = self._settings.keep_runs_days, self._settings.keep_runs_bytes
        total = sum(each.size_bytes for each in kept)
        for each in kept:
            if days is not None and now_ms - each.run.to_ms > days * DAY_MS:
                yield each.run, f"it ended more than {days:g} days ago"
            elif most is not None and total > most:
                yield each.run, f"archived runs take {total:,} bytes, {most:,} are kept"
            else:
                continue
            total -= each.size_bytes

    async def _release(self, run: Description) -> None:
        """Takes out of the log what the archived run holds."""
        job = Verify(self._settings.data_dir, self._where, run.name, self._settings)
        found = await carried_out(job)
        events = sum(each.events for each in found)
        if not events:
            log.warning("%s does not hold what the log has of its workers; it stays", run.name)
            return
        await self._engine.submit(
            ReleaseEvents(task=run.task, run=run.name, place=self._where, events=events)
        )
        for each in found:
            release = self._engine.kernel.store.release
            await asyncio.to_thread(release, each.node, each.incarnation, each.stop, each.start)
        await asyncio.to_thread(self._mover.drop, run.task, found)
        log.info("%d events of %s left the log; they are in %s", events, run.task, run.name)

    async def _delete(self, run: Description, reason: str) -> None:
        await self._engine.submit(
            DeleteRun(task=run.task, run=run.name, place=self._where, reason=reason)
        )
        await asyncio.to_thread(self._remove, run.name)
        log.info("the archived run %s was deleted: %s", run.name, reason)

    def _remove(self, name: str) -> None:
        """Deletes the files of a run; that which makes it one goes last, so that none is left."""
        storage = open_storage(self._where, self._settings)
        try:
            for file in storage.walk(name):
                if not file.name.endswith(f"/{RUN}"):
                    storage.delete(file.name)
            storage.delete_folder(name)
        finally:
            storage.close()
