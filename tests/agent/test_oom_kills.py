"""A worker that the kernel's OOM killer ends, in a cgroup with a memory limit: the alert, and the
answer of `strata why lost`, which differs if another process killed the worker."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.agent.harness import Agent, Api, environment, until
from tests.coordinator.process import STRATA, process
from tests.limited_memory import entered, limited_cgroup

# Kills itself, and then, in its next start, uses up the memory; each when its file is there.
EATS = """
import os, signal, time, strata
eaten = []
with strata.join() as run:
    while not os.path.exists("finish"):
        time.sleep(0.02)
        start = int(os.environ["STRATA_START"])
        if start == 1 and os.path.exists("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        while start == 2 and os.path.exists("eat"):
            eaten.append(bytearray(b"1") * 2**20)
        run.mark_step(loss=1.0)
"""


@pytest.fixture
def cgroup():
    yield from limited_cgroup()


class LimitedAgent(Agent):
    """An agent in a cgroup, with its workers."""

    def __init__(self, cgroup: Path, *args, **kwargs) -> None:
        self.cgroup = cgroup
        super().__init__(*args, **kwargs)

    def start(self) -> None:
        self.command = entered(self.cgroup, self.command)
        super().start()


def why(coordinator, question, *params):
    command = [*STRATA, "why", question, *params, "--url", coordinator.http_url, "--json"]
    asked = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


def test_oom_kill_is_the_cause_of_a_loss_and_raises_an_alert(tmp_path, cgroup):
    script = tmp_path / "eats.py"
    script.write_text(EATS, "utf-8")
    with process(tmp_path, heartbeat_interval_s=0.2) as coordinator:
        api = Api(coordinator)
        agent = LimitedAgent(
            cgroup, tmp_path, coordinator.address, 1, STRATA_RESOURCE_INTERVAL_S="0.3"
        )

        def lost(count):
            losses = until(
                lambda: len(found := facts("WorkerLost")) == count and found, f"loss {count}"
            )
            at_ms = max(each["time"] for each in [*losses, *facts("WorkerExited")])
            until(
                lambda: any(each["time"] > at_ms + 1_500 for each in facts("HostMeasured")),
                "a measurement after it",
            )
            return why(coordinator, "lost")

        def facts(kind):
            return api.get("/timeline/facts", kinds=kind, limit=1000)

        def alerts():
            return [each for each in api.get("/alerts") if each["rule"] == "oom_kill"]

        try:
            until(lambda: facts("HostMeasured"), "a measurement")
            task = api.submit(script, 1)
            api.reaches(task, "running")
            (tmp_path / "kill").touch()
            killed = lost(1)
            assert alerts() == []
            (tmp_path / "eat").touch()
            eaten = lost(2)
            [alert] = until(alerts, "the alert")
            shown = why(coordinator, "alert", f"alert={alert['id']}")
            (tmp_path / "finish").touch()
            api.reaches(task, "completed")
        finally:
            agent.close()
    assert "signal 9; no OOM kill was counted on its host" in killed["answer"]
    expected = "signal 9; probably killed by the kernel's OOM killer: 1 OOM kill was counted in the"
    assert f"{expected} cgroup of agent a" in eaten["answer"]
    assert any("1 OOM kill was counted" in each["text"] for each in eaten["chain"])
    assert (alert["rule"], alert["subject"], alert["severity"]) == ("oom_kill", "host:a", "error")
    assert alert["evidence"]["cgroup_oom_kills"] == 1
    assert any("measured the health of host a" in each["text"] for each in shown["chain"])
