"""Worker and coordinator processes, for tests that kill either of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.coordinator.process import free_port

SCRIPT = Path(__file__).with_name("trainee.py")
TIMEOUT_S = 60.0


def until(happened, timeout_s: float = TIMEOUT_S, what: str = "it"):
    """Wait for a condition; returns its result."""
    deadline_s = time.monotonic() + timeout_s
    while not (result := happened()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.005)
    return result


def clean_environment(**more: str) -> dict[str, str]:
    ours = ("STRATA_", "COORDINATOR_", "WORKER_ID", "RANK", "WORLD_SIZE", "GPU_COUNT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


class Trainee:
    """A worker process that runs a scene of a script and prints its progress as JSON.

    It gets its coordinator by arguments, or, like a user's own worker, from its environment.
    """

    def __init__(
        self,
        address: str,
        scene: str,
        spool: Path,
        script: Path = SCRIPT,
        *,
        by_environment: bool = False,
        **given: object,
    ) -> None:
        self.said: list[dict[str, object]] = []
        self.output: list[str] = []
        told = {"coordinator": address, "spool_dir": str(spool)}
        if by_environment:
            environment = {"COORDINATOR_ADDR": address, "STRATA_SPOOL_DIR": str(spool)}
            told = {}
        else:
            environment = {}
        self.process = subprocess.Popen(
            [sys.executable, str(script), scene, json.dumps({**told, **given})],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(**environment),
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                self.said.append(json.loads(line))
            else:
                self.output.append(line)

    def says(self, what: str, count: int = 1, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Wait until it has printed `what` `count` times; returns the last one."""

        def heard():
            found = [each for each in self.said if each["say"] == what]
            if len(found) < count and self.process.poll() is not None:
                self._thread.join(5)
                found = [each for each in self.said if each["say"] == what]
                if len(found) < count:
                    pytest.fail(f"it ended without printing {what}: {self.story()}")
            return found[count - 1] if len(found) >= count else None

        return until(heard, timeout_s, f"{what!r} of {self.story()}")

    def story(self) -> str:
        return f"exit {self.process.poll()}, said {self.said[-3:]}, {''.join(self.output[-30:])}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(timeout_s)
        self._thread.join(5)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)
        self._thread.join(5)
        if not self._thread.is_alive():  # otherwise a forked child still holds the pipe
            self.process.stdout.close()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class CoordinatorProcess:
    """`strata up` on fixed ports, so that it can be killed and started again."""

    def __init__(self, folder: Path, *flags: str, **settings: object) -> None:
        self.folder = folder
        self.flags = flags
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {f"STRATA_{name.upper()}": str(value) for name, value in settings.items()}
        self.process: subprocess.Popen | None = None
        self.log = (folder / "coordinator.log").open("ab")
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", "from strata.cli import main; main()", "up"]
        self.http_port = free_port()
        ports = ["--grpc-port", str(self.port), "--http-port", str(self.http_port)]
        self.process = subprocess.Popen(
            [*command, *ports, "--data-dir", str(self.folder / "data"), *self.flags],
            stdout=self.log,
            stderr=self.log,
            env=clean_environment(**self.settings),
        )
        until(self._listens, what="the coordinator's start")

    def _listens(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"it ended: {(self.folder / 'coordinator.log').read_text()[-2000:]}")
        return listening(self.port) and listening(self.http_port)

    def stop_task(self, task: str) -> None:
        url = f"http://127.0.0.1:{self.http_port}/api/tasks/{task}/stop"
        httpx.post(url, trust_env=False).raise_for_status()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.log.close()
