"""Fault injection for `strata run --kill N`: kill workers while a task runs."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from strata.cli.support.task_watch import Watcher
from strata.coordinator.rest.response_models import TaskDetail

EVERY_S = 5.0
"""Seconds between kills if the task's progress is unknown."""


class WorkerKiller:
    """Sends SIGKILL to `kills` random workers, spread evenly over the task."""

    def __init__(self, kills: int, pids: Callable[[], dict[str, int]], seed: int = 0) -> None:
        self.left = self._kills = kills
        self._pids = pids
        self._random = random.Random(seed)
        self._generation = 0
        self._since_s = time.monotonic()

    def consider(self, task: TaskDetail, watcher: Watcher) -> None:
        """Kill a worker if one is due and the task has recovered from the last kill."""
        if not task.committed_steps:
            self._since_s = time.monotonic()
        recovered = task.status == "running" and task.generation != self._generation
        if not self.left or not recovered or not self._due(task):
            return
        running = sorted(self._pids().items())
        if not running:
            return
        worker, pid = self._random.choice(running)
        watcher.say("⚡", "magenta", f"kill -9 {pid} ({worker}), because of --kill")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.left -= 1
        self._generation, self._since_s = task.generation, time.monotonic()

    def _due(self, task: TaskDetail) -> bool:
        """Whether the next kill is due, by progress, or by time if progress is unknown."""
        if task.progress is None:
            return time.monotonic() - self._since_s > EVERY_S
        share = (self._kills - self.left + 1) / (self._kills + 1)
        return task.progress >= 100 * share
