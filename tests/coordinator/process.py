"""`strata up` as a subprocess, for tests that kill it, restart it or measure its memory."""

import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

STRATA = [sys.executable, "-c", "from strata.cli import main; main()"]
START_S = 60.0


def free_port() -> int:
    """A free port below the range of ephemeral ports: otherwise a client that retries could be
    assigned the port itself."""
    while True:
        port = random.randint(15_000, 30_000)
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)):
                return port


class Process:
    """A coordinator that keeps its port and its data folder from start to start."""

    def __init__(self, folder: Path, **settings) -> None:
        self.folder = folder
        self.port = free_port()
        self.grpc_port = self.port
        given = {"data_dir": str(folder / "data"), "grpc_port": self.port, "http_port": 0}
        lines = [f"{name} = {value!r}" for name, value in (given | settings).items()]
        self._config = folder / "strata.toml"
        self._config.write_text("\n".join(lines).replace("'", '"'), "utf-8")
        self._output = folder / "up.log"
        self._process: subprocess.Popen | None = None
        self.prefix: list[str] = []
        self.token = str(settings.get("token", ""))
        self.http_url = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def store(self) -> Path:
        return self.folder / "data" / "log.db"

    def start(self) -> None:
        """Wait until it serves."""
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*self.prefix, *STRATA, "up", "--config", str(self._config)],
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_S
        while not (served := re.search(r"dashboard +(\S+)", self.output())):
            assert self._process.poll() is None, f"the coordinator ended:\n{self.output()}"
            assert time.monotonic() < deadline, f"the coordinator did not start:\n{self.output()}"
            time.sleep(0.01)
        self.http_url = served[1]

    def output(self) -> str:
        return self._output.read_text("utf-8", errors="replace")

    def rss_bytes(self) -> int:
        return psutil.Process(self.pid).memory_info().rss

    def peak_bytes(self) -> int:
        """Peak memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text("utf-8")
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the memory, so that a defect ends the coordinator and not the test machine."""
        psutil.Process(self.pid).rlimit(psutil.RLIMIT_AS, (limit_bytes, limit_bytes))

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Stop it gracefully; returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextmanager
def process(folder: Path, **settings):
    """Run a coordinator process while the context is open; the test may stop it earlier."""
    started = Process(folder, **settings)
    started.start()
    try:
        yield started
    finally:
        if started._process.poll() is None:
            started.kill()
