"""Guards the code blocks of the documentation: the Python ones run as they stand, and the commands
run in a folder with a coordinator, an agent and a recorded run in which a worker was lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from strata.cli.support import exit_codes
from tests.agent.harness import worker_pids
from tests.cli.conftest import MAIN, Started, environment, free_port, until
from tests.docs import blocks
from tests.sdk.harness import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PRELUDE = Path(__file__).with_name("prelude.py").read_text("utf-8")
BLOCKS = blocks.all_blocks()
COMMAND_S = 120.0
PYTHON = [
    pytest.param(each, id=each.place) for each in BLOCKS if each.language == "python" and each.runs
]
SHELL = sorted(
    (each for each in BLOCKS if each.language == "bash" and each.runs),
    key=lambda block: block.page != "docs/guides/story.md",  # it starts train-2, which others name
)

STORY = "docs/guides/story.md"
TRAIN = next(each.text for each in BLOCKS if (each.page, each.title) == (STORY, "train.py"))
KILLED = "train-1-w3"


@pytest.mark.parametrize("block", PYTHON)
def test_python_block_runs(block, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "block.py").write_text(f"{PRELUDE}\n{block.text}", "utf-8")
    ended = subprocess.run(
        [sys.executable, "block.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def world(tmp_path):
    """A folder with `train.py` and `strata-data`, and a function that runs a verb in it."""
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")
    grpc, http = free_port(), free_port()
    variables = {"STRATA_GRPC_PORT": str(grpc), "STRATA_HTTP_PORT": str(http)}
    started = []

    def run(*arguments):
        return subprocess.run(
            [*MAIN, *arguments],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    try:
        started.append(Started("up", cwd=tmp_path, **variables))
        until(lambda: run("status").returncode == 0, 60)
        address = f"127.0.0.1:{grpc}"
        agent = ("agent", "--coordinator", address, "--slots", "4", "--data-dir", "agent")
        # Workers wait for a save that is being written, so that there is one of step 60.
        saves = {"STRATA_CHECKPOINT_WHEN_BUSY": "wait"}
        started.append(Started(*agent, cwd=tmp_path, **variables, **saves))
        submitted = run("submit", "train.py", "--workers", "4")
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        kill_after_a_checkpoint(f"http://127.0.0.1:{http}", tmp_path)
        until(lambda: json.loads(run("tasks", "--json").stdout)["status"] == "completed", 240)
        yield run, tmp_path
    finally:
        for each in reversed(started):
            each.discard()


def kill_after_a_checkpoint(url, folder):
    """Kill a worker as the story does, as soon as a checkpoint is there."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        until(lambda: "completed" in client.get("/api/checkpoints").text, 120)
    os.kill(worker_pids(folder)[KILLED], signal.SIGKILL)


def newest_run(folder):
    """The name of the newest folder of `strata run`."""
    return max(each.name for each in (folder / "strata-data" / "runs").glob("*-train"))


def expected_codes(verb):
    """A worker that is killed with SIGKILL may not have stored its last record: then the audit is
    unproven, which is its answer and no failure of the command."""
    return {exit_codes.DONE, exit_codes.UNPROVEN} if verb == "audit" else {exit_codes.DONE}


def test_commands_run(world):
    """One test for all pages, because the coordinator and the run take longer than a command."""
    run, folder = world
    assert SHELL
    failed, killed = [], "RUN"
    for block in SHELL:
        for command in block.commands:
            given = blocks.strata_arguments(command)
            ended = run(*(each.replace("RUN", killed) for each in given))
            if ended.returncode not in expected_codes(given[0]):
                failed.append(f"{block.place}: {command}\n{ended.stdout}{ended.stderr}"[-400:])
            if "--kill" in given:  # the run that the next commands ask about
                killed = newest_run(folder)
    assert not failed, "\n\n".join(failed)
