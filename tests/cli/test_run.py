"""Guards `strata run`: a script runs on several workers, survives losses, and ends with an exit
code."""

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from strata.core.tasks.task_lifecycle import UNSAVED_EXIT_CODE
from tests.agent.harness import Agent, worker_pids
from tests.cli.conftest import strata as strata_verb
from tests.cli.runs import run, script, seen, url_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "counter.py"


def test_run_completes_with_a_summary_and_a_code(folder):
    code, output = run(folder, "train.py", "--workers", "2", "--config", "steps=20")
    assert code == 0, output
    assert "completed  train-1: every worker finished" in output
    assert re.search(r"20 steps in .* 2 workers, 0 losses, 0 recoveries", output)
    assert "joined train-1-w0 in generation 1" in output
    assert not worker_pids(folder)


TRAINED = """
import numpy as np, strata
with strata.join({where}) as run:
    state = run.restore({{"weights": np.zeros(10)}})
    for _ in range(3):
        state["weights"] += 1
        run.mark_step()
"""


def test_final_state_is_saved_without_any_setting(folder):
    code, output = run(folder, script(folder, TRAINED.format(where="")), "--data-dir", "kept")
    assert code == 0, output
    assert [path.name for path in folder.glob("kept/checkpoints/*/*/*.json")] == [
        "step-00000003-1.json"
    ]


def test_failed_final_checkpoint_is_in_the_summary_and_the_exit_code(folder):
    (folder / "blocked").write_text("a file where a folder should be")
    where = f"checkpoint_dir={str(folder / 'blocked')!r}"
    code, output = run(folder, script(folder, TRAINED.format(where=where)))
    assert code == UNSAVED_EXIT_CODE, output
    assert re.search(r"completed .*every worker finished, final checkpoint failed: ", output)
    assert "the final state was not saved" in output


def test_workers_that_kill_did_not_reach_are_reported(folder):
    code, output = run(folder, "train.py", "--config", "steps=1", "--kill", "2")
    assert code == 0, output
    assert "2 of 2 workers were not killed: the task ended before" in output


def test_each_line_is_delivered_once(folder):
    code, output = run(folder, "train.py", "--config", "steps=2")
    assert code == 0, output
    assert output.count("joined train-1-w0 in generation 1") == 1


def test_arguments_and_typed_config_reach_the_script(folder):
    name = script(
        folder,
        "import sys, strata\nwith strata.join() as run:\n    run.mark_step()\n"
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
    running.wait_for(seen("continues from step"), "recovery")
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


def test_run_says_which_worker_became_rank_0(folder, started):
    running = started("train.py", "--workers", "2")
    running.wait_for(seen("generation 1 trains"), "training")
    os.kill(worker_pids(folder)["train-1-w0"], signal.SIGKILL)
    running.wait_for(seen("generation 3 trains; rank 0 is now w1"), "recovery")
    (folder / "finish").touch()
    assert running.ended() == 0
    assert "generation 1 trains\n" in "".join(running.out), "the first rank 0 is no news"


@pytest.mark.slow
def test_example_survives_a_kill(folder, started):
    running = started(str(EXAMPLE), "--workers", "4", "--config", "steps=150")
    running.wait_for(seen("generation 1 trains"), "training")
    os.kill(worker_pids(folder)["counter-1-w2"], signal.SIGKILL)
    assert running.ended() == 0, running.out
    assert "1 loss, 1 recovery" in "".join(running.out)


def test_ctrl_c_stops_gracefully(folder, started):
    running = started("train.py", "--workers", "2")
    running.wait_for(seen("generation 1 trains"), "training")
    code = running.end(signal.SIGINT)
    assert code == 130
    output = "".join(running.out)
    assert "stopped  train-1: stopped by Ctrl-C; every worker left" in output
    assert "Traceback" not in output + "".join(running.err)
    assert not worker_pids(folder)


def test_second_ctrl_c_ends_at_once(folder, started):
    name = script(
        folder,
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready')\nwhile True:\n    time.sleep(0.05)\n" + "import strata\nstrata.join()\n",
    )
    running = started(name, "--stop-grace-s", "60")
    running.wait_for(seen("ready"), "start")
    running.process.send_signal(signal.SIGINT)
    running.wait_for(seen("stopped  script-1"), "the end of the task")
    assert running.end(signal.SIGINT) == 130
    assert not worker_pids(folder)


@pytest.mark.slow
def test_with_the_policy_stop_a_loss_is_a_failure(folder):
    name = script(
        folder,
        "import os, strata\nwith strata.join() as run:\n    run.mark_step()\n    os._exit(4)\n",
    )
    code, output = run(folder, name, "--policy", "stop")
    assert code == 1, output
    assert "the policy is stop" in output


def test_config_that_is_not_key_value_is_refused(folder):
    code, output = run(folder, "train.py", "--config", "lr")
    assert code == 2
    assert "'lr' is not KEY=VALUE" in output


@pytest.mark.slow
def test_next_run_ends_the_workers_of_a_killed_run(folder, started):
    killed = started("train.py", "--workers", "2")
    killed.wait_for(seen("generation 1 trains"), "training")
    orphans = set(worker_pids(folder).values())
    killed.process.kill()
    killed.process.wait(10)
    assert set(worker_pids(folder).values()) == orphans
    code, output = run(folder, "train.py", "--config", "steps=5")
    assert code == 0, output
    assert not worker_pids(folder)


QUICK = {"STRATA_REATTACH_GRACE_S": "2", "STRATA_HEARTBEAT_INTERVAL_S": "0.5"}


@pytest.mark.slow
def test_next_run_in_the_folder_continues_a_killed_run(folder, started):
    killed = started("train.py", "--workers", "2", "--data-dir", "kept", **QUICK)
    killed.wait_for(seen("generation 1 trains"), "training")
    killed.process.kill()
    killed.process.wait(10)
    (folder / "finish").touch()
    code, output = run(folder, "train.py", "--workers", "2", "--data-dir", "kept", **QUICK)
    assert code == 0, output
    assert "train-1 starts from step 0: nothing is saved" in output
    assert "completed  train-1" in output


def test_folder_that_cannot_be_written_is_an_error(folder):
    code, output = run(folder, "train.py", "--data-dir", "/proc/nothing")
    assert code == 4
    assert "strata: /proc/nothing: No such file or directory" in output
    assert "Traceback" not in output


def test_run_prints_the_command_to_look_back(folder):
    _, output = run(folder, "train.py", "--config", "steps=5")
    (where,) = re.findall(r"look back: strata timeline --data (\S+)", output)
    shown = strata_verb("timeline", "--data", where, cwd=folder).stdout
    assert "train-1 went from running to completed" in shown


def test_open_shows_the_dashboard_in_the_browser(folder, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    browser.chmod(0o755)
    # Patient: the browser starts beside the run.
    wait = "import os, time\nwhile not os.path.exists('opened'): time.sleep(0.01)\n"
    name = script(folder, wait + "import strata\nwith strata.join():\n    pass\n")
    code, output = run(folder, name, "--open", BROWSER=str(browser), STRATA_TOKEN="a&b")
    assert code == 0, output
    (address,) = re.findall(r"dashboard +(\S+)", output)
    assert (folder / "opened").read_text() == f"{address}/?token=a%26b\n"


def test_open_without_a_desktop_prints_a_note(folder):
    code, output = run(folder, "train.py", "--config", "steps=1", "--open", DISPLAY="", BROWSER="")
    assert code == 0, output
    assert "there is no desktop to open a browser on" in output


def test_run_with_url_runs_on_a_coordinator_elsewhere(folder, cluster):
    agent = Agent(folder, f"127.0.0.1:{cluster.running.grpc_port}", slots=1)
    try:
        code, output = run(folder, "train.py", "--config", "steps=3", "--url", cluster.url)
    finally:
        agent.close()
    assert code == 0, output
    assert [task["status"] for task in cluster.get("tasks")] == ["completed"]


@pytest.mark.slow
def test_submit_stop_and_restart_use_a_running_coordinator(folder, started):
    running = started("train.py", "--slots", "1")
    running.wait_for(seen("generation 1 trains"), "training")
    url = url_of(running)

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
    assert running.end(signal.SIGINT) == 130


STOPPING = """
import numpy as np
import strata

with strata.join() as run:
    state = run.restore({"w": np.zeros(4)})
    rows = strata.open_arrays({"x": np.zeros((64, 2))})
    for batch in run.batches(rows, global_batch=4, epochs=10_000):
        with run.step():
            state["w"] += run.average(np.ones(4))
        if run.steps == 5 and run.rank == 0:
            run.stop("the loss is small enough")
    print("not reached")
"""


def test_stop_by_the_script_is_a_clean_end_with_its_reason(tmp_path):
    name = script(tmp_path, STOPPING)
    given = ("--workers", "2", "--data-dir", str(tmp_path / "data"))
    code, output = run(tmp_path, name, *given)
    assert code == 0, output
    assert "stopped  script-1" in output
    assert "the loss is small enough" in output
    assert "not reached" not in output
