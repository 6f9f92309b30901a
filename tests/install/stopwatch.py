"""The first minutes of a new user, by a stopwatch: an empty environment, the install, an own script
on two workers, one of them killed, the recovery, and why.

    python -m tests.install.stopwatch > docs/STOPWATCH.md     (make stopwatch)

The steps are real: pip without a cache, `strata run`, `kill -9`. A test takes the same steps.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from strata import __version__
from tests.install.environments import Distribution, bare, build

SCRIPT = """
import numpy as np
import strata

random = np.random.default_rng(0)
x = random.normal(size=(8_000, 16))
y = x @ np.arange(16.0) + random.normal(size=8_000) * 0.1
data = strata.open_arrays({"x": x, "y": y}, name="line")

with strata.join() as run:
    state = run.restore({"w": np.zeros(16)})
    for batch in run.batches(data, batch_size=32, epochs=80):
        with run.step() as step:
            error = batch["x"] @ state["w"] - batch["y"]
            gradient, loss = run.average((batch["x"].T @ error / len(error), np.mean(error**2)))
            state["w"] -= 0.05 * gradient
            step.log(loss=loss)
    if run.rank == 0:
        print("weights", np.round(state["w"], 2))
"""
# What is looked for in the output of `strata run`, and what it means.
MOMENTS = [
    ("the coordinator serves, with a dashboard", r"^dashboard "),
    ("two workers train", r"generation 1 trains"),
    ("one worker is killed with `kill -9`", r"kill -9"),
    ("its loss is known", r"was lost"),
    ("the task trains again", r"generation [2-9] trains"),
    ("completed", r"completed"),
    ("every sample is proven to be trained once per epoch", r"audit proven"),
]


class Line(Struct, frozen=True):
    """A line of output, and the seconds from the start of its command to it."""

    at_s: float
    text: str


class Command(Struct, frozen=True):
    """A command as it was run."""

    shown: str
    lines: list[Line]
    took_s: float
    code: int


class Transcript(Struct, frozen=True):
    """All commands, in order."""

    create: Command
    install: Command
    run: Command
    why: Command

    def moments(self) -> list[Line]:
        """When `strata run` came to each moment; a moment that never came is left out."""
        found = []
        for said, pattern in MOMENTS:
            line = next((each for each in self.run.lines if re.search(pattern, each.text)), None)
            if line is not None:
                found.append(Line(at_s=line.at_s, text=said))
        return found


def timed(shown: str, command: list[str], folder: Path) -> Command:
    """Run a command and take the time of each line of its output."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=bare() | {"COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    with process:
        lines = [
            Line(at_s=time.monotonic() - began_s, text=line.rstrip().replace(str(folder), "…"))
            for line in process.stdout
        ]
    took_s = time.monotonic() - began_s
    return Command(shown=shown, lines=lines, took_s=took_s, code=process.returncode)


def take(folder: Path, distribution: Distribution, *, cached: bool = False) -> Transcript:
    """Take all steps in an empty folder; with `cached`, pip may use what it downloaded before."""
    bin_folder = folder / "env" / "bin"
    wheel = f"{distribution.wheel}[server]"
    cache = [] if cached else ["--no-cache-dir"]
    pip = [str(bin_folder / "pip"), "install", "--quiet", "--disable-pip-version-check", *cache]
    strata = str(bin_folder / "strata")
    create = timed("python3 -m venv env", [sys.executable, "-m", "venv", "env"], folder)
    install = timed("pip install 'strata-runtime[server]'", [*pip, wheel], folder)
    (folder / "train.py").write_text(SCRIPT.lstrip(), "utf-8")
    run = "run train.py --workers 2 --kill 1 --data-dir data"
    ran = timed(f"strata {run}", [strata, *run.split()], folder)
    why = "why lost --data data"
    return Transcript(
        create=create,
        install=install,
        run=ran,
        why=timed(f"strata {why}", [strata, *why.split()], folder),
    )


def page(transcript: Transcript) -> str:
    """The transcript as a page of the documentation."""
    steps = [transcript.create, transcript.install, transcript.run, transcript.why]
    total_s = sum(step.took_s for step in steps)
    rows = [f"| `{step.shown}` | {step.took_s:.1f} s |" for step in steps]
    moments = [f"| {line.text} | {line.at_s:.1f} s |" for line in transcript.moments()]
    today, load = datetime.now(UTC).date(), os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores at load {load:.0f}, Python {platform.python_version()}"
    return f"""# Time from install to recovery

From an empty environment to the explanation of a killed worker in {total_s:.0f} seconds. Written by
`make stopwatch` from a real run on {today}: Strata {__version__}, {machine}, pip without a cache.
A test takes the same steps.

| command | time |
| --- | ---: |
{chr(10).join(rows)}

Within `strata run`, from its start:

| moment | at |
| --- | ---: |
{chr(10).join(moments)}

## The script

```python
{SCRIPT.strip()}
```

## The output

```
$ {transcript.run.shown}
{shown(transcript.run)}
```

```
$ {transcript.why.shown}
{shown(transcript.why)}
```
"""


def shown(command: Command) -> str:
    """The output with the time of each line."""
    return "\n".join(f"{line.at_s:5.1f}  {line.text}".rstrip() for line in command.lines)


def main() -> None:
    """Take the steps and print the page."""
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder) / "dist")
        transcript = take(Path(folder), built)
    failed = [step.shown for step in (transcript.run, transcript.why) if step.code]
    if failed or len(transcript.moments()) < len(MOMENTS):
        sys.exit(f"not every step succeeded: {failed}\n{shown(transcript.run)}")
    print(page(transcript), end="")


if __name__ == "__main__":
    main()
