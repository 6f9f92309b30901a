"""Archives finished runs as Parquet, one at a time, some time after their end.

The storage shows which runs are archived, and the log which archived runs were deleted, so a
restart repeats and forgets nothing. A subprocess does the work; if it is killed, no incomplete run
is visible, and the job is started again. Every hour the retention rules are applied
(`run_retention`).
"""

import asyncio
import logging
import shutil
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from strata.config import Settings
from strata.coordinator.archive.run_retention import RunRetention, run_name
from strata.coordinator.background import attempt, background, run_job
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.core.events import COORDINATOR
from strata.core.record.record_retention import RunDeleted
from strata.core.task_state import Task
from strata.storage.locations import open_storage
from strata.store.event_store import FOREVER_NS, Window
from strata.timeline.archive.archive_job import Archive
from strata.timeline.archive.run_file import RUN
from strata.timeline.archive.run_lookup import kept_at

log = logging.getLogger(__name__)

LOOK_S = 5.0
RETRY_S = 60.0
KEEPING_S = 3_600.0
SECOND_NS = 1_000_000_000
SCRATCH = "archiving"


class Archiver:
    """Finds runs that have ended and archives them."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._after_ns = int(settings.archive_after_s * SECOND_NS)
        self._where = kept_at(settings)
        self._scratch = Path(settings.data_dir) / SCRATCH
        self._keeper = RunRetention(engine, settings)
        self._done: set[str] = set()

    def working(self) -> AbstractAsyncContextManager[None]:
        """Archive while the context is open; an interrupted job is started again later."""
        return background(self._run(), "strata-archiver")

    async def _run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        self._done |= await asyncio.to_thread(self._deleted)
        keep_at_s = time.monotonic()
        while True:
            well = [await attempt(self._keep(task), f"archiving {task.id}") for task in self._due()]
            if time.monotonic() >= keep_at_s:
                await attempt(self._keeper.look(), "applying the retention of archived runs")
                keep_at_s = time.monotonic() + KEEPING_S
            await asyncio.sleep(LOOK_S if all(well) else RETRY_S)

    def _deleted(self) -> set[str]:
        """The archived runs that were deleted: they are not archived again."""
        wanted = Window(node=COORDINATOR, kinds=frozenset({RunDeleted.__name__}))
        found = self._engine.kernel.store.query(wanted, limit=FOREVER_NS)
        return {event.body.run for _, _, event in found if isinstance(event.body, RunDeleted)}

    def _due(self) -> list[Task]:
        """The tasks that ended long enough ago and are neither archived nor deleted."""
        ended_ns = read_clock().wall_ns - self._after_ns
        return [
            task
            for task in self._engine.kernel.state.tasks.values()
            if task.ended and task.ended_ns <= ended_ns and self._name(task) not in self._done
        ]

    def _name(self, task: Task) -> str:
        return run_name(task.id, self._engine.kernel.state.cluster, task.continuations)

    async def _keep(self, task: Task) -> None:
        name = self._name(task)
        if not await asyncio.to_thread(self._is_kept, name):
            await self._archive(task, name)
            log.info("the run of %s is archived as %s in %s", task.id, name, self._where)
        self._done.add(name)

    def _is_kept(self, name: str) -> bool:
        storage = open_storage(self._where, self._settings)
        try:
            return storage.exists(f"{name}/{RUN}")
        finally:
            storage.close()

    async def _archive(self, task: Task, name: str) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        job = Archive(
            task=task.id,
            until_ns=task.ended_ns + self._after_ns,
            where=self._where,
            name=name,
            scratch=str(self._scratch),
            settings=self._settings,
        )
        await run_job(job)
