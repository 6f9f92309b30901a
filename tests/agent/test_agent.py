"""`strata agent` with a real coordinator and workers, each of which may be killed."""

import os
import signal
import time

import httpx
import pytest

from strata.cli.support.exit_codes import DENIED, REFUSED
from tests.agent.harness import TRAIN, Agent, Api, until, worker_pids
from tests.coordinator.process import process

QUICK = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 3.0, "stop_grace_s": 10.0}


@pytest.fixture
def coordinator(tmp_path):
    with process(tmp_path, **QUICK) as started:
        yield started


@pytest.fixture
def api(coordinator):
    return Api(coordinator)


@pytest.fixture
def agents(tmp_path, coordinator):
    started = []

    def start(slots, name="a"):
        started.append(Agent(tmp_path, coordinator.address, slots, name))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture
def train(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN, "utf-8")
    return file


def test_task_runs_and_stops(api, agents, train):
    agents(2)
    task = api.submit(train, 2)
    api.reaches(task, "running")
    assert len(api.task(task)["worker_ids"]) == 2
    api.post(f"/tasks/{task}/stop")
    assert (
        api.reaches(task, "stopped")["reason"] == "asked to stop through the API; every worker left"
    )
    until(lambda: not worker_pids(train.parent), "the workers' end")
    assert api.lines(search="asked to stop")


@pytest.mark.slow
def test_task_waits_for_slots_and_shows_why(api, agents, train):
    agents(1)
    task = api.submit(train, 2, config={"steps": 3})
    assert "needs 2 slots" in api.reaches(task, "queued")["reason"]
    until(lambda: "1 is free" in api.task(task)["reason"], "the slot's being seen")
    agents(1, "b")
    assert api.reaches(task, "completed")["committed_steps"] == 3


def test_killed_worker_is_replaced(api, agents, train):
    agents(2)
    task = api.submit(train, 2)
    api.reaches(task, "running")
    before = worker_pids(train.parent)
    os.kill(before[f"{task}-w1"], signal.SIGKILL)
    until(lambda: api.facts("RecoveryChosen")[1:], "a recovery")
    api.reaches(task, "running")
    after = worker_pids(train.parent)
    assert after[f"{task}-w0"] == before[f"{task}-w0"]
    assert after[f"{task}-w1"] != before[f"{task}-w1"]
    assert api.facts("WorkerLost")[0]["signal"] in ("exit", "connection")
    (train.parent / "finish").touch()
    api.reaches(task, "completed")


def test_exit_that_is_reported_late_does_not_make_a_crash_a_false_alarm(tmp_path, train):
    """The agent does not run when its worker is killed, and reports the exit seconds later."""
    with process(tmp_path, **QUICK | {"heartbeat_timeout_s": 30.0}) as started:
        api, agent = Api(started), Agent(tmp_path, started.address, 1)
        try:
            task = api.submit(train, 1)
            api.reaches(task, "running")
            agent.process.send_signal(signal.SIGSTOP)
            (pid,) = worker_pids(tmp_path).values()
            os.kill(pid, signal.SIGKILL)
            until(lambda: api.facts("WorkerLost"), "the loss")
            late_s = time.monotonic() + 1.5
            until(lambda: time.monotonic() > late_s)
            agent.process.send_signal(signal.SIGCONT)
            until(lambda: api.facts("WorkerExited"), "the exit")
            answer = api.get("/timeline/why", question="lost")
        finally:
            agent.process.send_signal(signal.SIGCONT)
            agent.close()
    assert answer["verdict"] == "unknown", answer["answer"]
    assert "ended with signal 9, reported later" in answer["answer"]


def test_environment_reaches_the_worker_but_no_api_response(api, agents, tmp_path):
    agents(1)
    script = tmp_path / "look.py"
    script.write_text("import os\nprint('it is', os.environ['KEY'])\n" + TRAIN, "utf-8")
    task = api.submit(script, 1, env={"KEY": "s3cret"}, config={"steps": 1})
    api.reaches(task, "completed")
    assert "it is s3cret" in api.lines(task_id=task)
    assert "s3cret" not in str(api.task(task)["env_names"])


@pytest.mark.slow
def test_workers_survive_the_coordinator(api, agents, train, coordinator):
    agent = agents(2)
    task = api.submit(train, 2)
    api.reaches(task, "running")
    before = worker_pids(train.parent)
    coordinator.kill()
    until(lambda: "session with the coordinator ended" in agent.said(), "the agent's noticing")
    assert worker_pids(train.parent) == before
    coordinator.start()
    generation = api.task(task)["generation"]
    steps = api.task(task)["committed_steps"]
    until(lambda: api.task(task)["committed_steps"] > steps, "progress")
    assert worker_pids(train.parent) == before
    assert api.task(task)["generation"] == generation
    (train.parent / "finish").touch()
    api.reaches(task, "completed")


@pytest.mark.slow
def test_workers_survive_their_agent_and_are_adopted_by_the_next(api, agents, train):
    agent = agents(2)
    task = api.submit(train, 2)
    api.reaches(task, "running")
    before = worker_pids(train.parent)
    agent.kill()
    agent.start()
    until(lambda: agent.said().count("adopted") == 2, "the adoption")
    steps = api.task(task)["committed_steps"]
    until(lambda: api.task(task)["committed_steps"] > steps, "progress")
    assert worker_pids(train.parent) == before
    os.kill(before[f"{task}-w0"], signal.SIGKILL)
    until(lambda: worker_pids(train.parent).get(f"{task}-w0") not in (None, before[f"{task}-w0"]))
    (train.parent / "finish").touch()
    api.reaches(task, "completed")
    assert [agent["incarnation"] for agent in api.get("/agents")] == [1]


@pytest.mark.slow
def test_adopted_workers_of_a_stopped_task_are_ended(api, agents, tmp_path):
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready')\nwhile True:\n    time.sleep(0.05)\n",
        "utf-8",
    )
    agent = agents(1)
    task = api.submit(script, 1)
    until(lambda: "ready" in api.lines(task_id=task), "the start")
    agent.kill()
    api.post(f"/tasks/{task}/stop")
    api.reaches(task, "stopped")
    assert worker_pids(tmp_path)
    agent.start()
    until(lambda: not worker_pids(tmp_path), "the orphan's end")


@pytest.mark.slow
def test_agent_ends_its_workers_gracefully_on_sigterm(api, agents, train):
    agent = agents(1)
    task = api.submit(train, 1)
    until(lambda: api.lines(task_id=task, search=f"joined {task}-w0 in"), "the training loop")
    assert agent.stop() == 0
    assert not worker_pids(train.parent)
    until(lambda: api.lines(task_id=task, search="asked to stop"), "its last words")


def test_rejected_token_ends_the_agent(tmp_path):
    with process(tmp_path, token="right") as coordinator:
        agent = Agent(tmp_path, coordinator.address, 1, "b", token="wrong")
        assert agent.process.wait(20) == DENIED
        assert "a valid token is needed" in agent.said()
        accepted = Agent(tmp_path, coordinator.address, 1, token="right")
        headers = {"Authorization": "Bearer right"}
        agents = f"{coordinator.http_url}/api/agents"
        until(lambda: httpx.get(agents, headers=headers).json(), "the agent's being let in")
        assert accepted.stop() == 0


def test_second_agent_of_the_same_folder_is_refused(api, agents):
    agents(1)
    until(lambda: api.get("/agents"), "the first agent")
    second = agents(1)
    assert second.process.wait(20) == REFUSED
    assert "another agent is running in" in second.said()


def test_agent_logs_its_connection_state(api, agents, coordinator):
    agent = agents(2)
    until(lambda: f"to the coordinator at {coordinator.address}" in agent.said(), "its arrival")
    coordinator.kill()
    until(
        lambda: "cannot connect to the coordinator yet, retrying" in agent.said(), "its complaint"
    )
