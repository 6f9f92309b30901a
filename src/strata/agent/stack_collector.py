"""Read the stacks of a worker's processes from outside, when it may hang.

py-spy (installed with the extra `hang`) reads Python frames from the memory of a process, also if
the process is stopped or holds the GIL, and native frames if it may trace the process. Python
frames are read first, because native ones can take seconds in a process with large libraries.
Without py-spy, or where tracing is not allowed, the agent sends a signal for which the worker's SDK
has registered `faulthandler`: it writes the Python frames of all threads to a file without the GIL.

Data loader processes and scripts started by torchrun are children of the worker's process, so the
stacks of all its Python processes are read.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from msgspec import structs

from strata.core.workers.stack_reports import (
    MAX_PROCESSES,
    ProcessStacks,
    StackFrame,
    StackReport,
    StackSource,
    ThreadStack,
    bounded,
    origin_of,
    shown_file,
)
from strata.sdk.record.own_stacks import PACKAGE, STACKS_FILE, STACKS_SIGNAL

SHARE = 0.7
"""The part of the time limit that py-spy may take; the rest is for the signal and the answer."""

SETTLED_S = 0.03
"""A file of stacks that has not grown for this time is complete."""

SIGNAL_S = 0.5
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def collect(pid: int, spool: Path, limit_s: float, max_bytes: int) -> StackReport:
    """The stacks of a worker's process and of the Python processes below it."""
    deadline_s = time.monotonic() + limit_s * SHARE
    notes: list[str] = []
    try:
        processes = _python_processes(psutil.Process(pid), notes)
        first = [_read(process, spool, deadline_s, notes) for process in processes]
        found = [_with_native(each, deadline_s, notes) for each in first]
    except psutil.Error as error:
        return StackReport(notes=[_reason_of(pid, error)])
    return bounded(StackReport(processes=found, notes=list(dict.fromkeys(notes))), max_bytes)


def _python_processes(root: psutil.Process, notes: list[str]) -> list[psutil.Process]:
    below = [each for each in root.children(recursive=True) if _runs_python(each)]
    if len(below) >= MAX_PROCESSES:
        notes.append(f"{len(below) + 1 - MAX_PROCESSES} more processes were left out")
    return [root, *below[: MAX_PROCESSES - 1]]


def _runs_python(process: psutil.Process) -> bool:
    try:
        return Path(process.exe()).name.startswith("python")
    except psutil.Error:
        return False


def _read(
    process: psutil.Process, spool: Path, deadline_s: float, notes: list[str]
) -> ProcessStacks:
    """The Python frames of a process, by py-spy or else by the signal."""
    state, folder, program = "", "", ""
    try:
        state, folder, program = str(process.status()), process.cwd(), _program(process)
    except psutil.Error as error:
        notes.append(_reason_of(process.pid, error))
        if isinstance(error, psutil.NoSuchProcess):
            return ProcessStacks(pid=process.pid, state=state)
    known = ProcessStacks(pid=process.pid, program=program, state=state)
    source: StackSource = "py-spy"
    threads = _by_py_spy(process.pid, folder, [], deadline_s, notes)
    if not threads:
        source, threads = "faulthandler", _by_signal(process, folder, spool, state, notes)
    if not threads:
        return known
    return structs.replace(known, source=source, threads=threads)


def _reason_of(pid: int, error: psutil.Error) -> str:
    """Why a process could not be read; a zombie has ended too."""
    if isinstance(error, psutil.NoSuchProcess):
        return f"process {pid} has ended"
    return f"process {pid} could not be read: {type(error).__name__}"


def _with_native(known: ProcessStacks, deadline_s: float, notes: list[str]) -> ProcessStacks:
    """The same stacks with native frames, if py-spy may trace the process."""
    if known.source != "py-spy" or known.state in STOPPED:
        return known
    try:
        folder = psutil.Process(known.pid).cwd()
    except psutil.Error:
        return known
    threads = _by_py_spy(known.pid, folder, ["--native"], deadline_s, notes)
    if not threads:
        return known
    return structs.replace(known, source="py-spy-native", threads=threads)


def _program(process: psutil.Process) -> str:
    """The script or module that a process runs, without its arguments."""
    words = process.cmdline()
    for word, following in zip(words[1:], [*words[2:], ""], strict=False):
        if word == "-m":
            return following
        if not word.startswith("-") or word == "-c":
            return Path(word).name
    return process.name()


def py_spy() -> str:
    """The path of py-spy, beside this interpreter or on the PATH; empty if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _by_py_spy(
    pid: int, folder: str, options: list[str], deadline_s: float, notes: list[str]
) -> list[ThreadStack]:
    program = py_spy()
    name = " ".join(["py-spy", *options])
    if not program:
        notes.append("py-spy is not installed (pip install 'strata-runtime[hang]')")
        return []
    # Without native frames the process is not paused, which needs fewer rights.
    how = options or ["--nonblocking"]
    command = [program, "dump", "--json", *how, "--pid", str(pid)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=max(deadline_s - time.monotonic(), 0.05),
            check=True,
        )
        return _threads(pid, folder, json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        notes.append(f"{name} of process {pid} took longer than the limit")
    except subprocess.CalledProcessError as failed:
        notes.append(f"{name} of process {pid}: {_reason(failed.stderr)}")
    except (OSError, ValueError) as error:
        notes.append(f"{name} of process {pid}: {error}")
    return []


def _reason(stderr: bytes) -> str:
    """The causes that py-spy names, in one line."""
    text = stderr.decode("utf-8", "replace").partition("Stack backtrace")[0]
    lines = [re.sub(r"^\s*\d+:\s*", "", line).strip() for line in text.splitlines()]
    causes = [line for line in lines if line and line != "Caused by:"]
    return ": ".join(causes[:3]) or "it failed without a message"


def _threads(pid: int, folder: str, found: list[dict[str, Any]]) -> list[ThreadStack]:
    return [
        ThreadStack(
            name=each["thread_name"] or "",
            main=each["os_thread_id"] == pid,
            frames=[
                _frame(frame["name"], frame["filename"], frame["line"], folder)
                for frame in each["frames"]
            ],
        )
        for each in found
    ]


def _frame(function: str, path: str, line: int, folder: str) -> StackFrame:
    return StackFrame(
        function=function,
        file=shown_file(path, folder, PACKAGE),
        line=line,
        origin=origin_of(path, PACKAGE),
    )


def _by_signal(
    process: psutil.Process, folder: str, spool: Path, state: str, notes: list[str]
) -> list[ThreadStack]:
    """Let the worker's faulthandler write its stacks, and read them."""
    if state in STOPPED:
        notes.append(f"process {process.pid} is {state}, so it handles no signal")
        return []
    path = spool / STACKS_FILE
    if not path.exists() or not _handles_signal(process.pid):
        notes.append(f"process {process.pid} has registered no signal for its stacks")
        return []
    before = path.stat().st_size
    try:
        _signal(process)
    except (OSError, psutil.Error) as error:
        notes.append(f"process {process.pid} could not be signalled: {error}")
        return []
    text = _grown(path, before)
    if not text:
        notes.append(f"process {process.pid} wrote no stacks within {SIGNAL_S:g} s of the signal")
    return _parsed(text, folder)


def _handles_signal(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise."""
    return _has_signal("SigCgt", Path(f"/proc/{pid}/status"), unread=False)


def _blocks_signal(pid: int, thread: int) -> bool:
    """Whether a thread blocks the signal, or has ended."""
    return _has_signal("SigBlk", Path(f"/proc/{pid}/task/{thread}/status"), unread=True)


def _has_signal(mask: str, path: Path, unread: bool) -> bool:
    """Whether the signal is in a mask of a status file; `unread` if the file cannot be read."""
    try:
        found = re.search(rf"^{mask}:\s*([0-9a-f]+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return unread
    return unread if found is None else bool(int(found[1], 16) >> (STACKS_SIGNAL - 1) & 1)


def _signal(process: psutil.Process) -> None:
    """Signal a thread other than the main one, whose blocking call the signal would end early.

    Threads of native libraries often block all signals; a signal would wait in them for ever.
    """
    others = [thread.id for thread in process.threads() if thread.id != process.pid]
    thread = next((each for each in others if not _blocks_signal(process.pid, each)), process.pid)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(process.pid, thread, STACKS_SIGNAL):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _grown(path: Path, before: int) -> str:
    """What was written to a file since it had a size; empty if nothing was."""
    deadline_s = time.monotonic() + SIGNAL_S
    size, grew_s = before, time.monotonic()
    while time.monotonic() < deadline_s:
        now = path.stat().st_size
        if now != size:
            size, grew_s = now, time.monotonic()
        elif size > before and time.monotonic() - grew_s >= SETTLED_S:
            break
        time.sleep(0.005)
    with path.open("rb") as file:
        file.seek(before)
        return file.read(1 << 20).decode("utf-8", "replace")


FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? ")


def _parsed(text: str, folder: str) -> list[ThreadStack]:
    """The threads that faulthandler wrote; it writes the main thread last."""
    threads = [
        ThreadStack(name=name, frames=[_written(line, folder) for line in lines])
        for name, lines in _blocks(text)
    ]
    if threads and "\n..." not in text:
        threads[-1] = structs.replace(threads[-1], main=True)
    return threads


def _blocks(text: str) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """The name of each thread, and its frames."""
    name: str | None = None
    lines: list[re.Match[str]] = []
    for line in text.splitlines():
        if head := THREAD.match(line):
            if name is not None:
                yield name, lines
            name, lines = head[1] or "", []
        elif found := FRAME.match(line):
            lines.append(found)
    if name is not None:
        yield name, lines


def _written(line: re.Match[str], folder: str) -> StackFrame:
    number = int(line[2]) if line[2].isdigit() else 0
    return _frame(line[3], line[1], number, folder)
