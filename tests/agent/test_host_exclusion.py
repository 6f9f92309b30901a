"""A host on which scripts fail is excluded, and tasks run elsewhere: a real coordinator, two real
agents, real processes. A person includes the host again."""

import resource
import subprocess

import pytest

from tests.agent.harness import TRAIN, Agent, Api, environment, until
from tests.coordinator.process import STRATA, process

# Fails on the agent `bad` as if its hardware were broken, and trains on any other.
TRAIN_OR_FAIL = (
    """
import os, signal, sys
if os.environ.get("HOST_OF_TEST") == "bad":
    os.kill(os.getpid(), signal.SIGBUS)
"""
    + TRAIN
)


@pytest.fixture
def coordinator(tmp_path):
    with process(tmp_path, heartbeat_interval_s=0.2, exclude_after_tasks=2) as started:
        yield started


@pytest.fixture
def api(coordinator):
    return Api(coordinator)


@pytest.fixture
def hosts(tmp_path, coordinator):
    """The agents `bad` and `good`; `bad` has the most slots, so tasks go there first."""
    started = [
        Agent(tmp_path, coordinator.address, 4, "bad", HOST_OF_TEST="bad"),
        Agent(tmp_path, coordinator.address, 2, "good"),
    ]
    yield started
    for agent in started:
        agent.close()


def test_host_that_fails_its_self_test_is_excluded_and_the_task_runs_elsewhere(
    api, coordinator, tmp_path
):
    """The first host really cannot write: its processes may not make files of more than 1 MB."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN, "utf-8")
    bad = Agent(tmp_path, coordinator.address, 4, "bad", STRATA_SELF_TEST="true")
    resource.prlimit(bad.process.pid, resource.RLIMIT_FSIZE, (2**20, 2**20))
    good = Agent(tmp_path, coordinator.address, 1, "good", STRATA_SELF_TEST="true")
    try:
        until(lambda: len(api.get("/hosts")) == 2, "both agents")
        task = api.submit(script, 1, config={"steps": 3})
        reason = until(lambda: host(api, "bad")["excluded"], "the exclusion")
        assert reason.startswith(f"the self-test before {task} failed: disk: 16 MB cannot be")
        assert host(api, "bad")["excluded_by"] == "self-test"
        assert api.reaches(task, "completed")["committed_steps"] == 3
        for part in ("network: connected", "disk: 16 MB", "arithmetic: a matrix", "memory: 4"):
            assert f"self-test: {part}" in good.said()
    finally:
        bad.close()
        good.close()


def test_task_that_asks_for_a_self_test_is_placed_on_a_host_that_passes_it(
    api, coordinator, tmp_path
):
    """The settings of the agents ask for no test. The first host cannot write files of 16 MB."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN, "utf-8")
    bad = Agent(tmp_path, coordinator.address, 4, "bad")
    resource.prlimit(bad.process.pid, resource.RLIMIT_FSIZE, (2**20, 2**20))
    good = Agent(tmp_path, coordinator.address, 1, "good")
    try:
        until(lambda: len(api.get("/hosts")) == 2, "both agents")
        task = api.submit(script, 1, config={"steps": 3}, self_test=True)
        assert api.reaches(task, "completed")["self_test"]
        assert host(api, "bad")["excluded_by"] == "self-test"
        assert f"the self-test before {task} failed: disk" in host(api, "bad")["excluded"]
        assert "self-test: disk: 16 MB" in good.said()
        second = api.submit(script, 1, config={"steps": 3})
        api.reaches(second, "completed")
        assert good.said().count("self-test: disk: 16 MB") == 1, "this one did not ask"
    finally:
        bad.close()
        good.close()


SHOW_GPUS = (
    """
import os
print("gpus", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""
    + TRAIN
)


def test_excluded_gpu_is_given_to_no_worker(api, coordinator, tmp_path):
    """Two slots with one GPU each. There is no driver here: the GPUs are known by their index."""
    script = tmp_path / "train.py"
    script.write_text(SHOW_GPUS, "utf-8")
    agent = Agent(tmp_path, coordinator.address, 2, "a", CUDA_VISIBLE_DEVICES="0,1")
    try:
        until(lambda: len(api.get("/hosts")) == 1, "the agent")
        words = ("--gpu", "0", "--reason", "its memory is faulty")
        assert run(coordinator, "exclude", "a", *words).stdout == "GPU 0 of a is excluded\n"
        gpus = [
            (gpu["index"], gpu["excluded"], gpu["excluded_by"]) for gpu in host(api, "a")["gpus"]
        ]
        assert gpus == [(0, words[3], "person"), (1, None, None)]
        assert host(api, "a")["usable_slots"] == 1
        assert "GPU 0 is excluded, its memory is faulty" in run(coordinator).stdout
        assert "⊘ excluded" in run(coordinator, "gpus").stdout
        first = api.submit(script, 1, config={"steps": 3})
        api.reaches(first, "completed")
        both = api.submit(script, 2, config={"steps": 3})
        assert api.task(both)["status"] == "queued"
        assert run(coordinator, "include", "a", "--gpu", "0").stdout == "GPU 0 of a is included\n"
        api.reaches(both, "completed")
        for task, gpus in ((first, ["gpus 1"]), (both, ["gpus 0", "gpus 1"])):
            said = api.lines(task_id=task)
            assert sorted(line for line in said if line.startswith("gpus ")) == gpus
        assert run(coordinator, "exclude", "a", "--gpu", "7", "--reason", "r").returncode != 0
    finally:
        agent.close()


def run(coordinator, *words):
    command = [*STRATA, "hosts", *words, "--url", coordinator.http_url]
    return subprocess.run(command, capture_output=True, text=True, env=environment())


def host(api, name):
    return next(each for each in api.get("/hosts") if each["id"] == name)


def test_host_is_excluded_after_failures_and_the_tasks_run_elsewhere(
    api, coordinator, hosts, tmp_path
):
    until(lambda: len(api.get("/hosts")) == 2, "both agents")
    tasks = []
    for name in ("one", "two"):
        script = tmp_path / f"{name}.py"
        script.write_text(TRAIN_OR_FAIL, "utf-8")
        tasks.append(api.submit(script, 1, config={"steps": 3}, max_restarts=5))
    assert api.reaches(tasks[1], "completed")["committed_steps"] == 3
    bad = host(api, "bad")
    assert bad["excluded_by"] == "failures"
    assert "2 different tasks failed here, and their scripts on no other host" in bad["excluded"]
    placed = api.get("/timeline/facts", kinds="TaskPlaced", limit=1)[0]["fields"]["placements"]
    assert {each["agent"] for each in placed.values()} == {"good"}
    assert host(api, "good")["failures"] == 0

    waiting = api.submit(tmp_path / "two.py", 3)
    until(lambda: "excluded is host bad" in api.task(waiting)["reason"], "the reason")
    listed = run(coordinator).stdout
    assert "⊘ excluded" in listed
    assert run(coordinator, "exclude", "good").returncode == 2, "no reason was given"
    excluded = run(coordinator, "exclude", "good", "--reason", "its fan is replaced")
    assert excluded.stdout == "good is excluded\n"
    assert host(api, "good")["excluded_by"] == "person"
    assert run(coordinator, "include", "bad").stdout == "bad is included\n"
    api.reaches(waiting, "starting", "running", "recovering", "failed")
    assert host(api, "bad")["excluded"] is None
    assert run(coordinator, "include", "nowhere").returncode != 0
