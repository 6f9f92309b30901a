"""Moves older events of running tasks' workers out of the log, so that a long run does not fill it.

When the events of a task take more than `running_events_bytes`, a process of its own writes the
older half as a stretch beside the log and compares it with the log (`timeline/stretches`). The move
is recorded as a fact, and the log releases the events. Killed in between, the stretch is found at
the next start and the rest is done. The stretches of a task are deleted once its archived run was
found to hold the same events.
"""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from strata.config import Settings
from strata.coordinator.engine import Engine
from strata.coordinator.jobs import carried_out
from strata.core.keeping import MoveEvents
from strata.store.sqlite import SqliteReader
from strata.timeline.archiver import MoveOut
from strata.timeline.runfile import RUN, Held, RunFile, read_run
from strata.timeline.stretched_log import STRETCHES, StretchedLog, held_in, stretch_names

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
"""Stretches written for one task before others have their turn."""


class Mover:
    """Looks at what the events of running tasks take."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._folder = Path(settings.data_dir) / STRETCHES

    async def look(self) -> None:
        """Moves what is too much; no event is written to a second stretch before it has left."""
        await self._resume()
        for task, streams in self._running().items():
            for _ in range(MOST_AT_ONCE):
                if not await self._move(task, streams):
                    break

    def _running(self) -> dict[str, list[tuple[str, int]]]:
        """The workers' incarnations of each task that has not ended."""
        state = self._engine.kernel.state
        found: dict[str, list[tuple[str, int]]] = {}
        for worker in state.workers.values():
            task = state.tasks.get(worker.task)
            if task is not None and not task.ended:
                found.setdefault(task.id, []).append((worker.id, worker.incarnation))
        return found

    async def _resume(self) -> None:
        """Finishes moves that were interrupted after their stretch was written."""
        for run in (await asyncio.to_thread(self._unreleased)).values():
            await self._release(run, held_in(run))

    def _unreleased(self) -> dict[str, RunFile]:
        store = self._engine.kernel.store
        if not self._folder.is_dir() or not isinstance(store, SqliteReader):
            return {}
        return StretchedLog(store, self._folder).unreleased()

    async def _move(self, task: str, streams: list[tuple[str, int]]) -> bool:
        """Whether older events of a task were moved."""
        sizes = await asyncio.to_thread(self._engine.kernel.store.sizes)
        if sum(sizes.get(each, 0) for each in streams) <= self._settings.running_events_bytes:
            return False
        name = await asyncio.to_thread(self._next_name, task)
        found = await carried_out(
            MoveOut(self._settings.data_dir, task, streams, name, self._settings)
        )
        if found:
            await self._release(await asyncio.to_thread(read_run, self._folder / name), found)
        return bool(found)

    async def _release(self, run: RunFile, found: Sequence[Held]) -> None:
        """Records a move and lets the log go of the events."""
        events = sum(each.events for each in found)
        await self._engine.submit(
            MoveEvents(
                task=run.task,
                stretch=run.name,
                events=events,
                wall_from_ns=min(each.wall_from_ns for each in run.streams),
                wall_to_ns=max(each.wall_to_ns for each in run.streams),
            )
        )
        release = self._engine.kernel.store.release
        for each in found:
            await asyncio.to_thread(release, each.node, each.incarnation, each.stop, each.start)
        log.info("%d events of %s moved from the log to stretch %s", events, run.task, run.name)

    def _next_name(self, task: str) -> str:
        numbers = [int(run.name.rpartition("-")[2]) for run in self._stretches(task)]
        return f"{task}-{max(numbers, default=0) + 1:06}"

    def _stretches(self, task: str = "") -> list[RunFile]:
        """The stretches of a task, or of all."""
        found = [read_run(self._folder / name) for name in stretch_names(self._folder)]
        return [run for run in found if task in ("", run.task)]

    def tasks(self) -> set[str]:
        """The tasks that have stretches."""
        return {run.task for run in self._stretches()}

    def drop(self, task: str, held: Sequence[Held]) -> None:
        """Deletes the stretches of a task whose events are all in its archived run."""
        stops: dict[tuple[str, int], int] = {}
        for each in held:
            stream = (each.node, each.incarnation)
            stops[stream] = max(each.stop, stops.get(stream, 0))
        for run in self._stretches(task):
            if all(stops.get((s.node, s.incarnation), 0) > s.last_seq for s in run.streams):
                folder = self._folder / run.name
                (folder / RUN).unlink()  # first, so that no half of a stretch is ever read
                shutil.rmtree(folder)
