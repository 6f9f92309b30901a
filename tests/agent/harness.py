"""Agents and runs in their own processes, for tests that kill and inspect them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil

from tests.coordinator.process import STRATA

WAIT_S = 30.0
OURS = ("STRATA_", "COORDINATOR_", "WORKER_ID", "RANK", "WORLD_SIZE", "GPU_COUNT", "RUST_LOG")

# Trains until the file `finish` is there, or for so many steps.
TRAIN = """
import os, sys, time, strata
with strata.join() as run:
    print(f"joined {run.worker_id} in generation {run.generation}")
    steps = run.config.get("steps", 10**9)
    while run.steps < steps and not os.path.exists("finish"):
        time.sleep(0.01)
        try:
            if not run.mark_step(loss=1.0):
                print("asked to stop")
                break
        except strata.GenerationChanged:
            run.sync()
"""


def environment(**given):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {"COLUMNS": "200"} | given


def until(condition, what="it", wait_s=WAIT_S):
    """Wait for a condition; returns its result."""
    deadline = time.monotonic() + wait_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)
    return result


class Agent:
    """`strata agent` with a folder that survives restarts."""

    def __init__(
        self, folder: Path, address: str, slots: int, name: str = "a", token="", **variables
    ) -> None:
        self.environment = environment(**variables)
        self.folder = folder
        self.log = folder / f"agent-{name}.log"
        self.command = [*STRATA, "agent", "--coordinator", address, "--slots", str(slots)]
        self.command += ["--name", name, "--data-dir", str(folder / "data")]
        self.command += ["--token", token] if token else []
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, env=self.environment
            )

    def said(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pid in worker_pids(self.folder).values():
            os.killpg(pid, signal.SIGKILL)


def worker_pids(folder: Path) -> dict[str, int]:
    """The pids of the workers that run in a folder."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.cwd() != str(folder) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            worker = process.environ().get("WORKER_ID")
        except psutil.Error:
            continue
        if worker:
            found[worker] = process.pid
    return found


class Api:
    """The REST API of the current coordinator."""

    def __init__(self, coordinator) -> None:
        self.coordinator = coordinator
        token = getattr(coordinator, "token", "")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **params):
        url = f"{self.coordinator.http_url}/api{path}"
        answer = httpx.get(url, params=params, headers=self.headers, timeout=WAIT_S)
        return answer.raise_for_status().json()

    def post(self, path: str, **body):
        url = f"{self.coordinator.http_url}/api{path}"
        answer = httpx.post(url, json=body, headers=self.headers, timeout=WAIT_S)
        return answer.raise_for_status().json()

    def submit(self, script: Path, workers: int, **given) -> str:
        body = {"name": script.stem, "entry": str(script), "worker_count": workers} | given
        body["env"] = {"PWD": str(script.parent)} | given.get("env", {})
        return self.post("/tasks", **body)["task_id"]

    def task(self, task_id: str):
        return self.get(f"/tasks/{task_id}")

    def reaches(self, task_id: str, *states: str):
        """Wait until a task is in one of these states."""
        return until(
            lambda: (task := self.task(task_id))["status"] in states and task,
            f"{task_id} being one of {states}",
        )

    def lines(self, **filters) -> list[str]:
        return [entry["message"] for entry in self.get("/logs", limit=1000, **filters)][::-1]

    def facts(self, kind: str) -> list[dict]:
        return [fact["fields"] for fact in self.get("/events", kinds=kind, limit=1000)]
