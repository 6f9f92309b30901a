"""Agents on a Ray cluster of two nodes, one of which is killed."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.agent.harness import TRAIN, Api, until, worker_pids
from tests.cli.conftest import Started
from tests.cli.runs import seen
from tests.coordinator.conftest import coordinator
from tests.launch.ray_cluster import RayCluster

pytestmark = pytest.mark.timeout(300)
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def cluster():
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")
    yield tmp_path
    for pid in worker_pids(tmp_path).values():
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def served(folder):
    with coordinator(folder / "data") as serving:
        yield serving


@pytest.fixture
def agents(cluster, folder, served):
    """`strata launch` with two hosts of one slot each."""
    address = f"127.0.0.1:{served.grpc_port}"
    started = Started(
        *("launch", "--hosts", "2", "--slots", "1"),
        *("--coordinator", address, "--url", served.http_url, "--ray-address", cluster.address),
        *("--data-dir", str(folder / "agents")),
        cwd=folder,
    )
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGTERM)
    started.process.wait(60)
    started.ended()


def hosts_up(api):
    return [agent["id"] for agent in api.get("/agents") if agent["up"]]


def placed(agents):
    """The number of agent starts on a node."""
    return sum("is on Ray node" in line for line in agents.err)


def actor_of(folder, worker):
    """The pid of the agent that started a worker."""
    return psutil.Process(worker_pids(folder)[worker]).parent()


def test_new_actor_in_the_same_bundle_adopts_the_workers(agents, folder, served):
    api = Api(served)
    until(lambda: len(hosts_up(api)) == 2, "two hosts", TIMEOUT_S)
    task = api.submit(folder / "train.py", 2)
    api.reaches(task, "running")
    before = worker_pids(folder)
    victim = actor_of(folder, f"{task}-w0")
    assert "RayHost" in " ".join(victim.cmdline())
    victim.kill()
    agents.wait_for(lambda run: placed(run) == 3, "another actor", TIMEOUT_S)
    assert worker_pids(folder) == before
    (folder / "finish").touch()
    done = api.reaches(task, "completed")
    assert done["generation"] == 1
    assert api.facts("WorkerLost") == []
    assert api.facts("AgentLost") == []


def test_task_recovers_from_a_killed_node_when_another_joins(cluster, folder):
    run = Started(
        *("run", "train.py", "--workers", "2", "--engine", "ray", "--hosts", "2"),
        *("--ray-address", cluster.address),
        cwd=folder,
    )
    try:
        run.wait_for(seen("generation 1 trains"), "training")
        cluster.kill_node()
        run.wait_for(seen("was lost: its connection broke"), "loss")
        run.wait_for(seen("its lost workers need 1 slot, 0 of 1 are free"), "reason")
        assert "is lost: Ray says" in log_of(folder)
        cluster.add_node()
        run.wait_for(seen("continues from step"), "recovery", TIMEOUT_S)
        (folder / "finish").touch()
        assert run.ended() == 0, run.out
        assert "1 loss, 1 recovery" in "".join(run.out)
    finally:
        run.discard()


def log_of(folder: Path) -> str:
    return "".join(path.read_text("utf-8") for path in folder.glob("strata-data/runs/*/run.log"))
