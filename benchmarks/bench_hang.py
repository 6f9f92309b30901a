"""How soon a hang is explained: from the moment at which the watchdog strikes, to its stacks.

Eight workers average in every step; after 20 steps one of them hangs while it loads a batch. All
settings have their defaults, except that a step counts as hanging after 10 s. The times are those
of the facts: `StacksRequested` (the watchdog strikes), the last `StacksCollected`, and
`StackCollectionEnded`. The answer of `strata why hang` must name the worker and the function.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import median, show

from strata.timeline.archive.run_lookup import open_timeline

WORKERS = 8
RUNS = 5
WAIT_S = 300
MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
SCRIPT = """
import time
from pathlib import Path

import numpy as np

import strata

def load_batch(run):
    hung = Path("hung")
    if run.rank == 3 and run.steps == 20 and not hung.exists():
        hung.touch()
        time.sleep(10_000)
    return np.ones(8)

with strata.join() as run:
    while run.steps < 60 and not run.stop_requested:
        with run.step() as step:
            run.average({"gradient": load_batch(run)})
            step.log(loss=1.0)
            time.sleep(0.05)
"""


def hang(folder):
    """Train until the hang was explained; returns the seconds to the last report and to the end of
    the collection, the number of reports, and the answer to `why hang`."""
    (folder / "train.py").write_text(SCRIPT)
    command = [*MAIN, "run", "train.py", "--workers", str(WORKERS), "--data-dir", "data"]
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=environment())
        run.wait(WAIT_S)
    log = folder / "data"
    with open_timeline(log) as timeline:
        facts = [(each.kind, each.wall_ns, each.body) for each in timeline.reader.read()]
    asked = next(at for kind, at, _ in facts if kind == "StacksRequested")
    reports = [at for kind, at, body in facts if kind == "StacksCollected" and body.collection == 1]
    ended = next(at for kind, at, _ in facts if kind == "StackCollectionEnded")
    why = subprocess.run(
        [*MAIN, "why", "hang", "--data", str(log)], cwd=folder, capture_output=True, text=True
    )
    return (max(reports) - asked) / 1e9, (ended - asked) / 1e9, len(reports), why.stdout


def environment():
    """The environment, with a short time without a step."""
    return os.environ | {"STRATA_HANG_FLOOR_S": "10", "OMP_NUM_THREADS": "1"}


def main():
    """Measure and print."""
    found = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="strata-hang-") as folder:
            found.append(hang(Path(folder)))
        time.sleep(1)
    reports, ended, counts, answers = zip(*found, strict=True)
    show(
        "hang",
        {
            "workers": WORKERS,
            "runs": RUNS,
            "last_report_s": round(median(reports), 2),
            "explained_s": round(median(ended), 2),
            "explained_worst_s": round(max(ended), 2),
            "reports": min(counts),
            "answer_names_the_function": all("load_batch" in each for each in answers),
        },
    )


if __name__ == "__main__":
    main()
