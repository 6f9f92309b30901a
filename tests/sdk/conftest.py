"""Fixtures: a coordinator in this process, and worker processes that end with the test."""

from pathlib import Path

import httpx
import pytest
from msgspec import Struct

from strata.coordinator.logs.log_query import LogQuery
from strata.core.workers.worker_facts import CODEC
from strata.sdk.record.recorder import Recorder
from strata.store.event_batches import unpack
from strata.store.event_store import Window
from tests.coordinator.conftest import coordinator
from tests.sdk.harness import Trainee
from tests.storage.faulty import Faults, faulty_proxy

HEARTBEAT_TIMEOUT_S = 2.5
LEARNER = Path(__file__).with_name("learner.py")


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def trainees(spool):
    """Start worker processes: `trainees(address, scene, **given)`."""
    started = []

    def start(address, scene, **given):
        started.append(Trainee(address, scene, spool, **given))
        return started[-1]

    yield start
    for trainee in started:
        trainee.kill()


@pytest.fixture
def hub(tmp_path):
    """A coordinator with a short heartbeat timeout."""
    with coordinator(
        tmp_path / "data", heartbeat_interval_s=0.25, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S
    ) as started:
        yield Hub(started)


@pytest.fixture
def group(hub, trainees):
    """Start workers of a task that average in every step: `group({...}, {...}, rounds=5)`."""

    def start(*given, rounds):
        asked = {"name": "t", "worker_count": len(given), "policy": "continue"}
        task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]
        return [
            trainees(
                hub.address,
                "agree",
                script=LEARNER,
                worker_id=f"w{n}",
                task=task,
                rounds=rounds,
                **own,
            )
            for n, own in enumerate(given)
        ]

    return start


@pytest.fixture
def recorder(tmp_path):
    """A recorder of worker `w/1`, incarnation 7, with a spool."""
    recorder = Recorder()
    recorder.begin(tmp_path, "w/1", 7)
    yield recorder
    recorder.close()


class Remote(Struct):
    """A real S3 server behind a proxy that injects faults; `aws` are its settings."""

    aws: dict[str, str]
    faults: Faults


@pytest.fixture
def s3(s3_settings, monkeypatch):
    """An S3 server, set in the environment of this process and of the workers."""
    with faulty_proxy(s3_settings) as (settings, faults):
        names = [name for name in settings.__struct_fields__ if name.startswith("aws_")]
        aws = {name: getattr(settings, name) for name in names if name != "aws_instance_role"}
        for name, value in aws.items():
            monkeypatch.setenv(name.upper(), str(value))
        yield Remote(aws, faults)


class Hub:
    """A running coordinator and its internals."""

    def __init__(self, running) -> None:
        self.running = running
        self.address = f"127.0.0.1:{running.grpc_port}"

    @property
    def state(self):
        return self.running.engine.kernel.state

    @property
    def store(self):
        return self.running.engine.kernel.store

    def stop_task(self, task: str) -> None:
        httpx.post(f"{self.running.http_url}/api/tasks/{task}/stop").raise_for_status()

    def lines(self, worker: str) -> list[tuple[str, str]]:
        """The level and message of a worker's log lines, oldest first."""
        asked = {"worker_id": worker, "limit": 1000}
        entries = httpx.get(f"{self.running.http_url}/api/logs", params=asked).json()
        return [(entry["level"], entry["message"]) for entry in reversed(entries)]

    def all_lines(self, worker: str) -> list[str]:
        """All log messages of a worker, oldest first."""
        query = LogQuery(worker_id=worker)
        page = self.running.sessions.lines.logs.recent(query, 10_000)
        return [entry.message for entry in reversed(page.entries)]

    def recorded(self, worker: str, *kinds: str):
        """The events that a worker has recorded, of all kinds or of these, in order."""
        batches = self.store.batches(Window(node=worker))
        events = [event for batch in batches for event in unpack(CODEC, batch)]
        return [event for event in events if not kinds or event.kind in kinds]

    def recorded_facts(self, worker: str, *kinds: str):
        """The bodies of the same events."""
        return [event.body for event in self.recorded(worker, *kinds)]

    def facts(self, kind: str):
        """The coordinator's facts of a kind."""
        return [event.body for event in self.store.read() if event.kind == kind]
