"""One worker's process: start, watch and signal it, and read its output to the end.

A child was started by this agent, forked from a template (see `warm_start`), or started by an
earlier agent. The end of each is noticed at once. Only the parent gets the exit code: a template is
asked for it, and that of an adopted child is unknown. Each child has its own session and process
group; when it ends, the rest of its group is killed.

`end_orphans` kills the workers of an agent that was killed and not restarted.
"""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from msgspec.structs import replace

from strata.agent import agent_records
from strata.agent.agent_records import ChildRecord, Exit, Records, held
from strata.agent.warm_start import Launch, Template
from strata.agent.worker_output import STREAMS, OutputPipe
from strata.agent.worker_plan import Start
from strata.core.workers.host_agents import UNKNOWN_CODE
from strata.errors import AlreadyExists, Unavailable
from strata.sdk.record.line_buffer import LineBuffer

log = logging.getLogger(__name__)

BIRTH_TOLERANCE_S = 2.0
DRAIN_S = 2.0
POLL_S = 0.05


class Child:
    """A running process. Made by `spawn`, `fork` or `adopt`."""

    def __init__(
        self,
        record: ChildRecord,
        lines: LineBuffer,
        pipes: list[OutputPipe],
        process: subprocess.Popen[bytes] | None = None,
        template: Template | None = None,
        go: int | None = None,
    ) -> None:
        self.record = record
        self.lines = lines
        self._pipes = pipes
        self._process = process
        self._template = template
        self._go = go

    @property
    def start(self) -> Start:
        """The worker's start that this process runs."""
        return self.record.start

    def release(self) -> None:
        """Let a forked worker run; call it when its pid is on disk."""
        if self._go is not None:
            os.write(self._go, b"1")
            os.close(self._go)
            self._go = None

    def listen(self, on_lines: Callable[[], None]) -> None:
        """Start to read its output."""
        for pipe in self._pipes:
            pipe.listen(on_lines)

    async def ended(self) -> Exit:
        """Wait for its end."""
        await _gone(self.record.pid)
        # The pid cannot be reused before the process is reaped.
        self.signal(signal.SIGKILL)
        code = self._exit_code()
        if code is None:
            return Exit(start=self.start, code=UNKNOWN_CODE)
        if code < 0:
            return Exit(start=self.start, code=128 - code, signal=-code)
        return Exit(start=self.start, code=code)

    def _exit_code(self) -> int | None:
        """The exit code of the ended process, negative for a signal; None if unknown."""
        if self._process is not None:
            return self._process.wait()
        if self._template is None:
            return None
        try:
            return self._template.exit_code(self.record.pid)
        except Unavailable as error:
            log.warning("the exit code of process %d is unknown: %s", self.record.pid, error)
            return None

    async def drained(self) -> None:
        """Wait until all its output is read, for at most `DRAIN_S` if others hold the pipe."""
        over = [asyncio.ensure_future(pipe.over.wait()) for pipe in self._pipes]
        _, unfinished = await asyncio.wait(over, timeout=DRAIN_S)
        for waiting in unfinished:
            waiting.cancel()
        for pipe in self._pipes:
            pipe.close()

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        try:
            os.killpg(self.record.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the process has ended

    def detach(self) -> None:
        """Leave it running for the next agent."""
        for pipe in self._pipes:
            pipe.detach()
        if self._process is not None:
            self._process.returncode = 0  # suppresses the warning about a running process


def pipes_of(folder: Path, key: str, lines: LineBuffer) -> list[OutputPipe]:
    """The pipes of a process."""
    return [OutputPipe(folder / f"{key}.{stream}", stream, lines) for stream in STREAMS]


def new_key() -> str:
    """A new name for the pipes of a process."""
    return secrets.token_hex(8)


def spawn(record: ChildRecord, folder: Path, launch: Launch) -> Child:
    """Start a process; raises `OSError` on failure."""
    lines = LineBuffer()
    with _streams(folder, record.key, lines) as (pipes, ends):
        process = subprocess.Popen(
            command_for(launch.entry, launch.args),
            stdin=subprocess.DEVNULL,
            stdout=ends[0],
            stderr=ends[1],
            cwd=launch.cwd or None,
            env=launch.environment,
            start_new_session=True,
        )
    return Child(with_pid(record, process.pid), lines, pipes, process)


def fork(record: ChildRecord, folder: Path, launch: Launch, template: Template) -> Child:
    """Fork a worker from a template; it runs when released. Raises `Unavailable` on failure."""
    lines = LineBuffer()
    waiting, go = os.pipe()
    try:
        with _streams(folder, record.key, lines) as (pipes, ends):
            pid = template.start(launch, ends, waiting)
    except BaseException:
        os.close(go)
        raise
    finally:
        os.close(waiting)
    return Child(with_pid(record, pid), lines, pipes, template=template, go=go)


@contextmanager
def _streams(
    folder: Path, key: str, lines: LineBuffer
) -> Iterator[tuple[list[OutputPipe], list[int]]]:
    """The pipes of a process that is started in the block, and its writing ends."""
    pipes = pipes_of(folder, key, lines)
    ends = [pipe.writing_end() for pipe in pipes]
    try:
        yield pipes, ends
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    finally:
        for end in ends:
            os.close(end)


def with_pid(record: ChildRecord, pid: int) -> ChildRecord:
    """The record of a process with its pid and start time."""
    return replace(record, pid=pid, born_s=psutil.Process(pid).create_time())


def adopt(record: ChildRecord, folder: Path) -> Child | None:
    """The process that an earlier agent started, if it is still running."""
    pid = find(record)
    if not pid:
        return None
    try:
        known = with_pid(record, pid)
    except psutil.NoSuchProcess:
        return None
    lines = LineBuffer()
    return Child(known, lines, pipes_of(folder, record.key, lines))


def find(record: ChildRecord) -> int:
    """The pid of a recorded process if it is still running, else 0."""
    if not record.pid:
        return _search(record.key)
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.born_s) < BIRTH_TOLERANCE_S
        return record.pid if same and process.status() != psutil.STATUS_ZOMBIE else 0
    except psutil.NoSuchProcess:
        return 0


def command_for(entry: str, args: Sequence[str]) -> list[str]:
    """The command for an entry: a Python script, a program, or a Python module."""
    if entry.endswith(".py"):
        return [sys.executable, entry, *args]
    if os.sep in entry:
        return [entry, *args]
    return [sys.executable, "-m", entry, *args]


def _search(key: str) -> int:
    """Find a process whose pid was not recorded, by its spool folder."""
    for process in psutil.process_iter(["pid", "environ"]):
        spool = (process.info["environ"] or {}).get("STRATA_SPOOL_DIR", "")
        if Path(spool).name == key and _leads(process.pid):
            return process.pid
    return 0


def _leads(pid: int) -> bool:
    """Whether a process leads its group, so that it is the one that an agent started."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


async def _gone(pid: int) -> None:
    """Wait until a process has ended, even if this process is not its parent."""
    if not hasattr(os, "pidfd_open"):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(POLL_S)
        return
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(watched, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


WAIT_S = 2.0


def end_orphans(folder: Path) -> None:
    """Kill the processes in an agent's records, unless that agent is still running."""
    try:
        with held(folder):
            known = agent_records.load(folder)
            found = [pid for record in known.children if (pid := find(record))]
            for pid in found:
                log.warning("killing process %d, left over from a killed run", pid)
                _kill(pid)
            _wait_for(found)
            agent_records.save(folder, Records(nonce=known.nonce))
    except AlreadyExists:
        return


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_for(pids: list[int]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.01)
