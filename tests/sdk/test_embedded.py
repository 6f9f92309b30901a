"""`strata.join()` without a coordinator address: a process trains with an embedded one."""

import json
import os
import signal
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.coordinator.process import STRATA
from tests.sdk.harness import clean_environment, until

TRAIN = """
import os, sys, time
import numpy as np
import strata

with strata.join(capture=False) as run:
    print("joined", run.rank, run.world_size, run.task_id, flush=True)
    data = strata.open_arrays({"x": np.arange(64)}, name="numbers")
    for batch in run.batches(data, batch_size=8, epochs=1):
        while os.environ.get("HOLD") and run.steps == 3 and not run.stop_requested:
            time.sleep(0.01)
        if not run.mark_step(loss=1.0):
            break
    print("steps", run.steps, flush=True)
"""

LAUNCHERS = ("WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "JOB_COMPLETION_INDEX", "TORCHELASTIC_")


def environment(**given):
    kept = clean_environment(**given)
    return {k: v for k, v in kept.items() if k in given or not k.startswith(LAUNCHERS)}


@pytest.fixture
def start(tmp_path):
    """Start a script in its own folder, as `python train.py`."""
    started = []

    (tmp_path / "temp").mkdir()

    def begin(script=TRAIN, **given):
        file = tmp_path / "train.py"
        file.write_text(script, "utf-8")
        process = subprocess.Popen(
            [sys.executable, str(file)],
            cwd=tmp_path,
            env=environment(**given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_folder(tmp_path):
    (folder,) = (tmp_path / "strata-data" / "runs").iterdir()
    return folder


def companions(process):
    """The embedded coordinators of a process."""
    children = psutil.Process(process.pid).children()
    return [each for each in children if "companion" in " ".join(each.cmdline())]


def committed(url):
    """The number of committed steps of the task."""
    return httpx.get(f"{url}/api/tasks/default-1", trust_env=False).json()["committed_steps"]


def strata_command(*arguments):
    command = [*STRATA, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment())


def log_says(tmp_path, text):
    return text in (run_folder(tmp_path) / "run.log").read_text("utf-8")


def test_script_alone_trains_and_is_recorded(tmp_path, start):
    output, errors = start().communicate(timeout=60)
    assert output.splitlines() == ["joined 0 1 default-1", "steps 8"]
    (line,) = errors.splitlines()
    folder = run_folder(tmp_path)
    assert folder.name.endswith("-train")
    assert line.startswith("strata: no coordinator address is set, training alone")
    assert "dashboard http://127.0.0.1:" in line
    assert line.endswith(f"data {folder.relative_to(tmp_path)}")
    assert log_says(tmp_path, "task default-1 is completed")
    audit = strata_command("audit", "default-1", "--data", folder, "--json")
    assert json.loads(audit.stdout)["verdict"] == "proven"
    assert audit.returncode == 0
    timeline = strata_command("timeline", "--data", folder, "--kind", "RunEnded", "--json")
    _, ended = map(json.loads, timeline.stdout.splitlines())
    assert ended["summary"] == "the process ended (done) after 8 steps"


def test_embedded_coordinator_ends_with_the_script(start):
    process = start(HOLD="1")
    assert process.stdout.readline().startswith("joined")
    (companion,) = companions(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert not companion.is_running()


@pytest.mark.parametrize("spool", ["default", "shared"])
def test_events_of_a_script_that_is_killed_are_delivered_by_its_coordinator(tmp_path, start, spool):
    """Every step that the coordinator knows is in the audit, and no file remains."""
    shared = {"STRATA_SPOOL_DIR": str(tmp_path / "spool")} if spool == "shared" else {}
    process = start(HOLD="1", TMPDIR=str(tmp_path / "temp"), **shared)
    assert process.stdout.readline().startswith("joined")
    (companion,) = companions(process)
    url = process.stderr.readline().partition("dashboard ")[2].split(",")[0]
    until(lambda: committed(url) == 3, what="three steps")
    process.kill()
    process.wait()
    until(lambda: not companion.is_running(), what="the coordinator's end")
    assert log_says(tmp_path, "is lost")
    folder = run_folder(tmp_path)
    audit = strata_command("audit", "default-1", "--data", folder, "--json")
    assert (json.loads(audit.stdout)["verdict"], audit.returncode) == ("proven", 0)
    left = [path for suffix in ("events", "newest") for path in tmp_path.rglob(f"*.{suffix}")]
    assert left == []


def test_interrupt_reaches_the_script_alone(tmp_path, start):
    process = start(HOLD="1")
    assert process.stdout.readline().startswith("joined")
    (companion,) = companions(process)
    assert os.getsid(companion.pid) != os.getsid(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert not companion.is_running()
    assert log_says(tmp_path, "worker worker-1 left: interrupted")
    assert log_says(tmp_path, "task default-1 is stopped")
    assert not log_says(tmp_path, "is completed")


def test_runs_of_one_process_share_a_coordinator(tmp_path, start):
    output, errors = start(TRAIN + TRAIN).communicate(timeout=60)
    assert [line for line in output.splitlines() if "joined" in line] == [
        "joined 0 1 default-1",
        "joined 0 1 default-2",
    ]
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("SLURM_NTASKS", "4"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("PMI_SIZE", "2"),
        ("JOB_COMPLETION_INDEX", "0"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ],
)
def test_embedded_coordinator_is_refused_for_several_workers(tmp_path, start, name, value):
    process = start(**{name: value})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"there are several workers ({name}={value}): each would train alone" in errors
    assert "COORDINATOR_ADDR" in errors
    assert not (tmp_path / "strata-data").exists()


def test_one_worker_by_a_launcher_trains_alone(start):
    process = start(WORLD_SIZE="1", RANK="0", SLURM_NTASKS="1")
    assert process.communicate(timeout=60)[0].endswith("steps 8\n")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [("world_size=2", "world_size=2"), ("task='other'", "task 'other' is set, but no coord")],
)
def test_arguments_that_need_a_coordinator_are_refused(start, given, reason):
    _, errors = start(f"import strata\nstrata.join({given})").communicate(timeout=60)
    assert reason in errors


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_processes_of_multiprocessing_are_refused(start, how):
    script = f"""
import multiprocessing
import strata

def work():
    strata.join()

if __name__ == "__main__":
    for _ in range(2):
        each = multiprocessing.get_context({how!r}).Process(target=work)
        each.start()
        each.join()
"""
    _, errors = start(script).communicate(timeout=60)
    assert errors.count("this process was started by multiprocessing") == 2


def test_coordinator_that_cannot_start_is_an_error_with_its_reason(tmp_path, start):
    (tmp_path / "file").touch()
    _, errors = start(STRATA_DATA_DIR=str(tmp_path / "file")).communicate(timeout=60)
    assert "the embedded coordinator did not start" in errors
    assert str(tmp_path / "file") in errors


def test_join_below_a_wrapper_is_refused_by_its_name(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import strata\nstrata.join()\n")
    command = [*STRATA, "run", "--wrap", "torchrun", "--max-restarts", "0", str(file)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "run it without --wrap torchrun" in ended.stdout


def test_notebook_trains_alone(tmp_path):
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(cwd=str(tmp_path), env=environment())
    printed = []

    def noted(message):
        printed.append(message["content"].get("text") or message["content"].get("ename", ""))

    try:
        client.execute_interactive(TRAIN, timeout=60, output_hook=noted)
        assert "steps 8" in "".join(printed)
        assert "dashboard http://127.0.0.1:" in "".join(printed)
        assert run_folder(tmp_path).name.endswith("-notebook")
        (companion,) = companions(kernel.provisioner.process)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    until(lambda: not companion.is_running(), what="the coordinator's end")


NAMED = """
import os, signal
import numpy as np
import strata

for life in range(int(os.environ.get("RUNS", "1"))):
    with strata.join(name="nb", capture=False, checkpoint_every=1) as run:
        seen = run.restore({"seen": np.zeros(64)})["seen"]
        data = strata.open_arrays({"x": np.arange(64)}, name="numbers")
        for epoch in run.epochs(int(os.environ["EPOCHS"]) + life):
            for batch in run.batches(data, batch_size=8):
                with run.step():
                    seen[batch["x"]] += 1
                if run.steps == int(os.environ.get("KILL_AT", "-1")):
                    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        print(run.task_id, run.steps, seen.min(), seen.max(), flush=True)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_run_with_a_name_continues_in_a_new_process(start, signal_number):
    first = start(NAMED, EPOCHS="2", KILL_AT="11", SIGNAL=str(int(signal_number)))
    first.communicate(timeout=60)
    out, err = start(NAMED, EPOCHS="3").communicate(timeout=60)
    assert out.split() == ["default-1", "24", "3.0", "3.0"], err


def test_run_with_a_name_continues_in_the_same_process(start):
    out, err = start(NAMED, EPOCHS="2", RUNS="2").communicate(timeout=60)
    assert out.splitlines() == ["default-1 16 2.0 2.0", "default-1 24 3.0 3.0"], err


def test_name_is_refused_if_a_coordinator_is_named(start):
    process = start(NAMED, EPOCHS="1", COORDINATOR_ADDR="127.0.0.1:1")
    assert "names its tasks itself" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
