"""Retention of finished runs: in the log, and as archived runs.

Worker events leave the log some days after the end of their run, after the archived run was
compared with the log event by event. Archived runs are deleted when they are too old or take too
much space, if the settings say so. Each deletion is recorded as a fact first and then carried out;
after a crash in between it is repeated. Only runs whose name shows that this cluster archived them
are deleted.
"""

import asyncio
import logging
from collections.abc import Iterator

from msgspec import Struct

from strata.config import Settings
from strata.coordinator.archive.event_mover import EventMover
from strata.coordinator.archive.log_upkeep import FactMover
from strata.coordinator.background import attempt, run_job
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.core.record.record_retention import DeleteRun, ReleaseEvents
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage
from strata.timeline.archive.archive_job import Verify
from strata.timeline.archive.run_file import RUN, decode_run
from strata.timeline.archive.run_lookup import kept_at

log = logging.getLogger(__name__)

DAY_MS = 86_400_000.0


def run_name(task: str, cluster: str, continuations: int = 0) -> str:
    """Name of a task's archived run; a task that was continued is archived again after its end."""
    return f"{task}-{cluster}" if not continuations else f"{task}~{continuations + 1}-{cluster}"


def is_run_of(name: str, task: str, cluster: str) -> bool:
    """Whether a name is that of a task's archived run."""
    number = name.removeprefix(f"{task}~").removesuffix(f"-{cluster}")
    return name == run_name(task, cluster) or (
        number.isdigit() and name == run_name(task, cluster, int(number) - 1)
    )


class WorkerEvents(Struct, frozen=True):
    """The events of a worker's incarnation, as `run.json` names them."""

    node: str
    incarnation: int


class Description(Struct, frozen=True):
    """The fields of `run.json` that are used here."""

    name: str
    to_ms: float
    task: str
    streams: list[WorkerEvents]


class Kept(Struct, frozen=True):
    """An archived run and its size."""

    run: Description
    size_bytes: int


class RunRetention:
    """Deletes events and archived runs as the settings say."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._where = kept_at(settings)
        self._mover = EventMover(engine, settings)
        self._fact_mover = FactMover(engine, settings)

    async def look(self) -> None:
        """Move, release and delete what is due."""
        await attempt(self._mover.look(), "moving events of running tasks out of the log")
        await attempt(self._fact_mover.look(), "moving facts to the archive")
        now_ms = read_clock().wall_ns / 1e6
        kept = await asyncio.to_thread(self._own)
        tallies = await asyncio.to_thread(self._engine.kernel.store.tallies)
        logged = {WorkerEvents(tally.node, tally.incarnation) for tally in tallies}
        moved = await asyncio.to_thread(self._mover.tasks)
        surplus = {run.name: reason for run, reason in self._surplus(kept, now_ms)}
        for run in (each.run for each in kept):
            doomed = surplus.get(run.name)
            old = now_ms - run.to_ms > self._settings.keep_events_days * DAY_MS
            there = run.task in moved or not logged.isdisjoint(run.streams)
            if (doomed or old) and there and not self._continues(run.task):
                await attempt(self._release(run), f"deleting the events of {run.name} from the log")
            if doomed:
                await attempt(self._delete(run, doomed), f"deleting {run.name}")

    def _continues(self, task_id: str) -> bool:
        """Whether the task was continued and needs its earlier events for the audit."""
        task = self._engine.kernel.state.tasks.get(task_id)
        return task is not None and not task.ended

    def _own(self) -> list[Kept]:
        """The runs that this cluster archived, ordered by their end."""
        storage = open_storage(self._where, self._settings)
        try:
            return sorted(self._described(storage), key=lambda each: each.run.to_ms)
        finally:
            storage.close()

    def _described(self, storage: StorageBackend) -> Iterator[Kept]:
        cluster = self._engine.kernel.state.cluster
        for name in (folder.strip("/") for folder in storage.list("").folders):
            if name.endswith(f"-{cluster}") and storage.exists(f"{name}/{RUN}"):
                run = decode_run(storage.get(f"{name}/{RUN}"), f"{name}/{RUN}", Description)
                if is_run_of(name, run.task, cluster):
                    yield Kept(run, sum(file.size_bytes for file in storage.walk(name)))

    def _surplus(self, kept: list[Kept], now_ms: float) -> Iterator[tuple[Description, str]]:
        """The runs to delete, each with the reason."""
        days, most = self._settings.keep_runs_days, self._settings.keep_runs_bytes
        total = sum(each.size_bytes for each in kept)
        for each in kept:
            if days is not None and now_ms - each.run.to_ms > days * DAY_MS:
                yield each.run, f"it ended more than {days:g} days ago"
            elif most is not None and total > most:
                yield each.run, f"archived runs take {total:,} bytes; the limit is {most:,}"
            else:
                continue
            total -= each.size_bytes

    async def _release(self, run: Description) -> None:
        """Delete from the log the events that the archived run holds."""
        job = Verify(where=self._where, name=run.name, settings=self._settings)
        found = await run_job(job)
        events = sum(each.events for each in found)
        if not events:
            log.warning(
                "the archived run %s lacks worker events of the log; they stay in the log",
                run.name,
            )
            return
        await self._engine.submit(
            ReleaseEvents(task=run.task, run=run.name, place=self._where, events=events)
        )
        for each in found:
            release = self._engine.kernel.store.release
            await asyncio.to_thread(release, each.node, each.incarnation, each.stop, each.start)
        await asyncio.to_thread(self._mover.drop, run.task, found)
        log.info(
            "%d events of %s were deleted from the log; the archived run %s has them",
            events,
            run.task,
            run.name,
        )

    async def _delete(self, run: Description, reason: str) -> None:
        await self._engine.submit(
            DeleteRun(task=run.task, run=run.name, place=self._where, reason=reason)
        )
        await asyncio.to_thread(self._remove, run.name)
        log.info("the archived run %s was deleted: %s", run.name, reason)

    def _remove(self, name: str) -> None:
        """Delete the files of a run, `run.json` last, so that a crash leaves a visible run."""
        storage = open_storage(self._where, self._settings)
        try:
            for file in storage.walk(name):
                if not file.name.endswith(f"/{RUN}"):
                    storage.delete(file.name)
            storage.delete_folder(name)
        finally:
            storage.close()
