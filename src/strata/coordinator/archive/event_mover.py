"""Moves older worker events of running tasks out of the log, so that a long run does not fill it.

When the events of a task take more than `running_events_bytes`, a subprocess writes the older half
to a stretch beside the log and compares it with the log (`timeline/archive/segment_writer`). The
move is recorded as a fact, and the log deletes the events. After a crash in between, the next start
finds the stretch and completes the move. The stretches of a task are deleted when its archived run
has the same events.
"""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from strata.config import Settings
from strata.coordinator.background import run_job
from strata.coordinator.engine.engine import Engine
from strata.core.record.record_retention import MoveEvents
from strata.store.sqlite import SqliteReader
from strata.timeline.archive.archive_job import MoveOut
from strata.timeline.archive.run_file import RUN, Held, RunFile, read_run
from strata.timeline.archive.segmented_log import STRETCHES, SegmentedLog, held_in, stretch_names

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
"""Stretches written for one task before the next task."""


class EventMover:
    """Moves worker events of running tasks to stretches."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._folder = Path(settings.data_dir) / STRETCHES

    async def look(self) -> None:
        """Move surplus events; interrupted moves are completed first, so no event moves twice."""
        if not isinstance(self._engine.kernel.store, SqliteReader):
            return  # stretches are beside the log, on the disk of one coordinator
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
        """Complete moves that were interrupted after their stretch was written."""
        for run in (await asyncio.to_thread(self._unreleased)).values():
            await self._release(run, held_in(run))

    def _unreleased(self) -> dict[str, RunFile]:
        store = self._engine.kernel.store
        if not self._folder.is_dir() or not isinstance(store, SqliteReader):
            return {}
        return SegmentedLog(store, self._folder).unreleased()

    async def _move(self, task: str, streams: list[tuple[str, int]]) -> bool:
        """Move older events of a task if there are too many; False if there were not."""
        sizes = await asyncio.to_thread(self._engine.kernel.store.sizes)
        if sum(sizes.get(each, 0) for each in streams) <= self._settings.running_events_bytes:
            return False
        name = await asyncio.to_thread(self._next_name, task)
        found = await run_job(
            MoveOut(
                task=task,
                streams=streams,
                name=name,
                settings=self._settings,
            )
        )
        if found:
            await self._release(await asyncio.to_thread(read_run, self._folder / name), found)
        return bool(found)

    async def _release(self, run: RunFile, found: Sequence[Held]) -> None:
        """Record a move and delete the events from the log."""
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
        """The stretches of a task, or of all tasks."""
        found = [read_run(self._folder / name) for name in stretch_names(self._folder)]
        return [run for run in found if task in ("", run.task)]

    def tasks(self) -> set[str]:
        """The tasks that have stretches."""
        return {run.task for run in self._stretches()}

    def drop(self, task: str, held: Sequence[Held]) -> None:
        """Delete the stretches of a task whose events are all in its archived run."""
        stops: dict[tuple[str, int], int] = {}
        for each in held:
            stream = (each.node, each.incarnation)
            stops[stream] = max(each.stop, stops.get(stream, 0))
        for run in self._stretches(task):
            if all(stops.get((s.node, s.incarnation), 0) > s.last_seq for s in run.streams):
                folder = self._folder / run.name
                (folder / RUN).unlink()  # first, so that no incomplete stretch is read
                shutil.rmtree(folder)
