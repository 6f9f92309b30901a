"""Examples as a user runs them, with workers killed while they train, and what they recorded."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Timer

import psutil

import strata
from strata.core.record.event_codec import CODEC
from strata.store.event_store import Window
from strata.store.sqlite import SqliteReader
from tests.agent.harness import environment, worker_pids
from tests.cli.conftest import MAIN

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S = 280
QUICK = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "STRATA_CHECKPOINT_EVERY": "20"}


def variables(**given):
    """The environment of an example, in which `strata` is that of this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return environment(PATH=path, **QUICK, **given)


class ExampleRun:
    """`strata run` of an example in a folder; its lines are read as they come."""

    def __init__(self, folder, name, *arguments):
        self.folder, self.out = folder, []
        command = [*MAIN, "run", str(EXAMPLES / name), "--data-dir", "data", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._limit = Timer(RUN_S, self.process.kill)
        self._limit.start()

    def until(self, text):
        """Read up to the line with this text."""
        for line in self.process.stdout:
            self.out.append(line)
            if text in line:
                return
        raise AssertionError(f"no line with {text!r}: {''.join(self.out)}")

    def kill_worker(self, number):
        """Send SIGKILL to a worker."""
        known = worker_pids(self.folder).items()
        ((worker, pid),) = [each for each in known if each[0].endswith(f"-w{number}")]
        process = psutil.Process(pid)
        while (parent := process.parent()) and parent.environ().get("WORKER_ID") == worker:
            process = parent  # the process that was found loads data for the worker
        process.kill()

    def end(self):
        """Read to the end; returns the exit code and all lines."""
        self.out += self.process.stdout
        self.process.stdout.close()
        code = self.process.wait()
        self._limit.cancel()
        return code, "".join(self.out)


def trained(folder, name, *arguments, kill_after=""):
    """Run an example to its end, and kill worker 1 after a line with this text."""
    run = ExampleRun(folder, name, *arguments)
    try:
        if kill_after:
            run.until(kill_after)
            run.kill_worker(1)
    finally:
        code, shown = run.end()
    assert code == 0, shown
    assert len(re.findall(r"✗ \S+ was lost: ", shown)) == (1 if kill_after else 0), shown
    return shown


def saved(folder, task, part="model"):
    """A part of the newest checkpoint of a task."""
    manifests = (folder / "data" / "checkpoints").glob(f"*/{task}/step-*.json")
    return strata.load(str(max(manifests)).removesuffix(".json"))[part]


def facts(folder, kind):
    """What the coordinator and the workers recorded, of one kind."""
    with SqliteReader(folder / "data" / "log.db", CODEC) as log:
        return [event.body for _, _, event in log.query(Window(kinds=frozenset({kind})))]


def rows(folder, verb, *arguments):
    """What a verb prints as JSON about the runs of a folder."""
    done = subprocess.run(
        [*MAIN, verb, *arguments, "--data", "data", "--json"],
        cwd=folder,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
