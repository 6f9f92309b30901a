"""A coordinator in this process, and worker processes that end with the test."""

import httpx
import pytest
from msgspec import Struct

from strata.coordinator.logs import Query
from tests.coordinator.conftest import coordinator
from tests.sdk.harness import Trainee
from tests.storage.faulty import Faults, faulty_proxy
from tests.storage.server import running

HEARTBEAT_TIMEOUT_S = 2.5


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def trainees(spool):
    """Starts worker processes: `trainees(address, scene, **given)`."""
    started = []

    def start(address, scene, **given):
        started.append(Trainee(address, scene, spool, **given))
        return started[-1]

    yield start
    for trainee in started:
        trainee.kill()


@pytest.fixture
def hub(tmp_path):
    """A coordinator that hears of silence quickly."""
    with coordinator(
        tmp_path / "data", heartbeat_interval_s=0.25, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S
    ) as started:
        yield Hub(started)


class Remote(Struct):
    """A real S3 server behind a proxy that misbehaves on request; `aws` are its settings."""

    aws: dict[str, str]
    faults: Faults


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """An S3 server, named to this process and to the workers as users name one."""
    with running(tmp_path / "s3") as direct, faulty_proxy(direct) as (settings, faults):
        names = [name for name in settings.__struct_fields__ if name.startswith("aws_")]
        aws = {name: getattr(settings, name) for name in names if name != "aws_instance_role"}
        for name, value in aws.items():
            monkeypatch.setenv(name.upper(), str(value))
        yield Remote(aws, faults)


class Hub:
    """A running coordinator, as tests look into it."""

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
        """The level and message of what a worker said, oldest first."""
        asked = {"worker_id": worker, "limit": 1000}
        entries = httpx.get(f"{self.running.http_url}/api/logs", params=asked).json()
        return [(entry["level"], entry["message"]) for entry in reversed(entries)]

    def all_lines(self, worker: str) -> list[str]:
        """Everything that a worker said, oldest first."""
        query = Query(worker_id=worker)
        page = self.running.sessions.lines.logs.recent(query, 10_000)
        return [entry.message for entry in reversed(page.entries)]

    def facts(self, kind: str):
        return [event.body for event in self.store.read() if event.kind == kind]
