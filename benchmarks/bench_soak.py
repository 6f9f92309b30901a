"""A coordinator, an agent, 8 real workers and 200 simulated ones for an hour: what grows?

    python benchmarks/bench_soak.py [--minutes 60]

The simulated workers send heartbeats every 5 s and the events of a step each second, as the SDK
does; the real ones train, average, and save a checkpoint every 30 s. Every 10 s the memory, file
handles and threads of each process and the sizes of the folders are sampled. The first fifth is
left out, because caches fill and rings wrap in it. For each figure the slope is the median of the
slopes between all pairs of samples (Theil and Sen), and what a month at that slope would add.

`make bench` runs this only if it is named (`ONLY=soak`): it takes as long as it measures.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import psutil
from common import show
from fleet import Fleet
from processes import COORDINATOR, Server, coordinator

SIMULATED, REAL = 200, 8
SAMPLE_S = 10.0
MONTH_H = 30 * 24
SCRIPT = """
import time
import numpy as np
import strata

data = strata.open_arrays({"x": np.arange(4_096)}, name="soak")
with strata.join() as run:
    model = run.restore({"w": np.zeros(250_000)})
    for batch in run.batches(data, global_batch=64, epochs=1_000_000):
        with run.step() as step:
            model["w"] += run.average(np.full(250_000, float(len(batch["x"]))))
            step.log(loss=1.0)
        time.sleep(0.5)
"""

Point = tuple[float, float]


class Sampler:
    """Samples figures by name until it is closed."""

    def __init__(self, figures: Callable[[], dict[str, float]]) -> None:
        self._figures = figures
        self._ended = threading.Event()
        self.points: dict[str, list[Point]] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(SAMPLE_S):
            hours = (time.monotonic() - began) / 3_600
            for name, value in self._figures().items():
                self.points.setdefault(name, []).append((hours, value))

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()


def slope(points: Sequence[Point]) -> float:
    """The median slope of all pairs of points: few outliers do not change it."""
    found = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]
    return statistics.median(found)


def growth(points: Sequence[Point]) -> dict[str, float]:
    """The first and last value after the first fifth, and the growth in an hour and a month."""
    kept = points[len(points) // 5 :]
    hourly = slope(kept)
    return {
        "first": round(kept[0][1], 2),
        "last": round(kept[-1][1], 2),
        "per_hour": round(hourly, 3),
        "per_month": round(hourly * MONTH_H, 1),
    }


def used(processes: Sequence[psutil.Process], name: str) -> dict[str, float]:
    """Memory, file handles and threads: the largest of some processes."""
    return {
        f"{name}_rss_mb": max(each.memory_info().rss for each in processes) / 1e6,
        f"{name}_handles": max(each.num_fds() for each in processes),
        f"{name}_threads": max(each.num_threads() for each in processes),
    }


def folder_mb(folder: Path) -> float:
    """The size of the files below a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # removed meanwhile
                continue
    return total / 1e6


def soak(folder: Path, server: Server, minutes: float) -> dict[str, object]:
    """Train for some minutes; returns the growth of each figure."""
    data, agents = folder / "data", folder / "agent"
    main = [sys.executable, "-c", COORDINATOR]
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "STRATA_CHECKPOINT_INTERVAL_S": "30"}
    address = ["--coordinator", f"127.0.0.1:{server.port}"]
    with (folder / "agent.log").open("wb") as log:
        command = [*main, "agent", *address, "--slots", str(REAL), "--data-dir", str(agents)]
        agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        fleet = Fleet(server.port, SIMULATED)
        api = next(
            line.split()[-1]
            for line in (folder / "data" / "stderr.txt").read_text().splitlines()
            if line.strip().startswith("dashboard")
        )
        submit = [*main, "submit", "train.py", "--workers", str(REAL), "--url", api]
        subprocess.run(submit, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)

        def figures() -> dict[str, float]:
            host = psutil.Process(agent.pid)
            below = host.children(recursive=True)
            workers = [each for each in below if any("train.py" in word for word in each.cmdline())]
            found = used([server.process], "coordinator") | used([host], "agent")
            if len(workers) >= REAL:
                found |= used(workers, "worker")
            return found | {
                "log_mb": folder_mb(data) - folder_mb(data / "checkpoints"),
                "checkpoints_mb": folder_mb(data / "checkpoints"),
            }

        sampler = Sampler(figures)
        try:
            batches, _ = fleet.train_evenly(minutes * 60, step_s=1.0)
        finally:
            sampler.close()
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    return {
        "minutes": minutes,
        "simulated_workers": SIMULATED,
        "real_workers": REAL,
        "batches_of_events": batches,
        "growth": {name: growth(points) for name, points in sampler.points.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="strata-soak-") as name:
        folder = Path(name)
        with coordinator(folder / "data") as server:
            result = soak(folder, server, minutes)
        show("soak", result, folder)


if __name__ == "__main__":
    main()
