"""Guards `strata run`: a script really runs on several workers, is healed, and ends with a code."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.agent.harness import TRAIN, environment, worker_pids
from tests.cli.conftest import Started
from tests.cli.conftest import strata as strata_verb

EXAMPLE = Path(__file__).parents[2] / "examples" / "counter.py"
RUN_S = 60


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")
    yield tmp_path
    for pid in worker_pids(tmp_path).values():
        os.killpg(pid, signal.SIGKILL)


def run(folder, *arguments):
    """Runs to the end: the exit code and what was written."""
    ended = subprocess.run(
        [sys.executable, "-c", "from strata.cli import main; main()", "run", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    return ended.returncode, ended.stdout + ended.stderr


def script(folder, text):
    (folder / "script.py").write_text(text, "utf-8")
    return "script.py"


@pytest.fixture
def started(folder):
    """Starts a run and gives it; it ends with the test."""
    begun = []

    def start(*arguments):
        begun.append(Started("run", *arguments, cwd=folder))
        return begun[-1]

    yield start
    for each in begun:
        each.discard()


def seen(text):
    return lambda run: any(text in line for line in run.out)


def test_a_run_completes_with_a_summary_and_a_code(folder):
    code, output = run(folder, "train.py", "--workers", "2", "--config", "steps=20")
    assert code == 0, output
    assert "completed  train-1: every worker finished" in output
    assert re.search(r"20 steps in .* 2 workers, 0 losses, 0 recoveries", output)
    assert "joined train-1-w0 in generation 1" in output
    assert not worker_pids(folder)


def test_each_line_is_delivered_once(folder):
    code, output = run(folder, "train.py", "--config", "steps=2")
    assert code == 0, output
    assert output.count("joined train-1-w0 in generation 1") == 1


def test_arguments_and_typed_config_reach_the_script(folder):
    name = script(
        folder,
        "import sys, strata\nwith strata.join() as run:\n    run.step()\n"
        "    print(sys.argv[1:], run.config)\n",
    )
    options = ["--config", "lr=0.1", "--config", "layers=[1, 2]", "--config", "kind=adam"]
    code, output = run(folder, name, *options, "--name", "my run", "--", "--fast", "x")
    assert code == 0, output
    assert "['--fast', 'x'] {'lr': 0.1, 'layers': [1, 2], 'kind': 'adam'}" in output
    assert "my-run-1" in output


def test_a_killed_worker_is_replaced_and_the_run_completes(folder, started):
    running = started("train.py", "--workers", "3")
    running.wait_for(seen("generation 1 trains"), "training")
    before = worker_pids(folder)
    os.kill(before["train-1-w1"], signal.SIGKILL)
    running.wait_for(seen("goes on from step"), "recovery")
    after = worker_pids(folder)
    assert {name for name in before if after.get(name) == before[name]} == {
        "train-1-w0",
        "train-1-w2",
    }
    (folder / "finish").touch()
    assert running.ended() == 0
    output = "".join(running.out)
    assert "train-1-w1 was lost: " in output
    assert "1 loss, 1 recovery" in output


@pytest.mark.slow
def test_the_example_survives_a_kill(folder, started):
    running = started(str(EXAMPLE), "--workers", "4", "--config", "steps=150")
    running.wait_for(seen("generation 1 trains"), "training")
    os.kill(worker_pids(folder)["counter-1-w2"], signal.SIGKILL)
    assert running.ended() == 0, running.out
    assert "1 loss, 1 recovery" in "".join(running.out)


def test_ctrl_c_stops_gracefully(folder, started):
    running = started("train.py", "--workers", "2")
    running.wait_for(seen("generation 1 trains"), "training")
    code, _ = running.end(signal.SIGINT)
    assert code == 130
    output = "".join(running.out)
    assert "stopped  train-1" in output
    assert "asked to stop" in output
    assert "Traceback" not in output + "".join(running.err)
    assert not worker_pids(folder)


def test_a_second_ctrl_c_does_not_wait(folder, started):
    name = script(
        folder,
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready')\nwhile True:\n    time.sleep(0.05)\n" + "import strata\nstrata.join()\n",
    )
    running = started(name, "--stop-grace-s", "60")
    running.wait_for(seen("ready"), "start")
    running.process.send_signal(signal.SIGINT)
    running.wait_for(seen("stopped"), "the stop")
    assert running.end(signal.SIGINT)[0] == 130
    assert not worker_pids(folder)


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("raise RuntimeError('at import')", "exit code 1 before it joined", "at import"),
        ("print('nothing to do')", "exit code 0 before it joined", "nothing to do"),
    ],
)
def test_a_script_that_cannot_train_is_a_restart_loop(folder, text, reason, line):
    code, output = run(folder, script(folder, text), "--workers", "2")
    assert code == 93, output
    assert "restart loop" in output
    assert reason in output
    assert line in output
    assert not worker_pids(folder)


@pytest.mark.slow
def test_a_script_that_raises_while_it_trains_shows_its_traceback(folder):
    name = script(
        folder,
        "import strata\nwith strata.join():\n    raise ValueError('the loss is no number')\n",
    )
    code, output = run(folder, name, "--max-restarts", "1")
    assert code == 93, output
    assert "ValueError: the loss is no number" in output


@pytest.mark.slow
def test_with_the_policy_stop_a_loss_is_a_failure(folder):
    name = script(
        folder, "import os, strata\nwith strata.join() as run:\n    run.step()\n    os._exit(4)\n"
    )
    code, output = run(folder, name, "--policy", "stop")
    assert code == 1, output
    assert "the policy is stop" in output


def test_a_script_that_is_not_there_is_refused_before_anything_starts(folder):
    code, output = run(folder, "nothing.py")
    assert code == 2
    assert "there is no script nothing.py" in output
    assert not (folder / "strata-data").exists()


def test_a_config_that_is_no_pair_is_refused(folder):
    code, output = run(folder, "train.py", "--config", "lr")
    assert code == 2
    assert "'lr' is no KEY=VALUE" in output


def test_too_few_slots_are_waited_for_with_the_reason(folder, started):
    running = started("train.py", "--workers", "3", "--slots", "2")
    running.wait_for(seen("it needs 3 slots and 2 are free"), "reason")
    code, _ = running.end(signal.SIGINT)
    assert code == 130


def test_a_script_that_forks_and_leaves_a_child_leaves_none_behind(folder):
    name = script(
        folder,
        "import os, time, strata\nwith strata.join() as run:\n    run.step()\n"
        "if os.fork() == 0:\n    time.sleep(600)\n",
    )
    code, output = run(folder, name)
    assert code == 0, output
    assert not worker_pids(folder)


@pytest.mark.slow
def test_much_output_and_binary_output_do_no_harm(folder):
    name = script(
        folder,
        "import sys, strata\nwith strata.join() as run:\n    run.step()\n"
        "    sys.stdout.buffer.write(bytes(range(256)) * 100)\n"
        "    for _ in range(200):\n        print('y' * 100_000)\n    print('the end')\n",
    )
    code, output = run(folder, name)
    assert code == 0, output[-2000:]
    assert "completed" in output


@pytest.mark.slow
def test_what_a_killed_run_left_behind_is_ended_by_the_next(folder, started):
    killed = started("train.py", "--workers", "2")
    killed.wait_for(seen("generation 1 trains"), "training")
    orphans = set(worker_pids(folder).values())
    killed.process.kill()
    killed.process.wait(10)
    assert set(worker_pids(folder).values()) == orphans
    code, output = run(folder, "train.py", "--config", "steps=5")
    assert code == 0, output
    assert not worker_pids(folder)


@pytest.mark.slow
def test_submit_stop_and_restart_speak_to_a_coordinator(folder, started):
    running = started("train.py", "--slots", "1")
    running.wait_for(seen("generation 1 trains"), "training")
    url = re.search(r"dashboard +(\S+)", "".join(running.out))[1]

    def verb(*arguments):
        ended = strata_verb(*arguments, "--url", url, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def status(task):
        return httpx.get(f"{url}/api/tasks/{task}").json()["status"]

    second = verb("submit", "train.py", "--name", "second", "--config", "steps=3")
    assert second == "second-2"
    assert status(second) == "queued"
    assert verb("stop", second) == "second-2 is stopped"
    third = verb("restart", second)
    assert (third, status(third)) == ("second-3", "queued")
    assert verb("stop", third) == "second-3 is stopped"
    assert running.end(signal.SIGINT)[0] == 130
