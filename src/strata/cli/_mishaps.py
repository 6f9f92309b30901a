"""Kills workers on purpose while a task runs, to see it recover: `strata run --kill N`."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from strata.cli._watch import Task, Watcher

EVERY_S = 5.0
"""Where nobody says how much there is to do, the next one dies after so long."""


class Mishaps:
    """`kills` SIGKILLs to workers drawn at random, spread evenly over the task."""

    def __init__(self, kills: int, pids: Callable[[], dict[str, int]], seed: int = 0) -> None:
        self.left = self._kills = kills
        self._pids = pids
        self._chance = random.Random(seed)
        self._generation = 0
        self._since_s = time.monotonic()

    def consider(self, task: Task, watcher: Watcher) -> None:
        """Kills somebody if it is time, and if the last one has been recovered from."""
        if not task.committed_steps:
            self._since_s = time.monotonic()
        recovered = task.status == "running" and task.generation != self._generation
        if not self.left or not recovered or not self._due(task):
            return
        running = sorted(self._pids().items())
        if not running:
            return
        worker, pid = self._chance.choice(running)
        watcher.say("⚡", "magenta", f"kill -9 {pid} ({worker}), as asked for with --kill")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.left -= 1
        self._generation, self._since_s = task.generation, time.monotonic()

    def _due(self, task: Task) -> bool:
        """By its progress; where nobody knows how much there is, by the time it has trained."""
        if task.progress is None:
            return time.monotonic() - self._since_s > EVERY_S
        share = (self._kills - self.left + 1) / (self._kills + 1)
        return task.progress >= 100 * share
