"""`strata submit --workdir` with real agents that share no path with the submitter."""

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.agent import harness
from tests.agent.harness import Agent, Api, environment, worker_pids
from tests.coordinator.process import STRATA, process

SCRIPT = """
import os, time, strata
import helper
from pathlib import Path
with strata.join() as run:
    print("it runs", helper.NAME, "with", Path("data/words.txt").read_text(), "in", os.getcwd())
    print("mode", oct(os.stat("tool.sh").st_mode & 0o777), os.environ["PWD"] == os.getcwd())
    while run.steps < run.config.get("steps", 10**9):
        time.sleep(0.01)
        try:
            if not run.mark_step(loss=1.0):
                break
        except strata.GenerationChanged:
            run.sync()
"""
QUICK = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 60.0, "stop_grace_s": 10.0}


pytestmark = pytest.mark.timeout(300)


def until(condition, what, wait_s=100.0):
    """Wait for a condition, also on a busy machine."""
    return harness.until(condition, what, wait_s)


def reaches(api, task, state):
    """Wait until a task is in a state."""
    return until(lambda: (found := api.task(task))["status"] == state and found, f"{task} {state}")


@pytest.fixture
def project(tmp_path):
    """A folder that only the submitter has."""
    folder = tmp_path / "laptop" / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    (folder / "helper.py").write_text("NAME = 'first'\n", "utf-8")
    (folder / "data" / "words.txt").write_text("words", "utf-8")
    (folder / "tool.sh").write_text("#!/bin/sh\n", "utf-8")
    (folder / "tool.sh").chmod(0o750)
    (folder / ".gitignore").write_text("*.log\n", "utf-8")
    (folder / "old.log").write_text("not sent", "utf-8")
    return folder


@pytest.fixture
def coordinator(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    with process(folder, **QUICK) as started:
        yield started


@pytest.fixture
def api(coordinator):
    return Api(coordinator)


@pytest.fixture
def hosts(tmp_path, coordinator):
    started = []

    def start(name, slots=1):
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        started.append(Agent(home, coordinator.address, slots, name, HOME=str(home)))
        return started[-1]

    yield start
    for agent in started:
        agent.close()
        for place in (agent.folder / "data" / "agents").glob("*/workdirs/*"):
            for pid in worker_pids(place).values():
                os.killpg(pid, signal.SIGKILL)


def strata(coordinator, *words, cwd=None):
    url = ["--url", coordinator.http_url]
    return subprocess.run(
        [*STRATA, *words, *url], cwd=cwd, capture_output=True, text=True, env=environment()
    )


def submit(coordinator, project, *words):
    given = ["submit", "--workdir", str(project), "train.py", *words]
    done = strata(coordinator, *given, cwd=project.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def unpacked(home, name):
    """The folders of tasks on a host."""
    found = (home / "data" / "agents" / name / "workdirs").iterdir()
    return sorted(path for path in found if path.name != "cache")


@pytest.mark.slow
def test_two_hosts_run_the_folder_of_the_submitter(tmp_path, coordinator, api, hosts, project):
    hosts("host-a")
    hosts("host-b")
    task, said = submit(coordinator, project, "--workers", "2")
    assert "5 files" in said
    reaches(api, task, "running")
    lines = until(
        lambda: len(found := api.lines(task_id=task, search="it runs")) >= 2 and found, "two lines"
    )
    assert all("it runs first with words in" in line for line in lines)
    places = {Path(line.partition(" in ")[2]) for line in lines}
    assert {place.parts[len(tmp_path.parts)] for place in places} == {"host-a", "host-b"}
    assert all(not (place / "old.log").exists() for place in places)
    assert set(api.lines(task_id=task, search="mode 0o")) == {"mode 0o750 True"}

    (recorded,) = api.facts("WorkdirRecorded")
    files = {file["path"]: file for file in recorded["files"]}
    helper = hashlib.sha256((project / "helper.py").read_bytes()).hexdigest()
    assert files["helper.py"]["sha256"] == helper
    assert sorted(files) == [".gitignore", "data/words.txt", "helper.py", "tool.sh", "train.py"]
    shown = api.task(task)["workdir"]
    assert (shown["digest"], shown["files"]) == (recorded["digest"], 5)
    stored = api.get(f"/workdirs/{shown['digest']}")
    assert [file["path"] for file in stored["files"]] == sorted(files)

    # The task keeps what was submitted, also for a worker that starts later.
    (project / "helper.py").write_text("NAME = 'second'\n", "utf-8")
    until(lambda: api.task(task)["committed_steps"] > 3, "steps")
    running = {worker: pid for place in places for worker, pid in worker_pids(place).items()}
    os.kill(running[f"{task}-w1"], signal.SIGKILL)
    lines = until(
        lambda: len(found := api.lines(task_id=task, search="it runs")) >= 3 and found, "a third"
    )
    assert all("first" in line for line in lines)

    # A new task gets the changed file, and only that one is sent.
    api.post(f"/tasks/{task}/stop")
    reaches(api, task, "stopped")
    other, said = submit(coordinator, project, "--config", "steps=3")
    assert f"sent {len((project / 'helper.py').read_bytes())} bytes" in said
    reaches(api, other, "completed")
    assert "it runs second" in api.lines(task_id=other, search="it runs")[0]

    # The folder of a task starts again from the coordinator, whatever the submitter has now.
    for path in project.rglob("*.py"):
        path.unlink()
    again = strata(coordinator, "restart", task, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    reaches(api, again.stdout.split()[0], "running")
    lines = until(lambda: api.lines(task_id=again.stdout.split()[0], search="it runs"), "a line")
    assert "it runs first" in lines[0]


@pytest.mark.slow
def test_task_continues_in_its_folder_or_in_a_new_one(tmp_path, coordinator, api, hosts, project):
    hosts("host-a")
    task, _ = submit(coordinator, project, "--config", "steps=3")
    reaches(api, task, "completed")
    (place,) = unpacked(tmp_path / "host-a", "host-a")
    (place / "results.txt").write_text("mine", "utf-8")
    (place / "helper.py").write_text("NAME = 'changed here'\n", "utf-8")
    (project / "helper.py").write_text("NAME = 'second'\n", "utf-8")
    done = strata(coordinator, "continue", task, "--config", "steps=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    until(lambda: len(api.lines(task_id=task, search="it runs")) >= 2, "a second life")
    reaches(api, task, "completed")
    assert {line.split()[2] for line in api.lines(task_id=task, search="it runs")} == {"first"}
    assert (place / "results.txt").read_text("utf-8") == "mine"
    new = ["--workdir", str(project), "--config", "steps=7"]
    done = strata(coordinator, "continue", task, *new, cwd=tmp_path)
    assert "workdir" in done.stdout, done.stderr
    until(lambda: len(api.lines(task_id=task, search="it runs")) >= 3, "a third life")
    reaches(api, task, "completed")
    assert "second" in api.lines(task_id=task, search="it runs")[2]
    assert len({each["digest"] for each in api.facts("WorkdirRecorded")}) == 2


def test_damaged_folder_at_the_coordinator_fails_the_task(
    tmp_path, coordinator, api, hosts, project
):
    task, _ = submit(coordinator, project, "--config", "steps=3")
    helper = hashlib.sha256((project / "helper.py").read_bytes()).hexdigest()
    stored = tmp_path / "cluster" / "data" / "workdirs" / "pieces" / helper
    stored.write_bytes(b"NAME = 'other'\n")
    hosts("host-a")
    reason = reaches(api, task, "failed")["reason"]
    assert helper in reason
    assert "damaged" in reason
    assert api.lines(task_id=task, search="it runs") == []
    # Sending the folder again replaces the damaged file.
    again, said = submit(coordinator, project, "--config", "steps=3")
    assert "sent 15 bytes" in said
    reaches(api, again, "completed")


@pytest.mark.slow
def test_agent_that_is_killed_while_fetching_leaves_no_half_folder(
    tmp_path, coordinator, api, hosts, project
):
    (project / "weights.bin").write_bytes(os.urandom(64 * 2**20))
    agent = hosts("host-a")
    given = ["--workdir", str(project), "train.py", "--config", "steps=3"]
    submitted = subprocess.Popen(
        [*STRATA, "submit", *given, "--url", coordinator.http_url],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    workdirs = tmp_path / "host-a" / "data" / "agents" / "host-a" / "workdirs"
    pieces = workdirs / "cache" / "pieces"
    until(lambda: pieces.is_dir() and any(pieces.iterdir()), "the first piece", 60)
    agent.kill()
    for place in workdirs.iterdir():  # a folder that has its name is whole
        if place.name != "cache" and place.suffix != ".new":
            assert (place / "weights.bin").read_bytes() == (project / "weights.bin").read_bytes()
    task = submitted.communicate(timeout=60)[0].strip()
    agent.start()
    reaches(api, task, "completed")
    (place,) = unpacked(tmp_path / "host-a", "host-a")
    assert (place / "weights.bin").read_bytes() == (project / "weights.bin").read_bytes()


def test_refused_folders_name_what_to_change(tmp_path, project):
    folder = tmp_path / "small"
    folder.mkdir()
    with process(folder, **QUICK, max_workdir_bytes=10_000) as coordinator:
        (project / "data" / "big.bin").write_bytes(bytes(20_000))
        given = ["submit", "--workdir", str(project)]
        large = strata(coordinator, *given, "train.py", cwd=project)
        assert large.returncode != 0
        assert "max_workdir_bytes is 10,000" in large.stderr
        assert "data/big.bin (20,000 bytes)" in large.stderr
        (project / ".strataignore").write_text("data/\n", "utf-8")
        outside = strata(coordinator, *given, "project/train.py", cwd=project.parent)
        assert "is not in --workdir" in outside.stderr
        assert "use train.py" in outside.stderr
        done = strata(coordinator, *given, "train.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        api = Api(coordinator)
        task = api.post("/tasks", name="a", entry="train.py") and api.get("/tasks")[-1]["id"]
        assert api.task(task)["workdir"]["files"] == 6
