"""Two coordinators on one PostgreSQL store: when the leader fails the other one takes over, and the
workers train on with nothing lost or stored twice."""

import os
import signal

import httpx
import pytest

from strata.core.cluster import CODEC
from strata.store.postgres import PostgresReader
from strata.store.sqlite import SqliteStore
from tests.cli.conftest import started_verb, strata
from tests.postgres_server import serving
from tests.sdk.harness import CoordinatorProcess, listening, until
from tests.sdk.test_restart import assert_nothing_lost_or_twice

WORKERS = 4
SETTINGS = {"heartbeat_interval_s": 0.5, "heartbeat_timeout_s": 20, "reattach_grace_s": 60}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres():
    with serving() as server:
        yield server


class Coordinator(CoordinatorProcess):
    """`strata up` on a store that another one may lead."""

    def _listens(self):
        assert self.process.poll() is None, (self.folder / "coordinator.log").read_text()
        return listening(self.http_port)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def mode(self):
        try:
            return httpx.get(f"{self.url}/api/status", trust_env=False).json().get("mode", "away")
        except httpx.HTTPError:
            return "away"

    def leads(self):
        return listening(self.port) and self.mode == "live"


@pytest.fixture
def pair(postgres, tmp_path):
    """Two coordinators; the first one leads."""
    started = []
    store = postgres.empty()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        started.append(Coordinator(tmp_path / name, store=store, lease_s=3, **SETTINGS))
        until(started[0].leads)
    until(lambda: started[1].mode == "standby")
    yield started
    for each in started:
        each.process.send_signal(signal.SIGCONT)
        each.close()


@pytest.fixture
def crowd(pair, trainees):
    """Workers that know the addresses of both coordinators."""
    address = ",".join(each.address for each in pair)
    given = {"world_size": WORKERS, "step_s": 0.005, "barrier_every": 10}
    crowd = [trainees(address, "train", worker_id=f"w{n}", **given) for n in range(WORKERS)]
    for each in crowd:
        each.says("joined")
        each.says("met", count=3)
    return crowd


def go_on(crowd):
    reached = max(len(each.said) for each in crowd)
    for each in crowd:
        each.says("met", count=reached + 3)


def assert_undisturbed(crowd, leader, postgres):
    """End the task; no worker was lost or restarted, and every event is stored once."""
    joined = [each.says("joined") for each in crowd]
    leader.stop_task(joined[0]["task_id"])
    assert [each.ends() for each in crowd] == [0] * WORKERS
    ended = [each.says("ending") for each in crowd]
    same = ("worker_id", "incarnation", "pid", "generation", "rank")
    assert [[e[n] for n in same] for e in ended] == [[j[n] for n in same] for j in joined]
    with PostgresReader(postgres.url, CODEC) as store:
        assert_nothing_lost_or_twice(store, crowd)
        kinds = [event.kind for event in store.read()]
        assert [event.seq for event in store.read()] == list(range(store.position))
        assert store.verify() == []
    assert "WorkerLost" not in kinds
    assert kinds.count("WorkerRegistered") == WORKERS
    return kinds


def test_killed_leaders_are_replaced_while_the_workers_train(pair, crowd, postgres, tmp_path):
    first, second = pair
    for leader, other in ((first, second), (second, first)):
        leader.kill()
        until(other.leads)
        go_on(crowd)
        leader.start()
        until(lambda standby=leader: standby.mode == "standby")
        refused = httpx.post(f"{leader.url}/api/tasks/none/stop", trust_env=False)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_leading"
        # The verbs find the coordinator that leads.
        urls = f"{leader.url},{other.url}"
        shown = strata("workers", "--url", urls, "--json", cwd=tmp_path)
        assert shown.stdout.count("\n") == WORKERS, shown
        stopped = strata("stop", "none", "--url", urls, cwd=tmp_path)
        assert "there is no task 'none'" in stopped.stderr
    kinds = assert_undisturbed(crowd, first, postgres)
    assert kinds.count("CoordinatorStarted") == 3


def test_stopped_leader_is_deposed_and_follows_when_it_continues(pair, crowd, postgres):
    first, second = pair
    os.kill(first.process.pid, signal.SIGSTOP)
    until(second.leads)
    go_on(crowd)
    os.kill(first.process.pid, signal.SIGCONT)
    until(lambda: first.mode == "standby")
    go_on(crowd)
    assert_undisturbed(crowd, second, postgres)


def test_agent_follows_the_leader(pair, tmp_path):
    first, second = pair
    both = f"{first.address},{second.address}"
    with started_verb("agent", "--coordinator", both, "--slots", "1", cwd=tmp_path):
        until(lambda: heard(first) == [True])
        os.kill(first.process.pid, signal.SIGSTOP)
        until(lambda: second.leads() and heard(second) == [True])
        os.kill(first.process.pid, signal.SIGCONT)


def heard(coordinator):
    """Of each agent, whether this coordinator has had a heartbeat."""
    shown = httpx.get(f"{coordinator.url}/api/agents", trust_env=False).json()
    return [each["up"] and each["last_heartbeat"] > 0 for each in shown]


def test_restarted_postgres_interrupts_nobody(pair, crowd, postgres):
    postgres.stop(signal.SIGQUIT)
    postgres.start()
    leader = until(lambda: next((each for each in pair if each.leads()), None))
    go_on(crowd)
    assert_undisturbed(crowd, leader, postgres)


def test_standby_in_the_same_data_folder_takes_over(tmp_path, trainees):
    first = Coordinator(tmp_path, **SETTINGS)
    second = Coordinator(tmp_path, "--standby", **SETTINGS)
    try:
        until(lambda: second.mode == "standby")
        address = f"{first.address},{second.address}"
        given = {"world_size": 2, "step_s": 0.005, "barrier_every": 10}
        crowd = [trainees(address, "train", worker_id=f"w{n}", **given) for n in range(2)]
        for each in crowd:
            each.says("met", count=3)
        first.kill()
        until(second.leads)
        go_on(crowd)
        second.stop_task(crowd[0].says("joined")["task_id"])
        assert [each.ends() for each in crowd] == [0, 0]
        second.stop()
    finally:
        first.close()
        second.close()
    with SqliteStore(tmp_path / "data" / "log.db", CODEC) as store:
        assert_nothing_lost_or_twice(store, crowd)
