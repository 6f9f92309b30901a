"""Guards the mistakes of the first hour: each is reported once, and with what to do about it."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import strata as package
from strata.cli.support.failures.worker_lines import HEAD, WorkerLines
from strata.coordinator.logs.log_entries import LogEntry
from tests.agent.harness import environment
from tests.cli.conftest import MAIN
from tests.cli.runs import RUN_S, python_without, run, script
from tests.limited_memory import entered, limited_cgroup

JOINED = "import os, time, strata\nwith strata.join() as run:\n    run.mark_step()\n"


@pytest.fixture
def cgroup():
    yield from limited_cgroup()


def test_import_error_is_printed_once_for_all_workers_and_restarts(folder):
    code, output = run(folder, script(folder, "import not_there\n"), "--workers", "2")
    assert code == 93, output
    assert output.count(HEAD) == 1, output
    assert output.count("    import not_there\n") == 1
    assert output.count("w0") >= 2, "each repetition is still a line"
    assert "the same traceback again: ModuleNotFoundError: No module named 'not_there'" in output
    assert f"where not_there is not installed: {sys.executable} -m pip install not_there" in output


def test_different_tracebacks_are_all_printed(folder):
    name = script(
        folder, "import os\nraise ValueError(f'of start {os.environ[\"STRATA_START\"]}')\n"
    )
    code, output = run(folder, name, "--max-restarts", "2")
    assert code == 93, output
    assert [output.count(f"ValueError: of start {n}") for n in (1, 2, 3)] == [1, 1, 1]
    assert output.count(HEAD) == 3


def test_module_in_the_working_folder_is_found_by_the_advice(folder):
    (folder / "own.py").write_text("")
    (folder / "scripts").mkdir()
    code, output = run(folder, script(folder, "import own\n", "scripts/train.py"))
    assert code == 93, output
    assert f"own is in {folder}" in output
    assert f"add --env PYTHONPATH={folder}" in output


def test_model_that_changed_before_a_resume_is_refused_once(folder):
    name = script(
        folder,
        "import numpy as np, strata\nwith strata.join() as run:\n"
        "    state = run.restore({'w': np.zeros(run.config['size'])})\n"
        "    while run.steps < run.config['steps']:\n        state['w'] += 1\n"
        "        run.mark_step()\n",
    )
    given = ["--workers", "2", "--data-dir", "kept"]
    code, output = run(folder, name, *given, "--config", "size=4", "--config", "steps=3")
    assert code == 0, output
    changed = ["--resume", "--config", "size=6", "--config", "steps=9"]
    code, output = run(folder, name, *given, *changed)
    assert code == 1, output
    assert output.count(HEAD) == 1, output
    assert "'w' was saved as F64 [4] but would be loaded into F64 [6]" in output
    assert "restore into the model and optimizer that were saved" in output


def test_wrong_dataset_path_says_where_it_was_looked_for(folder):
    loop = "    for _ in run.batches('no/such/folder', global_batch=4):\n        pass\n"
    code, output = run(folder, script(folder, JOINED + loop), "--max-restarts", "0")
    assert code == 93, output
    assert f"{folder}/no/such/folder does not exist" in output
    assert "strata.open_dataset(PATH)" in output
    opened = "    strata.open_dataset('no/such/folder')\n"
    code, output = run(folder, script(folder, JOINED + opened), "--max-restarts", "0")
    assert code == 93, output
    relative = f"no/such/folder is relative to the folder of `strata run`, {folder}"
    assert relative in output


def test_path_of_a_dataset_has_to_be_opened(folder):
    loop = "    for _ in run.batches('train.py', global_batch=4):\n        pass\n"
    code, output = run(folder, script(folder, JOINED + loop), "--max-restarts", "0")
    assert code == 93, output
    assert "'train.py' is a path, not the id of a registered dataset" in output
    assert "run.batches(strata.open_dataset('train.py'), …)" in output


@pytest.mark.parametrize(
    "missing",
    ["run.restore({'w': np.zeros(2)}, from_='no/such/folder')", "next(iter(run.batches('x.npy')))"],
)
def test_weights_or_data_that_do_not_exist_fail_the_task_at_once(folder, missing):
    name = script(
        folder, f"import numpy as np, strata\nwith strata.join() as run:\n    {missing}\n"
    )
    code, output = run(folder, name, "--workers", "2")
    assert code == 1, output
    assert output.count(HEAD) == 1, output
    assert "restart loop" not in output
    assert "generation 3" not in output


def test_script_that_never_joins_is_told_what_to_add(folder):
    code, output = run(folder, script(folder, "print('train')\n"))
    assert code == 1, output
    assert "put the training into `with strata.join() as run:`" in output


def test_port_in_use_names_the_process(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, output = run(folder, "train.py", "--http-port", port)
    assert code == 5, output
    assert f"port {port} on 127.0.0.1 is in use by " in output
    assert f"(pid {os.getpid()})" in output
    assert "choose another port with --http-port" in output


def test_exception_of_memory_says_how_to_use_less(folder):
    name = script(folder, JOINED + "    x = bytearray(2**60)\n")
    code, output = run(folder, name, "--max-restarts", "0")
    assert code == 93, output
    assert "MemoryError" in output
    assert "what to do: use less memory in each worker (a smaller batch or model)" in output


def test_worker_killed_by_a_memory_limit_is_called_out_of_memory(folder, cgroup):
    eats = "    eaten = []\n    while True:\n        eaten.append(bytearray(b'1') * 2**20)\n"
    ended = subprocess.run(
        entered(cgroup, [*MAIN, "run", script(folder, JOINED + eats), "--max-restarts", "0"]),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 93, output
    assert "its process ended with signal 9" in output
    assert "says whether an OOM kill was counted" in output
    assert "use less memory in each worker" in output


def test_missing_torch_says_how_to_install_it(folder):
    name = script(folder, "import torch\n")
    python, variables = python_without(folder, "torch", "functorch")
    ended = subprocess.run(
        [python, "-m", "strata", "run", name, "--workers", "2"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 93, output
    assert output.count(HEAD) == 1, output
    assert "No module named 'torch'" in output
    assert f"{python} -m pip install 'strata-runtime[torch]'" in output


def older_python() -> str:
    """A Python older than 3.11 on this machine, or skip."""
    beside = sorted(Path(sys.base_prefix).parent.glob("3.[6-9]*/bin/python3"))
    named = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    for python in [*map(str, beside), *filter(None, named)]:
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    pytest.skip("no Python older than 3.11 is installed")


def test_older_python_is_refused_with_its_version():
    python, folder = older_python(), str(Path(package.__file__).parents[1])
    ended = subprocess.run(
        [python, "-m", "strata"], env=environment(PYTHONPATH=folder), capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "ImportError: Strata needs Python 3.11 or newer, and " in ended.stderr
    assert "python3.11 -m pip install strata-runtime" in ended.stderr


def line(message, worker="t-w0", stream="stderr"):
    return LogEntry(
        id="log_0",
        timestamp=0,
        level="info",
        message=message,
        source="worker",
        worker_id=worker,
        stream=stream,
    )


def test_lines_of_two_workers_at_the_same_time_stay_in_their_tracebacks():
    lines = WorkerLines()
    first, second = (HEAD, "  File a", "E: x"), (HEAD, "  File b", "E: y")
    mixed = [
        line(text, worker)
        for pair in zip(first, second, strict=True)
        for text, worker in zip(pair, ("t-w0", "t-w1"), strict=True)
    ]
    assert [each.text for each in lines.taken(mixed)] == [*first, *second]
    assert [each.text for each in lines.taken([line("step 1"), line("", stream="stdout")])] == [
        "step 1",
        "",
    ]
    again = lines.taken(mixed)
    assert [(each.worker, each.text, each.again) for each in again] == [
        ("t-w0", "E: x", True),
        ("t-w1", "E: y", True),
    ]
    assert lines.exceptions == ["E: x", "E: y"]


def test_traceback_that_is_not_complete_is_not_lost():
    lines = WorkerLines()
    assert lines.taken([line(HEAD), line("  File a")]) == []
    assert [each.text for each in lines.rest()] == [HEAD, "  File a"]


def test_chained_traceback_that_repeats_leaves_no_pieces():
    chain = [
        HEAD,
        "  File a",
        "E: x",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        HEAD,
        "  File b",
        "E: y",
        "\tmore of y",
        "the end",
    ]
    lines = WorkerLines()
    assert [each.text for each in lines.taken(map(line, chain))] == chain
    again = lines.taken(map(line, chain))
    assert [(each.text, each.again) for each in again] == [
        ("E: x", True),
        ("E: y", True),
        ("the end", False),
    ]
