"""What a worker's process writes, from its pipe to lines.

Each stream is a named pipe. The process holds it open both ways, so that it never finds nobody at
the other end: while there is no agent it waits, once the pipe is full, and the next agent reads
on where the last one was. Lines are cut from bytes and may hold anything; a very long one comes in
pieces, a progress bar is its last state, and empty lines are left out.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from strata.sdk.capture import MAX_LINE_CHARS, level_of, overwritten
from strata.sdk.lines import LineBuffer

StreamName: TypeAlias = Literal["stdout", "stderr"]
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
PIPE_BYTES = 1024 * 1024
GATHER_S = 0.02
"""A process that prints line by line would wake us for each; measured, 1 M lines took 43 s."""


class Assembler:
    """Cuts bytes into lines and hands them to a buffer."""

    def __init__(self, stream: StreamName, lines: LineBuffer) -> None:
        self._stream = stream
        self._lines = lines
        self._begun = b""

    def feed(self, data: bytes) -> None:
        """Takes a piece in; hands on the lines that it finishes."""
        *finished, rest = (self._begun + data).split(b"\n")
        while len(rest) >= MAX_LINE_CHARS:
            finished.append(rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        self._begun = rest
        for line in finished:
            self._finish(line)

    def close(self) -> None:
        """Hands on a last line that nothing ended."""
        self._finish(self._begun)
        self._begun = b""

    def _finish(self, line: bytes) -> None:
        for first in range(0, len(line), MAX_LINE_CHARS):
            text = line[first : first + MAX_LINE_CHARS].decode("utf-8", "replace")
            if "\r" in text:
                text = overwritten(text).rstrip("\r")
            if text:
                self._lines(level_of(text, self._stream), text, self._stream)


class Pipe:
    """The reading end of one stream of a process."""

    def __init__(self, path: Path, stream: StreamName, lines: LineBuffer) -> None:
        self.path = path
        if not path.exists():
            os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(PermissionError):  # the user has many pipes: it stays as small as it is
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._assembler = Assembler(stream, lines)
        self._on_lines: Callable[[], None] = lambda: None
        self._gathering: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()

    def writing_end(self) -> int:
        """A descriptor for the process; the caller closes its own copy."""
        return os.open(self.path, os.O_RDWR)

    def listen(self, on_lines: Callable[[], None]) -> None:
        """Begins to read; call it when there is somebody who writes."""
        self._on_lines = on_lines
        self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        if not self._read():
            self.close()
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        self._gathering = loop.call_later(GATHER_S, self._wait)

    def _read(self) -> bool:
        """Takes in what is there; False when nobody will write any more."""
        try:
            data = os.read(self._fd, PIPE_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._assembler.feed(data)
            self._on_lines()
        return bool(data)

    def close(self) -> None:
        """Reads no more; the pipe is gone for whoever comes later."""
        if not self.over.is_set():
            self.let_go()
            self._assembler.close()
            self._on_lines()
            self.path.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Reads no more, and leaves the pipe for the next agent."""
        if self.over.is_set():
            return
        self.over.set()
        if self._gathering is not None:
            self._gathering.cancel()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
