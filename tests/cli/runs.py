"""`strata run` as a process, to its end or while it runs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import strata
from tests.agent.harness import environment
from tests.cli.conftest import MAIN

RUN_S = 100


def run(folder, *arguments, **variables):
    """Run to the end; returns the exit code and the output."""
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
    """Write a script into the folder; returns its name."""
    (folder / name).write_text(text, "utf-8")
    return name


def python_without(folder, *names):
    """A Python, and the variables with which it finds all packages of this one but some."""
    packages = folder / "packages"
    packages.mkdir()
    for path in filter(lambda each: "site-packages" in each, sys.path):
        for each in Path(path).iterdir():
            link = packages / each.name
            if not each.name.lower().startswith(names) and not link.exists():
                link.symlink_to(each)
    source = Path(strata.__file__).parents[1]
    python = shutil.which("python3", path=f"{sys.base_prefix}/bin")
    return python, environment(PYTHONPATH=f"{source}:{packages}")


def seen(text):
    """A condition on a run: its output contains this text."""
    return lambda run: any(text in line for line in run.out)


def url_of(run):
    """The URL of the REST API of the coordinator in a run."""
    return re.search(r"dashboard +(\S+)", "".join(run.out))[1]
