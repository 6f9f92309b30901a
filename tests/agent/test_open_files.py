"""An agent raises its open-file limit, and warns if it stays too small."""

import subprocess

import psutil

from tests.coordinator.process import STRATA
from tests.coordinator.test_hostile import wait_until


def run_agent(folder, soft: int, hard: int, *options: str) -> subprocess.Popen:
    limits = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    agent = [*STRATA, "agent", "--coordinator", "127.0.0.1:1", "--data-dir", str(folder), *options]
    with (folder / "agent.log").open("w") as output:
        return subprocess.Popen(["sh", "-c", limits, "sh", *agent], stdout=output, stderr=output)


def test_agent_raises_its_limit_of_open_files(tmp_path):
    agent = run_agent(tmp_path, 128, 3_000, "--slots", "4")
    try:
        process = psutil.Process(agent.pid)
        wait_until(lambda: process.rlimit(psutil.RLIMIT_NOFILE)[0] == 3_000)
    finally:
        agent.kill()
        agent.wait()
    assert "open-file limit" not in (tmp_path / "agent.log").read_text("utf-8")


def test_agent_warns_if_its_file_limit_is_too_small_for_its_slots(tmp_path):
    agent = run_agent(tmp_path, 128, 144, "--slots", "40")
    said = "the open-file limit is 144, enough for 10 workers but not for 40 slots"
    try:
        wait_until(lambda: said in (tmp_path / "agent.log").read_text("utf-8"))
    finally:
        agent.kill()
        agent.wait()
