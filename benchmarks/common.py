"""Shared by the benchmarks: facts about the machine, times, percentiles, and the printed result."""

import json
import math
import os
import platform
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import strata


def machine(folder: Path | None = None) -> dict[str, object]:
    """Facts about the machine; with a folder, also its file system."""
    found = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": _commit(),
    }
    if folder is not None:
        found |= {"sqlite": sqlite3.sqlite_version, "filesystem": _filesystem(folder)}
    return found


def _commit() -> str:
    """The commit that was measured; it ends in -dirty if code differs from it.

    Stored results and the page rendered from them are not code, so one benchmark does not mark the
    next ones.
    """
    git = ["git", "-C", str(Path(strata.__file__).parents[2])]
    code = ["src", "benchmarks", ":!benchmarks/results"]
    try:
        named = subprocess.run([*git, "describe", "--always"], capture_output=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code]).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return named.stdout.decode().strip() + ("-dirty" if changed else "")


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in _lines("/proc/mounts")]
    above = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above)[1] if above else "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return []


def timed(call: Callable[[], object]) -> float:
    """Measure the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cpu_timed(call: Callable[[], object]) -> float:
    """Measure the CPU seconds of this process that a call takes; other load hardly changes it."""
    began = time.process_time()
    call()
    return time.process_time() - began


def median(values: Iterable[float], scale: float = 1.0, digits: int = 3) -> float:
    """The median, in another unit."""
    return round(statistics.median(values) * scale, digits)


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> dict[str, float]:
    """Median, 99th percentile (nearest rank: of less than 100 values the largest) and largest."""
    ordered = sorted(values)
    p99 = ordered[math.ceil(len(ordered) * 0.99) - 1]
    return {
        "p50": median(ordered, scale, digits),
        "p99": round(p99 * scale, digits),
        "max": round(ordered[-1] * scale, digits),
    }


class Sync:
    """A reference for the disk: each call overwrites one page and syncs it."""

    PAGES = 1_000

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "sync.bin", os.O_RDWR | os.O_CREAT)
        self._page = os.urandom(4_096)
        self._turn = 0
        for number in range(self.PAGES):
            os.pwrite(self._file, self._page, 4_096 * number)
        os.fsync(self._file)

    def __call__(self) -> None:
        self._turn += 1
        os.pwrite(self._file, self._page, 4_096 * (self._turn % self.PAGES))
        os.fdatasync(self._file)


def show(benchmark: str, result: Mapping[str, object], folder: Path | None = None) -> None:
    """Print the result as one JSON object, with the date and the machine."""
    about = {"benchmark": benchmark, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    print(json.dumps({**about, "machine": machine(folder), **result}, indent=2))
