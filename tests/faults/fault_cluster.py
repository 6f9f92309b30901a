"""One real cluster for faults: `strata up`, `strata agent`, and a task for each fault.

A `Cluster` keeps its coordinator, its agent and a `Watcher`, which reads all facts over REST as a
user would and remembers them: facts that a reader once got must never be lost again. A `Trial` is
one task of it, on two workers, that a fault is planted into.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from strata.core.cluster import CODEC
from strata.store.event_store import EventReader
from strata.store.postgres import PostgresReader
from strata.timeline.archive.run_lookup import open_timeline
from tests.agent.harness import Agent, Api, until
from tests.coordinator.process import Process

SCRIPT = Path(__file__).with_name("exact_trainee.py")
WORKERS = 2
WAIT_S = 90.0
SETTINGS = {
    "heartbeat_interval_s": 0.2,
    "heartbeat_timeout_s": 5.0,
    "connection_grace_s": 1.0,
    "reattach_grace_s": 20.0,
    "barrier_timeout_s": 60.0,
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
        headers = Api(coordinator).headers
        self._client = httpx.Client(trust_env=False, timeout=5.0, headers=headers)
        self.facts: list[dict[str, Any]] = []
        self.arrived_s: list[float] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.wait(0.02):
            try:
                self._take()
            except (httpx.HTTPError, httpx.InvalidURL):
                continue  # it is away, or has not started

    def _take(self) -> None:
        params = {"position": len(self.facts), "limit": 1000}
        answer = self._client.get(f"{self._coordinator.http_url}/api/events", params=params)
        if answer.status_code == 200:
            found = answer.json()
            self.arrived_s += [time.monotonic()] * len(found)
            self.facts += found

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


@dataclass
class Given:
    """What a cluster is started with: settings, variables of the agent and its workers (also of the
    verbs that check) and of the coordinator, a tool that the fault uses, such as a server that it
    kills, and the class of the cluster if it is another one."""

    settings: dict[str, object] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    coordinator_variables: dict[str, str] = field(default_factory=dict)
    tool: Any = None
    cluster: "type[Cluster] | None" = None


class Cluster:
    """A coordinator, an agent with two slots, and what a reader has seen of their facts."""

    def __init__(self, folder: Path, given: Given) -> None:
        self.folder = folder
        self.settings = SETTINGS | given.settings
        self.variables = given.variables
        self.tool = given.tool
        self.coordinator = Process(folder, **self.settings)
        set_first = [f"{name}={value}" for name, value in given.coordinator_variables.items()]
        self.coordinator.prefix = ["env", *set_first]
        self.api = Api(self.coordinator)
        self.watcher = Watcher(self.coordinator)
        self.agent: Agent | None = None

    def start(self) -> None:
        """Start the coordinator and the agent."""
        self.coordinator.start()
        self.agent = Agent(self.folder, self.coordinator.address, WORKERS, **self.variables)

    @contextmanager
    def reader(self) -> Iterator[EventReader]:
        """The log, read from its store and not through the coordinator."""
        if store := str(self.settings.get("store", "")):
            with PostgresReader(store, CODEC) as reader:
                yield reader
        else:
            data = Path(str(self.settings.get("data_dir", self.folder / "data")))
            with open_timeline(data) as timeline:
                yield timeline.reader

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

    def close(self) -> None:
        self.watcher.close()
        if self.agent is not None:
            self.agent.close()
        process = self.coordinator._process
        if process is not None and process.poll() is None:
            os.kill(self.coordinator.pid, signal.SIGCONT)  # a failed test may leave it stopped
            self.coordinator.kill()


class Trial:
    """One task of a cluster, and the moment at which its fault was planted."""

    def __init__(self, cluster: Cluster, task: str, folder: Path) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.watcher = cluster.watcher
        self.task = task
        self.folder = folder
        self.planted_s = 0.0
        self.lasted_s: float | None = None
        self.position = 0
        self.step = 0

    def plant(self, strike: Callable[[], object]) -> None:
        """Note the moment, then plant the fault; detection and recovery are measured from here."""
        self.position = len(self.watcher.facts)
        self.step = max((line["step"] for line in self.ledger()), default=0)
        self.planted_s = time.monotonic()
        strike()

    def lift(self, undo: Callable[[], object]) -> None:
        """End a fault that lasts."""
        self.lasted_s = round(time.monotonic() - self.planted_s, 3)
        undo()

    def recovered(self) -> dict[str, Any] | None:
        """The first commit of a step that was applied after the fault, if there is one."""
        found = self.since("StepsCommitted", task=self.task)
        return next((each for each in found if each["fields"]["last"] > self.step), None)

    def after_s(self, fact: dict[str, Any] | None) -> float | None:
        """Seconds from the fault until a reader of the REST API had a fact."""
        if fact is None:
            return None
        return round(self.watcher.arrived_s[fact["position"]] - self.planted_s, 3)

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
            self.require_not_failed()
            return self.committed() >= last + more

        until(reached, f"steps of {self.task}", WAIT_S)

    def require_not_failed(self) -> None:
        """Raise if the task has failed: no step would come."""
        ended = self.watcher.of("TaskStateChanged", task=self.task, after="failed")
        assert not ended, f"{self.task} failed: {ended[-1]['fields']['reason']}"

    def completed(self) -> bool:
        """Whether the task has completed."""
        self.require_not_failed()
        return bool(self.watcher.of("TaskStateChanged", task=self.task, after="completed"))

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


Prepare = Callable[[Path], AbstractContextManager[Given]]


@contextmanager
def plain(folder: Path) -> Iterator[Given]:
    """A cluster with the settings of the matrix, in a folder on disk."""
    yield Given()


@contextmanager
def running(folder: Path, prepare: Prepare = plain) -> Iterator[Cluster]:
    """A cluster while the context is open."""
    folder.mkdir(exist_ok=True)
    with prepare(folder) as given:
        cluster = (given.cluster or Cluster)(folder, given)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
