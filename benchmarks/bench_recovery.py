"""Recovery time: from the SIGKILL of one of four workers to the next generation's first step.

A worker is killed in the same training loop under torchrun's elastic restart and under Strata: with
a spare worker, with survivors that continue while the lost one is replaced, and with survivors that
wait for the replacement. Torchrun restarts all processes, so each imports torch again;
Strata keeps the survivors and their state. Needs torch.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import median, show

WORKERS = 4
KILLS = 5
VICTIM = 2
WAIT_S = 120
SETTLE_STEPS = 300
"""At full strength between two kills, so that whatever is started anew is there again."""

GOAL = 5.0
SCRIPT = Path(__file__).parent / "recovery_script.py"
STRATA = [sys.executable, "-c", "from strata.cli import main; main()"]

LAUNCHERS = {
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(WORKERS), "--max-restarts", "100", str(SCRIPT), "torchrun"),
    ],
    "strata_spares": [*STRATA, "run", "--workers", str(WORKERS), "--spares", "1"],
    "strata_train_on": [*STRATA, "run", "--workers", str(WORKERS), "--min-workers", "3"],
    "strata_replace": [*STRATA, "run", "--workers", str(WORKERS)],
}


def steps(folder):
    """For each step: the generation, its number of workers, and the time it was done."""
    try:
        lines = (folder / "steps").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [
        (int(generation), int(workers), float(moment_s))
        for generation, workers, moment_s in map(str.split, lines)
    ]


def first_of(folder, after):
    """The time of the first step of a later generation; 0 if there is none yet."""
    return next((moment_s for generation, _, moment_s in steps(folder) if generation > after), 0.0)


def until(condition, what):
    deadline_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not happen")
        time.sleep(0.01)
    return found


def settled(folder):
    """The generation that trains with all workers for several steps; 0 if there is none yet."""
    newest = [step[:2] for step in steps(folder)[-SETTLE_STEPS:]]
    alike = len(newest) == SETTLE_STEPS and len(set(newest)) == 1
    return newest[0][0] if alike and newest[0][1] == WORKERS else 0


def recover(folder):
    """Kill a worker; returns the seconds until the first step of the next generation."""
    generation = until(lambda: settled(folder), "steady training")
    pid = int((folder / f"pid-{VICTIM}").read_text().split()[1])
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return until(lambda: first_of(folder, generation), "recovery") - killed_s


def measure(command):
    """The seconds of each recovery of one run."""
    folder = Path(tempfile.mkdtemp(prefix="strata-recovery-"))
    tail = [] if "torch.distributed.run" in command else [str(SCRIPT), "--", "strata"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *tail, str(folder)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return [recover(folder) for _ in range(KILLS)]
    finally:
        (folder / "finish").touch()
        process.terminate()
        process.wait(WAIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def main():
    if importlib.util.find_spec("torch") is None:
        show("recovery", {"left_out": "torch is not installed"})
        return
    taken_s = {name: measure(LAUNCHERS[name]) for name in sys.argv[1:] or LAUNCHERS}
    medians_s = {name: median(values) for name, values in taken_s.items()}
    times_faster = {
        name: round(medians_s["torchrun"] / seconds, 1)
        for name, seconds in medians_s.items()
        if name != "torchrun"
    }
    show(
        "recovery",
        {
            "workers": WORKERS,
            "kills": KILLS,
            "seconds": {n: [round(s, 3) for s in values] for n, values in taken_s.items()},
            "median_s": medians_s,
            "times_faster_than_torchrun": times_faster,
            "goal": f"at least {GOAL:g} times",
        },
    )


if __name__ == "__main__":
    main()
