"""Every call of a worker waits for an unreachable coordinator, and then succeeds."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.sdk.harness import CoordinatorProcess, Trainee

SCRIPT = Path(__file__).with_name("asker.py")
CALLS = [
    "restore",
    "batches of data at hand",
    "batches by name",
    "length",
    "mixture",
    "agree",
    "barrier",
    "evaluate",
    "save",
    "shards",
    "next shard",
    "stop",
    "leave",
]
ORCHESTRATOR_CALLS = [
    "register",
    "register dataset",
    "shards",
    "shard",
    "epoch",
    "heartbeat",
    "checkpoint",
    "latest",
    "barrier",
    "deregister",
]


@pytest.fixture
def strata_up(tmp_path):
    """A coordinator process with a long heartbeat timeout."""
    started = CoordinatorProcess(
        tmp_path, heartbeat_interval_s=0.25, heartbeat_timeout_s=60, reattach_grace_s=60
    )
    yield started
    started.close()


@pytest.fixture
def asker(strata_up, tmp_path):
    """Start the worker that makes the calls: `asker(scene)`."""
    gate, data, started = tmp_path / "gate", tmp_path / "rows.jsonl", []
    gate.mkdir()
    data.write_text("".join(json.dumps({"x": n}) + "\n" for n in range(64)), "utf-8")

    def start(scene):
        given = {"gate": str(gate)} | ({"data": str(data)} if scene == "ask" else {})
        worker = Trainee(strata_up.address, scene, tmp_path / "spool", SCRIPT, **given)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()


class Away:
    """Ways to make a coordinator unreachable."""

    def __init__(self, strata_up, way):
        self.strata_up, self.way = strata_up, way

    def begin(self):
        if self.way == "killed":
            self.strata_up.kill()
        elif self.way == "stopped":
            self.strata_up.process.send_signal(signal.SIGSTOP)
        else:
            self._limit_files(1)

    def end(self):
        if self.way == "killed":
            self.strata_up.start()
        elif self.way == "stopped":
            self.strata_up.process.send_signal(signal.SIGCONT)
        else:
            self._limit_files(psutil.RLIM_INFINITY)

    def _limit_files(self, most_bytes):
        """Make all writes fail, like a full disk."""
        limits = (most_bytes, psutil.RLIM_INFINITY)
        psutil.Process(self.strata_up.process.pid).rlimit(psutil.RLIMIT_FSIZE, limits)


def errors_of(worker, calls, away, gate):
    """Make each call while the coordinator is unreachable; returns the errors by call."""
    errors = {}
    for number, name in enumerate(calls, 1):
        assert worker.says("ready", count=number)["call"] == name
        away.begin()
        (gate / name).touch()
        worker.says("asking", count=number)
        away.end()
        ended = worker.says("ended", count=number)
        errors[ended["call"]] = ended["error"]
    return errors


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["killed", "stopped", "disk full"])
def test_every_call_of_a_run_waits_for_the_coordinator(strata_up, asker, tmp_path, way):
    worker = asker("ask")
    errors = errors_of(worker, CALLS, Away(strata_up, way), tmp_path / "gate")
    assert errors == dict.fromkeys(CALLS, "")
    assert worker.ends() == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["killed", "stopped", "disk full"])
def test_every_call_of_an_orchestrator_waits_for_the_coordinator(strata_up, asker, tmp_path, way):
    worker = asker("ask_orchestrator")
    errors = errors_of(worker, ORCHESTRATOR_CALLS, Away(strata_up, way), tmp_path / "gate")
    assert errors == dict.fromkeys(ORCHESTRATOR_CALLS, "")
    assert worker.ends() == 0


def test_worker_started_by_an_agent_waits_for_the_coordinator(strata_up, asker, tmp_path):
    """The coordinator exists, as it told the agent to start the worker."""
    worker = asker("join_for_an_agent")
    errors = errors_of(worker, ["join"], Away(strata_up, "killed"), tmp_path / "gate")
    assert errors == {"join": ""}
