"""One worker's process: started in a session of its own, watched, signalled as a whole, drained.

A child may have been started by this agent, forked from a template (see `warm_start`), or started
by the agent before. The end of each is seen at once. The system tells the exit code to the parent
alone: a template is asked for it, and that of an adopted child is unknown. When the process that
was started ends, whatever it left behind in its process group is killed.
"""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from msgspec.structs import replace

from strata.agent.output import STREAMS, Pipe
from strata.agent.plan import Start
from strata.agent.records import Exit, Kept
from strata.agent.warm_start import Launch, Template
from strata.core.agents import UNKNOWN_CODE
from strata.errors import Unavailable
from strata.sdk.lines import LineBuffer

log = logging.getLogger(__name__)

BIRTH_TOLERANCE_S = 2.0
DRAIN_S = 2.0
POLL_S = 0.05


class Child:
    """A process that runs. Make one with `spawn` or `adopt`."""

    def __init__(
        self,
        kept: Kept,
        lines: LineBuffer,
        pipes: list[Pipe],
        process: subprocess.Popen[bytes] | None = None,
        template: Template | None = None,
        go: int | None = None,
    ) -> None:
        self.kept = kept
        self.lines = lines
        self._pipes = pipes
        self._process = process
        self._template = template
        self._go = go

    @property
    def start(self) -> Start:
        """What it is for."""
        return self.kept.start

    def release(self) -> None:
        """Lets a forked worker begin; call it when its pid is on disk."""
        if self._go is not None:
            os.write(self._go, b"1")
            os.close(self._go)
            self._go = None

    def listen(self, on_lines: Callable[[], None]) -> None:
        """Begins to read what it writes."""
        for pipe in self._pipes:
            pipe.listen(on_lines)

    async def ended(self) -> Exit:
        """Waits for its end."""
        await _gone(self.kept.pid)
        # Before the process is reaped its number cannot become somebody else's.
        self.signal(signal.SIGKILL)
        code = self._exit_code()
        if code is None:
            return Exit(self.start, UNKNOWN_CODE)
        return Exit(self.start, 128 - code, -code) if code < 0 else Exit(self.start, code)

    def _exit_code(self) -> int | None:
        """The code of a process that has ended, negative for a signal; None where nobody knows."""
        if self._process is not None:
            return self._process.wait()
        if self._template is None:
            return None
        try:
            return self._template.exit_code(self.kept.pid)
        except Unavailable as error:
            log.warning("the exit code of process %d is unknown: %s", self.kept.pid, error)
            return None

    async def drained(self) -> None:
        """Waits until all that it wrote is read; a process that it left behind cannot delay it."""
        over = [asyncio.ensure_future(pipe.over.wait()) for pipe in self._pipes]
        _, unfinished = await asyncio.wait(over, timeout=DRAIN_S)
        for waiting in unfinished:
            waiting.cancel()
        for pipe in self._pipes:
            pipe.close()

    def signal(self, number: int) -> None:
        """Sends a signal to it and to everything it started in its group."""
        try:
            os.killpg(self.kept.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # gone, or no longer ours: either way there is nobody to tell

    def let_go(self) -> None:
        """Leaves it to the next agent."""
        for pipe in self._pipes:
            pipe.let_go()
        if self._process is not None:
            self._process.returncode = 0  # it runs on: that is no oversight to warn about


def pipes_of(folder: Path, key: str, lines: LineBuffer) -> list[Pipe]:
    """The pipes of a process."""
    return [Pipe(folder / f"{key}.{stream}", stream, lines) for stream in STREAMS]


def new_key() -> str:
    """A name for the pipes of a process."""
    return secrets.token_hex(8)


def spawn(kept: Kept, folder: Path, launch: Launch) -> Child:
    """Starts a process; raises `OSError` where that cannot be done."""
    lines = LineBuffer()
    with _streams(folder, kept.key, lines) as (pipes, ends):
        process = subprocess.Popen(
            command_for(launch.entry, launch.args),
            stdin=subprocess.DEVNULL,
            stdout=ends[0],
            stderr=ends[1],
            cwd=launch.cwd or None,
            env=launch.environment,
            start_new_session=True,
        )
    return Child(kept_as(kept, process.pid), lines, pipes, process)


def fork(kept: Kept, folder: Path, launch: Launch, template: Template) -> Child:
    """Forks a worker from a template; it begins when it is released. Raises `Unavailable`."""
    lines = LineBuffer()
    waiting, go = os.pipe()
    try:
        with _streams(folder, kept.key, lines) as (pipes, ends):
            pid = template.start(launch, ends, waiting)
    except BaseException:
        os.close(go)
        raise
    finally:
        os.close(waiting)
    return Child(kept_as(kept, pid), lines, pipes, template=template, go=go)


@contextmanager
def _streams(folder: Path, key: str, lines: LineBuffer) -> Iterator[tuple[list[Pipe], list[int]]]:
    """The pipes of a process that is started in the block, and their ends for it."""
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


def kept_as(kept: Kept, pid: int) -> Kept:
    """What to remember of a process."""
    return replace(kept, pid=pid, born_s=psutil.Process(pid).create_time())


def adopt(kept: Kept, folder: Path) -> Child | None:
    """The process that an earlier agent started, if it still runs."""
    pid = find(kept)
    if not pid:
        return None
    try:
        known = kept_as(kept, pid)
    except psutil.NoSuchProcess:
        return None
    lines = LineBuffer()
    return Child(known, lines, pipes_of(folder, kept.key, lines))


def find(kept: Kept) -> int:
    """The pid of a process that was remembered, if that still runs; else 0."""
    if not kept.pid:
        return _search(kept.key)
    try:
        process = psutil.Process(kept.pid)
        same = abs(process.create_time() - kept.born_s) < BIRTH_TOLERANCE_S
        return kept.pid if same and process.status() != psutil.STATUS_ZOMBIE else 0
    except psutil.NoSuchProcess:
        return 0


def command_for(entry: str, args: Sequence[str]) -> list[str]:
    """How an entry is run: a Python script, a program, or a Python module."""
    if entry.endswith(".py"):
        return [sys.executable, entry, *args]
    if os.sep in entry:
        return [entry, *args]
    return [sys.executable, "-m", entry, *args]


def _search(key: str) -> int:
    """The process whose pid was never written down, by the folder that it was given."""
    for process in psutil.process_iter(["pid", "environ"]):
        spool = (process.info["environ"] or {}).get("STRATA_SPOOL_DIR", "")
        if Path(spool).name == key and _leads(process.pid):
            return process.pid
    return 0


def _leads(pid: int) -> bool:
    """Whether a process is the first of its group, and so the one that an agent started."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


async def _gone(pid: int) -> None:
    """Waits until a process has ended, whoever started it."""
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
