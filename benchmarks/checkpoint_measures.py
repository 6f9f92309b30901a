"""What the checkpoint benchmark and its peers share: figures by round, and a training loop."""

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
    """Takes files out of the page cache, so that a read is a read."""
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Figures(defaultdict):
    """Every round's figure by name."""

    def __init__(self) -> None:
        super().__init__(list)

    def median(self, name: str) -> float:
        return statistics.median(self[name])

    def medians(self) -> dict[str, float]:
        return {name: round(self.median(name), 4) for name in self}

    def ratio(self, name: str, reference: str) -> float:
        """The median of the rounds' ratios: both of a round met the same machine."""
        pairs = zip(self[name], self[reference], strict=True)
        return statistics.median(mine / its for mine, its in pairs)


class Training:
    """Runs steps while something is in flight; what it lost is what the other took."""

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(1).standard_normal((256, 256), np.float32)

    def step(self) -> None:
        """About half in Python, half in a kernel that lets go of the GIL, as training is."""
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
