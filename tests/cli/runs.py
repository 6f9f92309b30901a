"""`strata run` in a process of its own, to its end or while it goes on."""

import re
import subprocess

from tests.agent.harness import environment
from tests.cli.conftest import MAIN

RUN_S = 100


def run(folder, *arguments, **variables):
    """Runs to the end: the exit code and what was written."""
    ended = subprocess.run(
        [*MAIN, "run", *arguments],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    return ended.returncode, ended.stdout + ended.stderr


def script(folder, text, name="script.py"):
    """A script in the folder; its name."""
    (folder / name).write_text(text, "utf-8")
    return name


def seen(text):
    """A condition on a run: it has written this."""
    return lambda run: any(text in line for line in run.out)


def url_of(run):
    """Where the coordinator inside a run serves its API."""
    return re.search(r"dashboard +(\S+)", "".join(run.out))[1]
