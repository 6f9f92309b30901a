"""One real cluster for faults: `strata up`, `strata agent`, and a task for each fault.

A `Cluster` keeps its coordinator, its agent and a `Watcher`, which reads all facts over REST as a
user would and remembers them: facts that a reader once got must never be lost again. A `Trial` is
one task of it, on two workers, that a fault is planted into.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.agent.harness import Agent, Api, until
from tests.coordinator.process import Process

SCRIPT = Path(__file__).with_name("exact_trainee.py")
WORKERS = 2
WAIT_S = 90.0
SETTINGS = {
    "heartbeat_interval_s": 0.2,
    "heartbeat_timeout_s": 3.0,
    "connection_grace_s": 1.0,
    "reattach_grace_s": 20.0,
    "barrier_timeout_s": 60.0,
    "hang_floor_s": 2.0,
    "hang_unlearned_s": 30.0,
    "hang_report_s": 2.0,
    "stop_grace_s": 1.0,
    "snapshot_every_facts": 40,
    "archive_after_s": 3600.0,
}


class Watcher:
    """Reads every fact once over REST, with the moment of its arrival here."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._ended = threading.Event()
        self._client = httpx.Client(trust_env=False, timeout=5.0)
        self.facts: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.wait(0.02):
            try:
                self._take()
            except httpx.HTTPError:
                continue

    def _take(self) -> None:
        params = {"position": len(self.facts), "limit": 1000}
        answer = self._client.get(f"{self._coordinator.http_url}/api/events", params=params)
        if answer.status_code == 200:
            self.facts += answer.json()

    def of(self, *kinds: str, **fields: object) -> list[dict[str, Any]]:
        """The facts of these kinds so far, with these fields."""
        return [
            each
            for each in list(self.facts)
            if each["kind"] in kinds
            and all(each["fields"].get(name) == value for name, value in fields.items())
        ]

    def close(self) -> None:
        self._ended.set()
        self._thread.join(20)
        self._client.close()


class Cluster:
    """A coordinator, an agent with two slots, and what a reader has seen of their facts."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.coordinator = Process(folder, **SETTINGS | settings)
        self.coordinator.start()
        self.api = Api(self.coordinator)
        self.agent = Agent(folder, self.coordinator.address, WORKERS)
        self.watcher = Watcher(self.coordinator)

    def begin(self, name: str, **how: object) -> "Trial":
        """Submit a task; returns when it has committed steps and a checkpoint."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "step_s").write_text("0.02")
        given = json.dumps({"checkpoint_every": 20} | how)
        cwd = {"PWD": str(self.folder)}
        task = self.api.submit(SCRIPT, WORKERS, args=[str(folder), given], env=cwd)
        trial = Trial(self, task, folder)
        trial.trains()
        until(
            lambda: self.watcher.of("CheckpointCommitted", task=task),
            f"a checkpoint of {task}",
            WAIT_S,
        )
        return trial

    def restart(self) -> None:
        """Kill the coordinator and start it again."""
        self.coordinator.kill()
        self.coordinator.start()

    def close(self) -> None:
        self.watcher.close()
        self.agent.close()
        if self.coordinator._process.poll() is None:
            os.kill(self.coordinator.pid, 18)  # SIGCONT: a fault may have left it stopped
            self.coordinator.kill()


class Trial:
    """One task of a cluster, and the moment at which its fault was planted."""

    def __init__(self, cluster: Cluster, task: str, folder: Path) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.watcher = cluster.watcher
        self.task = task
        self.folder = folder
        self.planted_ms = 0.0
        self.lasted_s: float | None = None
        self.position = 0
        self.step = 0

    def plant(self, strike: Callable[[], object]) -> None:
        """Note the moment, then plant the fault; detection and recovery are measured from here."""
        self.position = len(self.watcher.facts)
        self.step = max((line["step"] for line in self.ledger()), default=0)
        self.planted_ms = time.time() * 1000
        strike()

    def lift(self, undo: Callable[[], object]) -> None:
        """End a fault that lasts."""
        self.lasted_s = time.time() - self.planted_ms / 1000
        undo()

    def recovered(self) -> dict[str, Any] | None:
        """The first commit of a step that was applied after the fault, if there is one."""
        found = self.since("StepsCommitted", task=self.task)
        return next((each for each in found if each["fields"]["last"] > self.step), None)

    def after_s(self, fact: dict[str, Any] | None) -> float | None:
        """Seconds from the fault to a fact."""
        return None if fact is None else round((fact["time"] - self.planted_ms) / 1000, 3)

    def ledger(self, name: str = "ledger-*.jsonl") -> Iterator[dict[str, Any]]:
        """The steps that the workers applied, by their own ledgers or by one of them."""
        for file in sorted(self.folder.glob(name)):
            for line in file.read_text("utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    def trains(self, more: int = 10) -> None:
        """Wait until so many more steps than now were committed."""
        last = self.committed()

        def reached() -> bool:
            ended = self.watcher.of("TaskStateChanged", task=self.task, after="failed")
            assert not ended, f"{self.task} failed: {ended[-1]['fields']['reason']}"
            return self.committed() >= last + more

        until(reached, f"steps of {self.task}", WAIT_S)

    def committed(self) -> int:
        """The last committed step that a reader has seen."""
        found = self.watcher.of("StepsCommitted", task=self.task)
        return found[-1]["fields"]["last"] if found else -1

    def pids(self) -> dict[str, int]:
        """The pids of the task's workers, by worker."""
        found = {}
        for process in psutil.process_iter():
            try:
                variables = process.environ()
                mine = variables.get("STRATA_TASK") == self.task and "WORKER_ID" in variables
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found[variables["WORKER_ID"]] = process.pid
            except psutil.Error:
                continue
        return dict(sorted(found.items()))

    def since(self, *kinds: str, **fields: object) -> list[dict[str, Any]]:
        """The facts of these kinds since the fault."""
        return [
            each for each in self.watcher.of(*kinds, **fields) if each["position"] >= self.position
        ]

    def waits_for(self, *kinds: str, **fields: object) -> dict[str, Any]:
        """Wait for a fact of these kinds since the fault; returns the first."""
        return until(lambda: self.since(*kinds, **fields), f"{kinds} of {self.task}", WAIT_S)[0]

    def finish(self) -> None:
        """Let the script end at the next step."""
        (self.folder / "step_s").write_text("0")
        (self.folder / "finish").touch()


@contextmanager
def running(folder: Path, **settings: object) -> Iterator[Cluster]:
    """A cluster while the context is open."""
    folder.mkdir(exist_ok=True)
    cluster = Cluster(folder, **settings)
    try:
        yield cluster
    finally:
        cluster.close()
