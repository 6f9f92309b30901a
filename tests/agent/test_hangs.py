"""A hang explains itself: one of four workers hangs, and `why hang` names its rank and place.

Each worker is a real process under a real agent, or without one. Where tracing is allowed, the
stacks come from py-spy; the fallbacks are tested with py-spy taken away.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.harness import Agent, Api, environment, until
from tests.coordinator.process import process

SCRIPT = Path(__file__).with_name("hanging.py")
QUICK = {
    "heartbeat_interval_s": 0.2,
    "heartbeat_timeout_s": 8.0,
    "hang_floor_s": 1.0,
    "hang_report_s": 4.0,
    "barrier_timeout_s": 2.0,
    "stop_grace_s": 0.5,
}
LINES = SCRIPT.read_text("utf-8").splitlines()


def line_of(text):
    """The line of the script that contains a text first."""
    return next(number for number, line in enumerate(LINES, 1) if text in line)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """A coordinator, and an agent with a slot for each of four workers."""
    folder = tmp_path_factory.mktemp("hangs")
    with process(folder, **QUICK) as started:
        agent = Agent(folder, started.address, 4)
        try:
            yield Api(started)
        finally:
            agent.close()


@pytest.fixture
def hangs(api):
    """Run a scene on four workers until its hang is declared; returns the answer."""
    tasks = []

    def run(scene, sign="WorkerLost"):
        tasks.append(api.submit(SCRIPT, 4, args=[scene], max_restarts=0))
        return declared(api, tasks[-1], sign)

    yield run
    for task in tasks:
        api.post(f"/tasks/{task}/stop")


def declared(api, task, sign="WorkerLost"):
    """The answer when the collection is over and the hang was declared."""

    def recorded(kind):
        return any(each["task"] == task for each in api.facts(kind))

    until(lambda: recorded("StackCollectionEnded") and recorded(sign), sign)
    return api.get("/timeline/why", question="hang", task=task)


def test_hang_in_data_loading(hangs):
    answer = hangs("data")
    place = f"load_batch at hanging.py:{line_of('time.sleep(600)')}"
    assert answer["answer"].startswith(f"yes: rank 2 is in {place}; ranks 0, 1 and 3 wait in avera")
    assert "heartbeats arrive, but step 12 is" in answer["answer"]
    assert sum("stacks by py-spy" in each for each in answer["findings"]) == 4


def test_rank_that_skips_the_collective(hangs):
    answer = hangs("collective")["answer"]
    assert answer.startswith("yes: rank 2 is in skip_average at hanging.py:")
    assert "ranks 0, 1 and 3 wait in average" in answer


def test_main_thread_that_holds_the_gil_in_c_code(hangs):
    """Its heartbeats stop, so the stacks are collected shortly before it is lost."""
    answer = hangs("gil")
    assert answer["answer"].startswith("yes: rank 2 is in hold_the_gil at hanging.py:")
    (seen,) = [each for each in answer["findings"] if each.startswith("rank 2 (")]
    assert "no report of the worker itself" in seen


def test_stopped_process(hangs):
    """It answers no signal and cannot be traced, but its memory can be read."""
    answer = hangs("stopped")
    stopped = "rank 2 is stopped (SIGSTOP or a debugger) in stop_itself at hanging.py:"
    assert answer["answer"].startswith(f"yes: {stopped}")
    assert any("rank 2 (" in each and "stacks by py-spy in" in each for each in answer["findings"])


def test_barrier_that_one_rank_never_reaches(hangs):
    answer = hangs("barrier", "BarrierFailed")["answer"]
    assert answer.startswith("yes: rank 2 is in skip_average at hanging.py:")
    assert "ranks 0, 1 and 3 wait at barrier evaluation" in answer
    assert "is not complete after 2 s" in answer


def test_hang_without_an_agent(api, tmp_path):
    """The session thread of each worker reports for it."""
    task = api.post("/tasks", name="alone", worker_count=4)["task_id"]
    given = environment(COORDINATOR_ADDR=api.coordinator.address, STRATA_TASK=task)
    command = [sys.executable, str(SCRIPT), "data"]
    workers = [subprocess.Popen(command, env=given, cwd=tmp_path) for _ in range(4)]
    try:
        answer = declared(api, task)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert answer["answer"].startswith("yes: rank 2 is in load_batch at hanging.py:")
    assert "ranks 0, 1 and 3 wait in average" in answer["answer"]
    assert sum("stacks by worker" in each for each in answer["findings"]) == 4


def test_user_collects_stacks_of_a_torchrun_script(api, tmp_path):
    """The worker is a wrapper; the script that it started is found below it."""
    script = tmp_path / "plain.py"
    script.write_text("import time\n\ndef train():\n    time.sleep(600)\n\ntrain()\n")
    given = {"entry": "strata.sdk.torchrun", "args": [str(script)], "worker_count": 1}
    task = api.post("/tasks", name="plain", **given)["task_id"]
    try:
        api.reaches(task, "running")
        seen = until(lambda: (found := collected(api, task))["place"] and found, "the script")
        why = api.get("/timeline/why", question="hang", task=task)
    finally:
        api.post(f"/tasks/{task}/stop")
    assert seen["place"] == "train at plain.py:4"
    assert [each["program"] for each in seen["processes"]] == ["strata.sdk.torchrun", "plain.py"]
    assert why["verdict"] == "open"
    assert "rank 0 is in train at plain.py:4; a user asked for the stacks" in why["answer"]


def collected(api, task):
    """The only worker of a new collection of stacks."""
    asked = api.post(f"/tasks/{task}/stacks")

    def over():
        found = api.get(f"/tasks/{task}/stacks")
        return (
            found
            if found and found["ended"] and found["collection"] == asked["collection"]
            else None
        )

    (worker,) = until(over, "the end of the collection")["workers"]
    return worker
