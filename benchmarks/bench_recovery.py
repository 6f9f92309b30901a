"""From the SIGKILL of one of four workers to the first step of the new generation.

The same training loop is disturbed under torchrun's elastic restart and under Strata: with a spare
worker, with survivors that train on while the lost one is replaced, and with survivors that wait
for the replacement. Torchrun ends all processes and starts them again, so each imports torch anew;
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
SETTLE_STEPS = 10
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
    """The last step: its generation, number and time."""
    try:
        *_, last = (folder / "steps").read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return 0, 0, 0.0
    generation, step, moment_s = last.split()
    return int(generation), int(step), float(moment_s)


def first_of(folder, after):
    """When the first step of a later generation was done."""
    for line in (folder / "steps").read_text().splitlines():
        generation, _, moment_s = line.split()
        if int(generation) > after:
            return float(moment_s)
    return 0.0


def until(condition, what):
    deadline_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not happen")
        time.sleep(0.01)
    return found


def settled(folder, generation):
    """The generation that trains steadily, with the victim in it; 0 while none does."""
    newest, _, _ = steps(folder)
    lines = (folder / "steps").read_text().splitlines() if newest else []
    count = sum(line.startswith(f"{newest} ") for line in lines)
    return newest if newest > generation and count >= SETTLE_STEPS else 0


def recover(folder, generation):
    """Kills a worker; seconds until the next generation's first step, and that generation."""
    generation = until(lambda: settled(folder, generation), "steady training")
    pid = int((folder / f"pid-{VICTIM}").read_text().split()[1])
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return until(lambda: first_of(folder, generation), "recovery") - killed_s, generation


def measure(command):
    """Seconds of each recovery of one run."""
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
        taken_s, generation = [], 0
        for _ in range(KILLS):
            seconds, generation = recover(folder, generation)
            taken_s.append(seconds)
        return taken_s
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
