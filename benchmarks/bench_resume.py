"""Resume time: from the command that continues an ended training to its first new step.

The same small model on two workers: `strata run --resume`, torchrun with a script that loads a
checkpoint of `torch.distributed.checkpoint`, and Lightning's `fit(ckpt_path=...)`. The three take
turns, so that a busy machine slows all of them. Needs torch and Lightning.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import median, show

WORKERS = 2
RESUMES = 5
WAIT_S = 180
SCRIPT = str(Path(__file__).parent / "resume_script.py")
STRATA = [sys.executable, "-c", "from strata.cli import main; main()", "run", SCRIPT]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

LAUNCHERS = {
    "strata": [*STRATA, "--workers", str(WORKERS), "--data-dir", "kept"],
    "torchrun_dcp": [*TORCHRUN, "--nproc-per-node", str(WORKERS), SCRIPT, "torchrun"],
    "lightning": [sys.executable, SCRIPT, "lightning"],
}


def command(name, folder, epochs):
    """The command that trains up to that many epochs; after the first epoch it resumes."""
    launcher, given = LAUNCHERS[name], [str(folder), str(epochs)]
    if name != "strata":
        return [*launcher, *given]
    return [*launcher, *(["--resume"] if epochs > 1 else []), "--", "strata", *given]


def train(name, folder, epochs):
    """Train one more epoch; returns the seconds from the start to the first step."""
    (folder / "first").unlink(missing_ok=True)
    began_s = time.monotonic()
    ended = subprocess.run(
        command(name, folder, epochs),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    if ended.returncode:
        raise RuntimeError(f"{name} failed: {(ended.stdout + ended.stderr)[-2_000:]}")
    return float((folder / "first").read_text()) - began_s


def measure():
    """The seconds of each resume, by launcher."""
    root = Path(tempfile.mkdtemp(prefix="strata-resume-"))
    taken_s = {name: [] for name in LAUNCHERS}
    try:
        for epochs in range(1, RESUMES + 2):
            for name, values in taken_s.items():
                folder = root / name
                folder.mkdir(exist_ok=True)
                values.append(train(name, folder, epochs))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {name: values[1:] for name, values in taken_s.items()}  # the first one began a run


def main():
    missing = [name for name in ("torch", "lightning") if not importlib.util.find_spec(name)]
    if missing:
        show("resume", {"left_out": f"{missing[0]} is not installed"})
        return
    taken_s = measure()
    medians_s = {name: median(values) for name, values in taken_s.items()}
    times_faster = {
        f"times_faster_than_{name}": round(seconds / medians_s["strata"], 2)
        for name, seconds in medians_s.items()
        if name != "strata"
    }
    show(
        "resume",
        {
            "workers": WORKERS,
            "resumes": RESUMES,
            "seconds": {name: [round(s, 3) for s in values] for name, values in taken_s.items()},
            "median_s": medians_s,
            **times_faster,
        },
    )


if __name__ == "__main__":
    main()
