"""Environments of tasks for agents: read once, in a thread; an unreadable environment fails only
the task that needs it."""

import threading
from contextlib import contextmanager

import httpx
import pytest

from strata.coordinator.sessions.task_environments import Vault
from tests.coordinator.conftest import Client, coordinator
from tests.coordinator.rest.served import wait_for
from tests.coordinator.test_agent_sessions import Agent, submit
from tests.coordinator.test_vault import DAMAGES, damaged

ENV = {"KEY": "secret"}


@contextmanager
def cluster_in(folder):
    with coordinator(folder) as started:
        client = Client(started)
        try:
            yield client
        finally:
            client.channel.close()


def get(cluster, path, **params):
    answer = httpx.get(f"{cluster.coordinator.http_url}/api/{path}", params=params)
    return answer.raise_for_status().json()


def placed_task(folder, workers=1, join=False):
    """A task that was placed on one agent before the coordinator stopped."""
    with cluster_in(folder) as cluster:
        agent = Agent(cluster)
        agent.hello(slots=workers)
        task = submit(cluster, workers, env=ENV)
        agent.next_order("duties")
        if join:
            for number in range(workers):
                cluster.register(f"{task}-w{number}", task_id=task, start=1)
    return task


def environments(folder):
    return list((folder / "vault").iterdir())


@pytest.mark.parametrize("how", [*DAMAGES, "I/O error"])
def test_unreadable_environment_fails_only_its_task(tmp_path, how):
    task = placed_task(tmp_path)
    (file,) = environments(tmp_path)
    damaged(file, how)
    with cluster_in(tmp_path) as cluster:
        agent = Agent(cluster)
        (job,) = agent.hello(slots=1).duties.jobs
        assert job.blocked
        assert not job.environment
        wait_for(lambda: get(cluster, f"tasks/{task}")["status"] == "failed", "the task's end")
        reason = get(cluster, f"tasks/{task}")["reason"]
        assert "environment" in reason
        assert "submit the task again" in reason
        said = [line["message"] for line in get(cluster, "logs", task_id=task, level="error")]
        assert any("environment" in line for line in said)
        other = submit(cluster, 1, env=ENV)
        while other not in (jobs := {job.task_id: job for job in agent.next_order("duties").jobs}):
            pass
        assert dict(jobs[other].environment) == ENV
        assert task not in jobs


def test_running_task_continues_without_its_environment(tmp_path):
    task = placed_task(tmp_path, join=True)
    (file,) = environments(tmp_path)
    file.write_bytes(b"")
    with cluster_in(tmp_path) as cluster:
        agent = Agent(cluster)
        (job,) = agent.hello(slots=1).duties.jobs
        assert job.blocked
        assert [seat.worker_id for seat in job.seats] == [f"{task}-w0"]
        wait_for(lambda: get(cluster, "logs", task_id=task, level="error"), "the error")
        assert get(cluster, f"tasks/{task}")["status"] not in ("failed", "stopped")
        # A worker that has to be started needs it.
        agent.exited(task, f"{task}-w0")
        wait_for(lambda: get(cluster, f"tasks/{task}")["status"] == "failed", "the task's end")
        assert "environment" in get(cluster, f"tasks/{task}")["reason"]


def test_environment_is_deleted_when_its_task_ends(tmp_path):
    with cluster_in(tmp_path) as cluster:
        Agent(cluster).hello(slots=1)
        task = submit(cluster, 1, env=ENV)
        assert environments(tmp_path)
        httpx.post(f"{cluster.coordinator.http_url}/api/tasks/{task}/stop").raise_for_status()
        wait_for(lambda: not environments(tmp_path), "the environment to go")


def test_refused_task_leaves_no_environment(tmp_path):
    with cluster_in(tmp_path) as cluster:
        body = {"name": "t", "entry": "x.py", "dataset_id": "nothing", "env": ENV}
        answer = httpx.post(f"{cluster.coordinator.http_url}/api/tasks", json=body)
        assert answer.status_code == 404
        assert environments(tmp_path) == []


class Reads:
    """Counts the reads of environments, and blocks them while it is closed."""

    def __init__(self, monkeypatch):
        self.count = 0
        self.gate = threading.Event()
        self.gate.set()
        read = Vault.read

        def counted(vault, key):
            self.count += 1
            assert self.gate.wait(20)
            return read(vault, key)

        monkeypatch.setattr(Vault, "read", counted)


def test_environment_is_read_once_for_many_agents(tmp_path, monkeypatch):
    count = 100
    with cluster_in(tmp_path) as cluster:
        agents = [Agent(cluster) for _ in range(count)]
        for number, agent in enumerate(agents):
            agent.hello(f"a{number}", slots=1)
        submit(cluster, count, env=ENV)
        for agent in agents:
            assert dict(agent.next_order("duties").jobs[0].environment) == ENV
    reads = Reads(monkeypatch)
    with cluster_in(tmp_path) as cluster:
        agents = [Agent(cluster) for _ in range(count)]
        for number, agent in enumerate(agents):
            order = agent.hello(f"a{number}", slots=1)
            while not (given := dict(order.duties.jobs[0].environment)):
                order = agent.receive()
            assert given == ENV
    assert reads.count == 1


def test_slow_read_delays_only_its_own_task(tmp_path, monkeypatch):
    task = placed_task(tmp_path)
    reads = Reads(monkeypatch)
    reads.gate.clear()
    with cluster_in(tmp_path) as cluster:
        try:
            agent = Agent(cluster)
            (job,) = agent.hello(slots=2).duties.jobs
            assert job.blocked
            other = submit(cluster, 1, env=ENV)
            while other not in (
                jobs := {job.task_id: job for job in agent.next_order("duties").jobs}
            ):
                pass
            assert dict(jobs[other].environment) == ENV
            assert jobs[task].blocked
        finally:
            reads.gate.set()
        while (jobs := {job.task_id: job for job in agent.next_order("duties").jobs})[task].blocked:
            pass
        assert dict(jobs[task].environment) == ENV
        assert reads.count == 1
