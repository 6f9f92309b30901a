"""Stacks read from outside a real process: by py-spy, or else by the signal."""

import subprocess
import sys
import time

import psutil
import pytest

from strata.agent import stack_collector
from strata.agent.stack_collector import collect
from strata.core.workers.stack_reports import place_of
from tests.agent.harness import until

MAX_BYTES = 64 * 1024
HOLDS_THE_GIL = """
import ctypes, sys, threading, time
from pathlib import Path
from strata.sdk.record.own_stacks import register_signal

def load():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(60)

{register}
threading.Thread(target=time.sleep, args=(60,), name="other", daemon=True).start()
load()
"""
REGISTER = "register_signal(Path('.'))"
BLOCKED_THREAD = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
threading.Thread(target=time.sleep, args=(60,), name="blocked", daemon=True).start()
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
"""
TWO_CHILDREN = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
children = [subprocess.Popen(sleep, stdout=subprocess.PIPE) for _ in range(2)]
for child in children:
    child.stdout.readline()
print(*[child.pid for child in children], flush=True)
def train():
    time.sleep(60)
train()
"""


@pytest.fixture
def started(tmp_path):
    """Start a process that holds the GIL; with a handler for the signal or without."""
    processes = []

    def start(register=REGISTER):
        script = tmp_path / "stuck.py"
        script.write_text(HOLDS_THE_GIL.format(register=register))
        command = [sys.executable, str(script)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_native_frames_below_the_script(started, tmp_path):
    report = collect(started().pid, tmp_path, 5.0, MAX_BYTES)
    (process,) = report.processes
    (main,) = [each for each in process.threads if each.main]
    assert report.source == "py-spy-native"
    assert main.frames[0].origin == "native"
    assert place_of(report).text == "load at stuck.py:8"


def test_signal_is_used_without_py_spy_and_does_not_wake_the_main_thread(
    started, tmp_path, monkeypatch
):
    monkeypatch.setattr(stack_collector, "py_spy", str)
    process = started()
    for _ in range(2):  # later stacks are appended to the same file
        report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
        assert report.source == "faulthandler"
        assert place_of(report).text == "load at stuck.py:8"
        assert report.notes == ["py-spy is not installed (pip install 'strata-runtime[hang]')"]
    assert process.poll() is None


def test_thread_that_blocks_signals_is_not_signalled(started, tmp_path, monkeypatch):
    monkeypatch.setattr(stack_collector, "py_spy", str)
    process = started(register=REGISTER + BLOCKED_THREAD)
    first = min(each.id for each in psutil.Process(process.pid).threads() if each.id != process.pid)
    report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
    assert stack_collector._blocks_signal(process.pid, first)
    assert report.source == "faulthandler"
    assert place_of(report).text == "load at stuck.py:8"
    assert process.poll() is None, "the main thread was not woken"


def test_process_without_a_handler_is_not_signalled(started, tmp_path, monkeypatch):
    monkeypatch.setattr(stack_collector, "py_spy", str)
    process = started(register="")
    report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
    assert report.source == "none"
    assert report.notes[1] == f"process {process.pid} has registered no signal for its stacks"
    time.sleep(0.1)  # a wrong signal would end it at once
    assert process.poll() is None


def test_process_that_has_ended(started, tmp_path):
    process = started()
    process.kill()
    process.wait()
    report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
    assert report.notes == [f"process {process.pid} has ended"]


def test_child_that_ends_after_it_was_listed_hides_no_other_process(tmp_path, monkeypatch):
    script = tmp_path / "parent.py"
    script.write_text(TWO_CHILDREN)
    listed = stack_collector._python_processes

    def list_then_kill(root, notes):
        found = listed(root, notes)
        victim = found[1]
        victim.kill()
        until(lambda: victim.status() == psutil.STATUS_ZOMBIE)
        killed.append(victim.pid)
        return found

    killed = []
    monkeypatch.setattr(stack_collector, "_python_processes", list_then_kill)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
        psutil.Process(process.pid).children()[1].kill()
        process.kill()
    assert place_of(report).text == "train at parent.py:9"
    assert [each.source for each in report.processes] == ["py-spy-native", "none", "py-spy-native"]
    assert f"process {killed[0]} has ended" in report.notes


def test_arguments_and_variables_are_not_in_a_report(tmp_path):
    script = tmp_path / "secret.py"
    script.write_text(
        "import sys, time\ndef train(token):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "train(sys.argv[1])\n"
    )
    command = [sys.executable, str(script), "hunter2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        report = collect(process.pid, tmp_path, 5.0, MAX_BYTES)
        process.kill()
    assert place_of(report).frame.function == "train"
    assert "hunter2" not in repr(report)
