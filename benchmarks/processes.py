"""Servers as separate processes, so that their cost is measured separately; and peers in their
own environments."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

START_TIMEOUT_S = 60.0
COORDINATOR = "from strata.cli import main; main()"
LIGHTHOUSE = """
import sys, time
from torchft._torchft import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=int(sys.argv[1]), join_timeout_ms=60000)
print("port", server.address().rsplit(":", 1)[1], flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Server:
    """A server that answers at `port`; it took `started_s` from its start to being ready."""

    port: int
    process: psutil.Process
    started_s: float

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        times = self.process.cpu_times()
        return times.user + times.system

    def rss_mb(self) -> float:
        """Its resident memory."""
        return self.process.memory_info().rss / 1e6


@contextmanager
def coordinator(folder: Path) -> Iterator[Server]:
    """`strata up` over a data folder."""
    options = ["--grpc-port", "0", "--http-port", "0", "--data-dir", str(folder)]
    command = [sys.executable, "-c", COORDINATOR, "up", *options]
    with _running(command, r"workers\s+\S+:(\d+)", folder / "stderr.txt") as server:
        yield server


@contextmanager
def lighthouse(python: str, replicas: int, folder: Path) -> Iterator[Server]:
    """torchft's lighthouse, for this many replicas."""
    command = [python, "-c", LIGHTHOUSE, str(replicas)]
    with _running(command, r"port (\d+)", folder / "lighthouse.txt") as server:
        yield server


@contextmanager
def _running(command: list[str], ready: str, output: Path) -> Iterator[Server]:
    """Start a server and wait for the line with its port; end it afterwards."""
    began = time.perf_counter()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        while (found := re.search(ready, output.read_text("utf-8", "replace"))) is None:
            if process.poll() is not None or time.perf_counter() - began > START_TIMEOUT_S:
                said = output.read_text("utf-8", "replace")[-2_000:]
                raise RuntimeError(f"a server did not start: {said}")
            time.sleep(0.005)
        started_s = time.perf_counter() - began
        yield Server(int(found[1]), psutil.Process(process.pid), started_s)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def answering(command: Sequence[object]) -> Iterator[Callable[[str], dict[str, float]]]:
    """Run a program that executes each line of its stdin and answers it in JSON."""
    process = subprocess.Popen(
        [str(each) for each in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(line: str) -> dict[str, float]:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{command} ended with exit code {process.wait()}")
        return json.loads(answer)

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait(60)
