"""How torchrun, Ray Train and torchft behave on faults of the fault matrix (docs/FAULTS.md).

    python benchmarks/bench_fault_peers.py [--torchft PYTHON] [--only TOOL] [--fault NAME]
        [--observe-s 100] [--update benchmarks/results/fault_peers.json]

A tool trains with two workers that count their own samples (`fault_peer_script.py`), a fault is
planted, and the run is watched for `--observe-s` seconds. Measured are, from the fault: the seconds
until another process applied a step or the run ended (recovery, end), how many steps were trained
again, and whether the output names the cause. torchrun and Ray Train restart all workers from a
checkpoint of every 20 steps; torchft's replicas go on without the lost one, and nothing restarts
it here. The tools keep their defaults. A stopped worker is not continued. A tool that is not
installed is not measured. `--update` keeps the results of a file that are not measured again.

The clauses of docs/FAULTS.md are written to `tests/faults/peers.json`.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import psutil
from common import show
from processes import lighthouse

SCRIPT = Path(__file__).with_name("fault_peer_script.py")
TEXTS = Path(__file__).parents[1] / "tests/faults/peers.json"
WORKERS = 2
SETTLED_STEPS = 45
START_S = 120
MAX_RESTARTS = 3
WAITS = "all workers wait"


class Run:
    """A tool that trains in a folder; `head` is the process that coordinates."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment
        self.output = folder / "output.txt"
        self.processes = []
        self.head = None

    def start(self, *command):
        """Start a process of the tool."""
        with self.output.open("ab") as sink:
            started = subprocess.Popen(
                [str(each) for each in command],
                stdout=sink,
                stderr=sink,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
        self.processes.append(started)
        return started

    def ledger(self):
        """The applied steps of all processes, in the order of time."""
        lines = []
        for file in self.folder.glob("ledger-*.jsonl"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    lines.append(json.loads(line))
        return sorted(lines, key=lambda line: line["t"])

    def settled(self):
        """Whether all workers have trained for some time."""
        last = self.ledger()[-2 * WORKERS :]
        done = bool(last) and last[-1]["step"] >= SETTLED_STEPS
        return done and len({line["worker"] for line in last}) == WORKERS

    def ended(self):
        """Whether every process of the tool has ended."""
        return all(each.poll() is not None for each in self.processes)

    def stop(self):
        """End everything that was started here."""
        (self.folder / "finish").touch()
        found = []
        for each in self.processes:
            try:
                found += psutil.Process(each.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        sessions = {each.pid for each in self.processes}
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in sessions:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for each in self.processes:
            each.kill()
            each.wait()


def torchrun(run):
    """Elastic restart with the c10d store of torchrun."""
    options = ["--standalone", "--nproc-per-node", WORKERS, "--max-restarts", MAX_RESTARTS]
    command = [sys.executable, "-m", "torch.distributed.run", *options, SCRIPT, "torchrun"]
    run.head = run.start(*command, run.folder).pid


def ray(run):
    """Ray Train with restarts after failures; its head is the process of the control store."""
    driver = run.start(sys.executable, SCRIPT, "ray", run.folder)
    until(run.settled, START_S, lambda: run.output.read_text()[-2_000:])
    below = psutil.Process(driver.pid).children(recursive=True)
    run.head = next(each.pid for each in below if "gcs_server" in each.name())


def torchft(run):
    """Two replica groups of one process each."""
    server = run.lighthouse
    run.head = server.process.pid
    address = f"http://127.0.0.1:{server.port}"
    for worker in range(WORKERS):
        run.start(run.python, SCRIPT, "torchft", run.folder, worker, address)


TOOLS = {"torchrun": torchrun, "Ray Train": ray, "torchft": torchft}


def kill_worker(run, victim):
    os.kill(victim, signal.SIGKILL)


def stop_worker(run, victim):
    os.kill(victim, signal.SIGSTOP)


def hang_worker(run, victim):
    (run.folder / "hang.new").write_text(str(victim))
    (run.folder / "hang.new").replace(run.folder / "hang")


def kill_head(run, victim):
    os.kill(run.head, signal.SIGKILL)


FAULTS = {
    "worker killed": (kill_worker, r"(?i)sigkill|signal 9|exitcode: -9|worker.*died"),
    "worker stopped and continued": (stop_worker, r"(?i)sigstop|stopped|not respond|heartbeat"),
    "main thread hung": (hang_worker, r"(?i)\bhang|\bhung|stuck|not respond"),
    "coordinator killed": (kill_head, r"(?i)lighthouse|gcs|rendezvous|store"),
}


# Workers may train on for a while and end later.
SLOW_CONSEQUENCES = {"coordinator killed"}


def until(condition, within_s, about=lambda: ""):
    """Wait for a condition."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it did not happen within {within_s} s: {about()}")
        time.sleep(0.1)
    return found


def measure(tool, fault, observe_s, python):
    """Plant one fault into one tool; returns what was seen."""
    folder = Path(tempfile.mkdtemp(prefix="strata-peers-"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    run = Run(folder, environment)
    run.python = python
    try:
        if tool != "torchft":
            return observed(run, tool, fault, observe_s)
        with lighthouse(python, 1, folder) as run.lighthouse:
            return observed(run, tool, fault, observe_s)
    finally:
        run.stop()
        shutil.rmtree(folder, ignore_errors=True)


def observed(run, tool, fault, observe_s):
    """Start the tool, plant the fault, and watch."""
    TOOLS[tool](run)
    until(run.settled, START_S, lambda: run.output.read_text()[-2_000:])
    before = run.ledger()
    victim = next(line["pid"] for line in reversed(before) if str(line["worker"]) == "1")
    printed = len(run.output.read_bytes())
    struck_s = time.time()
    strike, cause = FAULTS[fault]
    strike(run, victim)
    ended_s = watch(run, struck_s, observe_s, to_the_end=fault in SLOW_CONSEQUENCES)
    said = run.output.read_bytes()[printed:].decode("utf-8", "replace")
    return judged(run.ledger(), struck_s, victim, ended_s, named(said, cause), observe_s)


def watch(run, struck_s, observe_s, to_the_end):
    """Watch until the run has trained on for some time, ended, or the time is over; returns the
    seconds until its end, if it ended."""
    while time.time() - struck_s < observe_s:
        time.sleep(0.2)
        if run.ended():
            return round(time.time() - struck_s, 1)
        later = [line for line in run.ledger() if line["t"] > struck_s + 2]
        if not to_the_end and len({line["step"] for line in later}) > 2 * SETTLED_STEPS:
            break
    return None


def named(said, cause):
    """The line of the output that names the cause."""
    for line in said.splitlines():
        if re.search(cause, line):
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
            return re.sub(r"(/[^/\s]+)+/", "", plain).strip()[:200]
    return None


def judged(ledger, struck_s, victim, ended_s, cause, observe_s):
    """What the ledgers show."""
    before = [line for line in ledger if line["t"] <= struck_s]
    # A step that was in progress when the fault came may still end.
    after = [line for line in ledger if line["t"] > struck_s + 0.5]
    last = max(line["step"] for line in before)
    further = [line for line in after if line["step"] > last]
    survivors = {line["pid"] for line in before} - {victim}
    pids = {line["pid"] for line in after}
    again = {line["step"] for line in after if line["step"] <= last}
    gaps = [later["t"] - line["t"] for line, later in pairwise(ledger)]
    return {
        "ended_s": ended_s,
        "recovered_s": round(further[0]["t"] - struck_s, 1) if further else None,
        "survivors_went_on": bool(pids & survivors),
        "new_processes": len(pids - survivors - {victim}),
        "victim_went_on": victim in pids,
        "steps_again": len(again),
        "longest_pause_s": round(max(gaps), 1),
        "names_cause": cause,
        "observed_s": observe_s,
    }


def text(found):
    """One clause on what happened."""
    if found["victim_went_on"] and found["ended_s"] is not None:
        parts = [f"training goes on, then the run ends after {found['ended_s']} s"]
    elif found["recovered_s"] is not None:
        who = "all workers are restarted" if not found["survivors_went_on"] else "the others go on"
        who = "nothing is interrupted" if found["victim_went_on"] else who
        parts = [f"{who}, next step after {found['recovered_s']} s"]
        if found["ended_s"] is not None:
            parts.append(f"the run ends after {found['ended_s']} s")
        if found["steps_again"]:
            parts.append(f"{found['steps_again']} steps trained again")
    elif found["ended_s"] is not None:
        parts = [f"the run ends after {found['ended_s']} s"]
    else:
        parts = [f"{WAITS}: no step within {found['observed_s']:g} s"]
    parts.append("the output names the cause" if found["names_cause"] else "no cause is named")
    return "; ".join(parts)


def versions(python):
    """The versions of the tools; None for one that is not installed."""
    found = {}
    for tool, package in (("torchrun", "torch"), ("Ray Train", "ray")):
        try:
            found[tool] = f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            found[tool] = None
    ask = "import importlib.metadata as m; print(m.version('torchft-nightly'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True) if python else None
    works = done is not None and done.returncode == 0
    found["torchft"] = f"torchft-nightly {done.stdout.strip()}" if works else None
    return found


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchft", default="", help="Python that has torchft")
    parser.add_argument("--only", choices=TOOLS)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--observe-s", type=float, default=100.0)
    parser.add_argument("--update", type=Path, help="results to keep where nothing is measured")
    given = parser.parse_args()
    known = versions(given.torchft)
    found = json.loads(given.update.read_text())["faults"] if given.update else {}
    for fault in [given.fault] if given.fault else FAULTS:
        found.setdefault(fault, {})
        for tool in [given.only] if given.only else TOOLS:
            if known[tool] is None:
                continue
            try:
                found[fault][tool] = measure(tool, fault, given.observe_s, given.torchft)
            except (TimeoutError, RuntimeError, StopIteration, psutil.Error) as error:
                found[fault][tool] = {"error": str(error)[-500:]}
            print(f"{fault}, {tool}: {found[fault][tool]}", file=sys.stderr, flush=True)
    texts = {
        fault: {tool: text(each) for tool, each in tools.items() if "error" not in each}
        for fault, tools in found.items()
    }
    TEXTS.write_text(json.dumps(texts, indent=1) + "\n", "utf-8")
    show("fault_peers", {"versions": known, "faults": found})


if __name__ == "__main__":
    main()
