"""The real `strata` executable as a process, and real workers that connect to it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import httpx
import pytest

from strata.coordinator.server import Running
from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.harness import TRAIN, worker_pids
from tests.coordinator.conftest import Client, coordinator

WAIT_S = 60.0
MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]


def environment(**given):
    """The environment without Strata's settings, so that a test states all settings it uses."""
    names = ("STRATA_", "COORDINATOR_", "RUST_LOG", "LOG_FORMAT", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return kept | {"COLUMNS": "80"} | given


def strata(*arguments, cwd, **variables):
    """Run a verb to its end."""
    return subprocess.run(
        [*MAIN, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=cwd,
        env=environment(**variables),
    )


class Started:
    """A running verb; its output is collected line by line."""

    def __init__(self, *arguments, cwd, **variables):
        self.process = subprocess.Popen(
            [*MAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment(**variables),
        )
        self.out, self.err = [], []
        pipes = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._readers = [
            threading.Thread(target=lines.extend, args=(pipe,)) for pipe, lines in pipes
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, condition, what, wait_s=WAIT_S):
        """Wait until the output satisfies a condition."""
        until(lambda: condition(self) or self.process.poll() is not None, wait_s)
        assert condition(self), f"no {what}; stdout {self.out}, stderr {self.err}"

    def end(self, number=signal.SIGINT):
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self):
        code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def discard(self):
        if self.process.poll() is None:
            self.process.kill()
        self.ended()


def until(condition, wait_s=WAIT_S):
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Worker:
    """A registered worker with an open session."""

    def __init__(self, client: Client, name: str, **given):
        self.name = name
        self.incarnation = client.register(name, **given).incarnation
        self.outgoing = SimpleQueue()
        self.call = client.session(iter(self.outgoing.get, None), timeout=None)
        self.send(hello=pb.Hello(worker_id=name, incarnation=self.incarnation))
        assert next(self.call).WhichOneof("body") == "standing"

    def send(self, **body):
        self.outgoing.put(pb.WorkerMessage(**body))

    def log(self, *messages, level="info"):
        lines = [pb.LogLine(level=level, message=message) for message in messages]
        self.send(logs=pb.LogLines(lines=lines))

    def break_off(self):
        self.call.cancel()


class Up:
    """`strata up` on ports that stay the same when it is started again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.grpc_port, self.http_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.running: Started | None = None
        self.clients: list[Client] = []

    def start(self, *arguments) -> Started:
        ports = ("--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port))
        self.running = Started("up", *ports, "--data-dir", "data", *arguments, cwd=self.folder)
        self.running.wait_for(
            lambda started: any("data " in line for line in started.err), "sign of a start"
        )
        return self.running

    def kill(self):
        self.running.discard()

    def client(self) -> Client:
        client = Client(SimpleNamespace(grpc_port=self.grpc_port))
        self.clients.append(client)
        return client

    def close(self):
        for client in self.clients:
            client.channel.close()
        if self.running is not None:
            self.running.discard()


@pytest.fixture
def up(tmp_path):
    """A coordinator process, not yet started."""
    up = Up(tmp_path)
    yield up
    up.close()


@contextmanager
def started_verb(*arguments, cwd, **variables):
    """A verb that runs while the context is open."""
    started = Started(*arguments, cwd=cwd, **variables)
    try:
        yield started
    finally:
        started.discard()


class Cluster:
    """A coordinator in a thread, and verbs that query it."""

    def __init__(self, running: Running, folder: Path):
        self.running = running
        self.folder = folder
        self.url = running.http_url
        self.client = Client(running)
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=WAIT_S)

    def run(self, *arguments, **variables):
        return strata(*arguments, "--url", self.url, cwd=self.folder, **variables)

    def start(self, *arguments, **variables):
        return started_verb(*arguments, "--url", self.url, cwd=self.folder, **variables)

    def get(self, path):
        return self.http.get(f"/api/{path}").json()


@contextmanager
def serving(folder: Path):
    # Patient, since workers of tests do not beat.
    with coordinator(folder / "data", heartbeat_timeout_s=600) as running:
        cluster = Cluster(running, folder)
        yield cluster
        cluster.http.close()
        cluster.client.channel.close()


@pytest.fixture
def cluster(tmp_path):
    with serving(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path):
    """A folder with a script to run; workers that are left over end with the test."""
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")
    yield tmp_path
    for pid in worker_pids(tmp_path).values():
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def started(folder):
    """Start a run and return it; it ends with the test."""
    begun = []

    def start(*arguments, **variables):
        begun.append(Started("run", *arguments, cwd=folder, **variables))
        return begun[-1]

    yield start
    for each in begun:
        each.discard()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The data folder of a real run, which tests only read, and the output of `strata run`."""
    from tests.cli.runs import run, script
    from tests.cli.trained import TRAINING

    folder = tmp_path_factory.mktemp("trained")
    name = script(folder, TRAINING)
    code, output = run(folder, name, "--workers", "2", "--data-dir", str(folder / "data"))
    assert code == 0, output
    return folder / "data", output


@pytest.fixture(scope="session")
def logged(tmp_path_factory):
    """The data folder of a real run that logs media and was rolled back; tests only read it."""
    from tests.cli.logged import LOGGING
    from tests.cli.runs import run, script

    folder = tmp_path_factory.mktemp("logged")
    name = script(folder, LOGGING)
    arguments = ("--workers", "2", "--data-dir", str(folder / "data"))
    code, output = run(folder, name, *arguments)
    assert code == 0, output
    return folder / "data"


@pytest.fixture(scope="session")
def curved(tmp_path_factory):
    """The folder of a real run with known metrics, which tests only read; its log is in `data`."""
    from tests.cli.curved import curved_run

    return curved_run(tmp_path_factory.mktemp("curved"))
