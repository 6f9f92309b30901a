"""Takeover time: from the SIGKILL of the leading coordinator to its successor.

Two coordinators share a PostgreSQL store, and two workers pass a barrier in every step. Measured
from the kill: until the other coordinator accepts workers, and until both workers have passed a
barrier with it. The restart of a single coordinator on SQLite is measured in turn with it, by the
same workers. Workers keep training meanwhile; the longest pause between two of their steps is
measured too.

Needs the programs of PostgreSQL (initdb, postgres).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from common import median, show

ROUNDS = 5
WORKERS = 2
WAIT_S = 120
MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
SCRIPT = """
import os, sys, time
import strata
address, name, workers = sys.argv[1:]
with strata.join(coordinator=address, worker_id=name, world_size=int(workers)) as run:
    while not run.stop_requested:
        time.sleep(0.01)
        run.mark_step()
        os.write(1, f"step {time.time()}\\n".encode())
        run.barrier(f"step-{run.steps}")
        os.write(1, f"met {time.time()}\\n".encode())
"""


def free_port():
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within {WAIT_S} s")
        time.sleep(0.005)


class Postgres:
    """A server in a folder of its own."""

    def __init__(self, folder):
        as_user = NOBODY if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(folder, "nobody", "nogroup")
        self.port = free_port()
        data = str(folder / "data")
        made = ["initdb", "--auth=trust", "--username=strata", "-D", data]
        subprocess.run([*as_user, *made], check=True, capture_output=True, cwd=folder)
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(folder)]
        self.process = subprocess.Popen(
            [*as_user, "postgres", "-D", data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        until(lambda: listens(self.port), "the start of PostgreSQL")
        self.url = f"postgresql://strata@127.0.0.1:{self.port}/postgres"

    def stop(self):
        """End it."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(WAIT_S)


def listens(port):
    """Whether a port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Coordinator:
    """`strata up`, started again with the same ports."""

    def __init__(self, folder, store=""):
        self.folder, self.store = folder, store
        self.grpc_port, self.http_port = free_port(), free_port()
        self.start()

    def start(self):
        """Start it; with a shared store it may become a standby."""
        ports = ["--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port)]
        self.process = subprocess.Popen(
            [*MAIN, "up", *ports, "--data-dir", str(self.folder)],
            env=os.environ | {"STRATA_STORE": self.store, "STRATA_REATTACH_GRACE_S": "60"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: listens(self.http_port), "the start of a coordinator")

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


class Worker:
    """A process that steps and meets the others; `times` has each moment, by its kind."""

    def __init__(self, address, name, folder):
        self.file = folder / name
        with self.file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, address, name, str(WORKERS)], stdout=output
            )

    def times(self, kind):
        """The moments of a kind."""
        lines = self.file.read_text().splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith(f"{kind} ")]

    def met_since(self, moment):
        """The first barrier that it passed after a moment, or None."""
        return next((each for each in self.times("met") if each > moment), None)


def rounds(workers, lose):
    """Kill the leader again and again; `lose` kills it and returns when a successor accepted
    workers."""
    accepted, met, paused = [], [], []
    for _ in range(ROUNDS):
        began = time.time()
        until(lambda moment=began: all(w.met_since(moment) for w in workers), "a barrier")
        killed = time.time()
        accepted.append(lose() - killed)
        until(lambda moment=killed + 0.1: all(w.met_since(moment) for w in workers), "a barrier")
        met.append(max(w.met_since(killed + 0.1) for w in workers) - killed)
        steps = [each for each in workers[0].times("step") if each > killed - 1]
        paused.append(max(b - a for a, b in pairwise(steps)))
    return {
        "accepts_s": round(median(accepted), 2),
        "accepts_worst_s": round(max(accepted), 2),
        "barrier_s": round(median(met), 2),
        "barrier_worst_s": round(max(met), 2),
        "longest_step_s": round(max(paused), 2),
    }


def measure(folder, coordinators, lose):
    """Train with these coordinators, and measure."""
    address = ",".join(f"127.0.0.1:{each.grpc_port}" for each in coordinators)
    workers = [Worker(address, f"w{n}", folder) for n in range(WORKERS)]
    try:
        return rounds(workers, lose)
    finally:
        for each in workers:
            each.process.kill()
            each.process.wait()
        for each in coordinators:
            each.kill()


def with_standby(folder, url):
    """Two coordinators on one PostgreSQL store."""
    pair = [Coordinator(folder / name, url) for name in "ab"]

    def lose():
        leader = next(each for each in pair if listens(each.grpc_port))
        other = next(each for each in pair if each is not leader)
        leader.kill()
        until(lambda: listens(other.grpc_port), "the takeover")
        accepted = time.time()
        leader.start()
        return accepted

    return measure(folder, pair, lose)


def with_restart(folder):
    """One coordinator on SQLite that is started again at once."""
    only = Coordinator(folder / "only")

    def lose():
        only.kill()
        only.start()
        until(lambda: listens(only.grpc_port), "the restart")
        return time.time()

    return measure(folder, [only], lose)


def main():
    """Measure and print."""
    folder = Path(tempfile.mkdtemp(prefix="strata-takeover-"))
    database = folder / "postgres"
    database.mkdir()
    folder.chmod(0o755)
    server = Postgres(database)
    try:
        standby = folder / "standby"
        restart = folder / "restart"
        standby.mkdir()
        restart.mkdir()
        result = {
            "rounds": ROUNDS,
            "standby": with_standby(standby, server.url),
            "restart": with_restart(restart),
        }
        show("takeover", result, folder)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
