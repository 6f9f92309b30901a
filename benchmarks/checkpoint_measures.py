"""Shared by the checkpoint benchmark and its peers: figures by round, and a training loop."""

import os
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np


def timed(work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def forget(path: Path) -> None:
    """Drop files from the page cache, so that a read comes from the disk."""
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Figures(defaultdict):
    """The figures of all rounds by name."""

    def __init__(self) -> None:
        super().__init__(list)

    def median(self, name: str) -> float:
        return statistics.median(self[name])

    def medians(self) -> dict[str, float]:
        return {name: round(self.median(name), 4) for name in self}

    def ratio(self, name: str, reference: str) -> float:
        """The median of the ratios of the rounds; both figures of a round have the same
        conditions."""
        pairs = zip(self[name], self[reference], strict=True)
        return statistics.median(mine / its for mine, its in pairs)


class Training:
    """Runs steps while a save is in flight, to measure the time that the save takes from them."""

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(1).standard_normal((256, 256), np.float32)

    def step(self) -> None:
        """One step: about half in Python, half in a kernel that releases the GIL, as in
        training."""
        self.matrix @ self.matrix
        total = 0
        for index in range(12_000):
            total += index

    def step_s(self) -> float:
        return statistics.median(timed(self.step) for _ in range(200))

    def stolen_s(self, step_s: float, in_flight) -> float:
        begun, steps = time.perf_counter(), 0
        while in_flight():
            self.step()
            steps += 1
        return time.perf_counter() - begun - steps * step_s
