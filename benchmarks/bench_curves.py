"""Training curves of 1 M steps: first read, window queries, memory, delay of live values.

The run: workers that record 1 M steps with a loss and a learning rate, in batches as the SDK packs
them, written through the real kernel and store. A separate process reads it, so that the peak
memory is the reader's. A window is asked for after the columns were read, at random places and
widths, with 1,000 points; all of its curves are made before. The delay of live values is the age of
the newest value in an answer of the REST API, while a script trains and a client asks.

Prints JSON.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from common import show, spread, timed

from strata.coordinator.engine.kernel import Kernel
from strata.core.events import Envelope, Now
from strata.core.generations.recovery import EnterGeneration
from strata.core.record.event_codec import CODEC
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.worker_facts import StepFinished
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.store.event_batches import pack
from strata.store.sqlite import SqliteStore

STEPS, BATCH, TASK = 1_000_000, 1_000, "bench-1"
STEP_NS = 10_000_000
EPOCH_NS = 1_750_000_000 * 10**9
WINDOWS, POINTS = 200, 1_000
LIVE_S, WARM_S = 20.0, 6.0
SCRIPT = """
import time
from pathlib import Path
import strata

with strata.join() as run:
    while not Path("enough").exists():
        time.sleep(0.01)
        with run.step() as step:
            step.log(at_s=time.time())
"""


class Clock:
    """A clock that advances as the run is written."""

    now_ns = 0

    def __call__(self) -> Now:
        return Now(EPOCH_NS + self.now_ns, self.now_ns)


def decide(kernel: Kernel, *commands: object) -> None:
    kernel.commit(kernel.decide(commands))


def write_run(folder: Path, workers: int) -> None:
    """Write the run of so many workers."""
    clock, dice = Clock(), random.Random(7)
    with SqliteStore(folder / "log.db", CODEC) as store:
        kernel = Kernel(store, clock)
        kernel.start("bench", "bench")
        decide(kernel, SubmitTask(spec=TaskSpec(name="bench", external=True, worker_count=workers)))
        names = [f"w{worker}" for worker in range(workers)]
        for name in names:
            decide(kernel, RegisterWorker(worker=name, task=TASK, syncs=True))
        numbers = {each.id: each.incarnation for each in kernel.state.workers.values()}
        generation = kernel.state.tasks[TASK].generation
        for name in names:
            decide(
                kernel,
                EnterGeneration(worker=name, incarnation=numbers[name], generation=generation),
            )
        for first in range(0, STEPS, BATCH):
            clock.now_ns = (first + BATCH) * STEP_NS
            kernel.ingest(
                [
                    pack(CODEC, name, numbers[name], events(first, generation, dice))
                    for name in names
                ]
            )
            decide(kernel)


def events(first: int, generation: int, dice: random.Random) -> list[Envelope]:
    """The events of a worker for some steps."""
    return [
        Envelope(
            seq=step,
            wall_ns=EPOCH_NS + step * STEP_NS,
            mono_ns=step * STEP_NS,
            body=StepFinished(
                step=step,
                data_s=0.001,
                compute_s=0.008,
                communication_s=0.001,
                wait_s=0.0,
                loss=1 / (1 + step / 1000) + dice.random() / 100,
                metrics={"lr": 0.1},
                generation=generation,
            ),
        )
        for step in range(first, first + BATCH)
    ]


def read_run(folder: Path) -> dict[str, object]:
    """Read the columns, then windows of a logged and of a derived curve."""
    from strata.timeline.archive.run_lookup import open_timeline
    from strata.timeline.curves.curve_answers import Wanted
    from strata.timeline.queries import TimelineQueries

    before_mb = peak_mb()
    dice = random.Random(7)
    with open_timeline(folder) as timeline:
        curves = TimelineQueries(timeline).curves
        first_s = timed(lambda: curves.points(TASK, Wanted(names=["loss"])))
        list_s = timed(lambda: curves.curves(TASK))
        assert curves.points(TASK, Wanted(names=["loss"])).curves[0].count >= STEPS
        walls: dict[str, list[float]] = {}
        for name in ("loss", "steps/s"):
            for axis in ("step", "time"):
                whole = curves.points(TASK, Wanted(names=[name], axis=axis, points=1))
                low, high = whole.from_, whole.to
                for _ in range(WINDOWS):
                    width = (high - low) * 10 ** dice.uniform(-3, 0)
                    start = dice.uniform(low, high - width)
                    wanted = Wanted(
                        names=[name], axis=axis, low=start, high=start + width, points=POINTS
                    )
                    took_s = timed(lambda wanted=wanted: curves.points(TASK, wanted))
                    walls.setdefault(f"{name} by {axis}", []).append(took_s)
        full = [timed(lambda: curves.points(TASK, Wanted(names=["loss"]))) for _ in range(50)]
    return {
        "first_read_s": round(first_s, 2),
        "all_curves_s": round(list_s, 2),
        "window_ms": {name: spread(each, 1e3) for name, each in walls.items()},
        "whole_ms": spread(full, 1e3),
        "reader_mb": peak_mb() - before_mb,
    }


def live_delay(folder: Path) -> dict[str, float]:
    """The age of the newest value in each answer, in milliseconds."""
    (folder / "curve.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "strata", "run", "curve.py", "--data-dir", "data"]
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        url = next(found[1] for line in run.stdout if (found := re.search(r"(http\S+)", line)))
        return {"live_ms": spread(ages(url.rstrip("/")), 1e3)}
    finally:
        (folder / "enough").touch()
        run.communicate(timeout=60)


def ages(url: str) -> list[float]:
    """The age of the newest value in each answer, after the workers know of the reader."""
    found: list[float] = []
    began_s = time.monotonic()
    asked = {"task": "curve-1", "name": "at_s"}
    with httpx.Client(base_url=f"{url}/api/timeline/curves", timeout=20) as client:
        while time.monotonic() < began_s + WARM_S + LIVE_S:
            answer = client.get("/points", params=asked).json()
            curves = answer.get("curves")
            if curves and time.monotonic() > began_s + WARM_S:
                found.append(time.time() - curves[0]["mean"][-1])
            time.sleep(0.05)
    return found


def peak_mb() -> int:
    """The peak memory of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def apart(folder: Path) -> dict[str, object]:
    """Read a run in a process of its own."""
    command = [sys.executable, __file__, "--read", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", type=Path, default=None)
    given = parser.parse_args()
    if given.read is not None:
        print(json.dumps(read_run(given.read)))
        return
    result: dict[str, object] = {"steps": STEPS, "points": POINTS}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder), workers)
            result[f"workers_{workers}"] = apart(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        result |= live_delay(Path(folder))
    show("curves", result)


if __name__ == "__main__":
    main()
