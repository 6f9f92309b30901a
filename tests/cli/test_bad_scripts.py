"""Guards the outcome of scripts that cannot train: each ends in a clear state, with the reason
and its output; no process is left behind and no other task is affected."""

import signal

from tests.agent.harness import Agent, Api, worker_pids
from tests.cli.runs import run, script, seen
from tests.coordinator.conftest import coordinator

JOINED = "import os, signal, sys, time, strata\nwith strata.join() as run:\n    run.mark_step()\n"


def test_missing_script_is_refused_before_anything_starts(folder):
    code, output = run(folder, "nothing.py")
    assert code == 4
    assert "script nothing.py does not exist" in output
    assert not (folder / "strata-data").exists()


def test_script_missing_on_the_agents_host_is_reported(folder):
    with coordinator(folder / "data") as serving:
        api = Api(serving)
        agent = Agent(folder, f"127.0.0.1:{serving.grpc_port}", slots=1)
        try:
            task = api.submit(folder / "nothing.py", 1, max_restarts=1)
            failed = api.reaches(task, "failed")
            assert failed["exit_code"] == 93
            assert "exit code 2 before it joined" in failed["reason"]
            assert any("nothing.py" in line for line in api.lines(task_id=task))
            program = api.submit(folder / "no-program", 1, max_restarts=1)
            failed = api.reaches(program, "failed")
            assert "exit code 127" in failed["reason"]
            assert any("cannot be started" in line for line in api.lines(task_id=program))
        finally:
            agent.close()


def test_script_that_raises_at_import_is_a_restart_loop_with_traceback(folder):
    name = script(folder, "raise RuntimeError('at import')")
    code, output = run(folder, name, "--workers", "2")
    assert code == 93, output
    assert "restart loop" in output
    assert "exit code 1 before it joined" in output
    assert "RuntimeError: at import" in output
    assert not worker_pids(folder)


def test_script_that_raises_while_training_shows_its_traceback(folder):
    name = script(folder, JOINED + "    raise ValueError('the loss is no number')\n")
    code, output = run(folder, name, "--max-restarts", "1")
    assert code == 93, output
    assert "ValueError: the loss is no number" in output


def test_script_that_never_joins_fails_once_with_a_hint(folder):
    code, output = run(folder, script(folder, "print('nothing to do')"), "--workers", "2")
    assert code == 1, output
    assert "exit code 0 and never joined" in output
    assert "strata.join()" in output
    assert output.count("nothing to do") <= 2
    assert not worker_pids(folder)


def test_script_without_steps_completes(folder):
    code, output = run(folder, script(folder, "import strata\nwith strata.join():\n    pass\n"))
    assert code == 0, output
    assert "completed  script-1" in output
    assert "steps in" not in output


def test_forked_children_of_a_script_are_ended(folder):
    name = script(folder, JOINED + "if os.fork() == 0:\n    time.sleep(600)\n")
    code, output = run(folder, name)
    assert code == 0, output
    assert not worker_pids(folder)


def test_last_lines_after_100_mb_of_output_are_shown(folder):
    name = script(
        folder,
        JOINED + "    for _ in range(100):\n        sys.stdout.write(('y' * 99 + '\\n') * 10_000)\n"
        "    print('the end')\n",
    )
    code, output = run(folder, name)
    assert code == 0, output[-2000:]
    assert "the end" in output
    assert "completed" in output


def test_binary_output_is_escaped(folder):
    name = script(
        folder, JOINED + "    os.write(1, bytes(range(256)) * 4096)\n    print('the end')\n"
    )
    code, output = run(folder, name)
    assert code == 0, output[-2000:]
    assert "the end" in output
    assert "\x1b" not in output


def test_script_that_ignores_sigterm_is_killed_after_the_grace(folder, started):
    name = script(
        folder,
        "import signal, time, strata\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "with strata.join() as run:\n    while True:\n        time.sleep(0.02); run.mark_step()\n",
    )
    running = started(name, "--stop-grace-s", "1")
    running.wait_for(seen("generation 1 trains"), "training")
    assert running.end(signal.SIGINT) == 130
    output = "".join(running.out)
    assert "killed: it did not end within 1 s" in output
    assert "stopped" in output
    assert not worker_pids(folder)


def test_more_workers_than_slots_are_waited_for_with_the_reason(folder, started):
    running = started("train.py", "--workers", "3", "--slots", "2")
    running.wait_for(seen("needs 3 slots, 2 of 2 are free"), "reason")
    assert running.end(signal.SIGINT) == 130


def test_bad_task_does_not_disturb_a_good_one(folder, started):
    good = started("train.py", "--slots", "2")
    good.wait_for(seen("generation 1 trains"), "training")
    before = worker_pids(folder)
    code, _ = run(folder, script(folder, "import os\nos.kill(os.getppid(), 0)\nos.abort()\n"))
    assert code == 93
    assert worker_pids(folder) == before
    (folder / "finish").touch()
    assert good.ended() == 0
