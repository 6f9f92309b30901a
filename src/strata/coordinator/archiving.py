"""Finished runs become Parquet by themselves: one at a time, some time after their end.

What is archived already is told by the storage, so a restart repeats nothing and forgets nothing.
The work is done by a process of its own (`timeline/archiver`); killed at any moment, it leaves no
run that could be seen, and is started again. The log keeps what it has.
"""

import asyncio
import logging
import shutil
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.coordinator.background import background
from strata.coordinator.clock import read_clock
from strata.coordinator.engine import Engine
from strata.core.tasks import Task
from strata.errors import StrataError, Unavailable
from strata.storage.opening import open_storage
from strata.timeline.archiver import Job
from strata.timeline.opening import RUN, kept_at

log = logging.getLogger(__name__)

LOOK_S = 5.0
RETRY_S = 60.0
SECOND_NS = 1_000_000_000
SCRATCH = "archiving"


class Archiver:
    """Looks for runs that have ended, and has them archived."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._after_ns = int(settings.archive_after_s * SECOND_NS)
        self._where = kept_at(settings)
        self._scratch = Path(settings.data_dir) / SCRATCH
        self._kept: set[str] = set()

    def working(self) -> AbstractAsyncContextManager[None]:
        """Archives for as long as the context is open; what is under way then is begun again."""
        return background(self._run(), "strata-archiver")

    async def _run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        while True:
            pause_s = LOOK_S
            for task in self._due():
                try:
                    await self._keep(task)
                except (StrataError, OSError) as error:
                    log.warning("the run of %s is archived later: %s", task.id, error)
                    pause_s = RETRY_S
            await asyncio.sleep(pause_s)

    def _due(self) -> list[Task]:
        """The tasks that ended long enough ago and are not known to be archived."""
        ended_ns = read_clock().wall_ns - self._after_ns
        return [
            task
            for task in self._engine.kernel.state.tasks.values()
            if task.ended and task.ended_ns <= ended_ns and task.id not in self._kept
        ]

    async def _keep(self, task: Task) -> None:
        name = f"{task.id}-{self._engine.kernel.state.cluster}"
        if not await asyncio.to_thread(self._is_kept, name):
            await self._archive(task, name)
            log.info("the run of %s is archived as %s in %s", task.id, name, self._where)
        self._kept.add(task.id)

    def _is_kept(self, name: str) -> bool:
        storage = open_storage(self._where, self._settings)
        try:
            return storage.exists(f"{name}/{RUN}")
        finally:
            storage.close()

    async def _archive(self, task: Task, name: str) -> None:
        """Has a process do it, and waits for its end."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        job = Job(
            data=self._settings.data_dir,
            task=task.id,
            until_ns=task.ended_ns + self._after_ns,
            where=self._where,
            name=name,
            scratch=str(self._scratch),
            settings=self._settings,
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", Job.__module__, stdin=pipe, stderr=pipe
        )
        try:
            _, told = await process.communicate(msgspec.json.encode(job))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise Unavailable(told.decode(errors="replace").strip()[-500:] or "it was killed")
