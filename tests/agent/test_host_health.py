"""The health of hosts, end to end: a real agent, or a worker without one, measures its host; the
coordinator records it and shows it now and at a past moment."""

import json
import socket
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.agent.harness import TRAIN, Agent, Api, environment, until
from tests.coordinator.process import STRATA, process

QUICK = {"heartbeat_interval_s": 0.2}
OFTEN = {"STRATA_RESOURCE_INTERVAL_S": "0.2"}


@pytest.fixture
def coordinator(tmp_path):
    with process(tmp_path, **QUICK) as started:
        yield started


@pytest.fixture
def api(coordinator):
    return Api(coordinator)


@pytest.fixture
def agent(tmp_path, coordinator):
    started = Agent(tmp_path, coordinator.address, 1, "a", **OFTEN)
    yield started
    started.close()


def hosts(api, measured=True):
    """The hosts, once one is there that was measured."""
    return until(
        lambda: [h for h in api.get("/hosts") if h["measured_at"] or not measured], "a measurement"
    )


def test_agent_records_the_health_of_its_host(api, agent, coordinator):
    [host] = hosts(api)
    assert (host["id"], host["agent"]["up"], host["reporter"]) == ("a", True, "a")
    assert host["hostname"] == socket.gethostname()
    health = host["health"]
    assert health["memory_total_bytes"] == psutil.virtual_memory().total
    assert health["cpu_count"] == psutil.cpu_count()
    assert health["gpus"] == [] or health["gpus"][0]["name"]
    later = until(lambda: hosts(api)[0]["measured_at"] > host["measured_at"], "a later one")
    assert later

    page = httpx.get(f"{coordinator.http_url}/metrics").text
    assert f'strata_host_memory_total_bytes{{host="a"}} {health["memory_total_bytes"]}' in page

    [fact, *_] = api.get("/timeline/facts", kinds="HostMeasured", limit=1)
    assert (fact["kind"], fact["fields"]["reporter"]) == ("HostMeasured", "a")
    history = api.get("/timeline/host-health", host="a")
    assert len(history["at"]) == len(history["figures"]["load_1m"]) >= 1
    began = api.get("/timeline/hosts", time_ms=host["measured_at"] - 60_000)
    assert began == [], "the host was not known a minute ago"
    past = api.get("/timeline/hosts", time_ms=host["measured_at"] + 1)
    assert [each["health"]["memory_total_bytes"] for each in past] == [health["memory_total_bytes"]]


def test_history_of_a_host_that_was_never_measured_is_empty(api, agent):
    nobody = api.get("/timeline/host-health", host="no-such-host")
    assert nobody == {"at": [], "figures": {}, "gpus": []}


def test_workers_without_an_agent_report_their_host_once(api, coordinator, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN, "utf-8")
    variables = {"COORDINATOR_ADDR": coordinator.address, "TMPDIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment(**variables, **OFTEN, WORKER_ID=name),
        )
        for name in ("w0", "w1")
    ]
    try:
        until(lambda: len(api.get("/workers")) == 2, "both workers")
        [host] = hosts(api)
        assert (host["id"], host["agent"]) == (socket.gethostname(), None)
        assert host["health"]["memory_total_bytes"] == psutil.virtual_memory().total
        until(lambda: hosts(api)[0]["measured_at"] > host["measured_at"], "a later measurement")
        facts = api.get("/timeline/facts", kinds="HostMeasured", limit=100)
        reporters = {fact["fields"]["reporter"] for fact in facts}
        assert reporters == {host["reporter"]}, "two workers report the same host"
    finally:
        (tmp_path / "finish").touch()
        for worker in workers:
            worker.wait(30)


def test_hosts_are_listed_in_the_terminal(api, agent, coordinator):
    hosts(api)
    command = [*STRATA, "hosts", "--url", coordinator.http_url]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    header, row = shown.stdout.splitlines()[:2]
    assert header.split()[:3] == ["host", "status", "slots"]
    assert row.split()[:4] == ["a", "●", "up", "0/1"]
    lines = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(lines)["id"] == "a"
