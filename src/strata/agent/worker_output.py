"""Read the output of a worker's process from named pipes, as lines.

The process holds both ends of each pipe open, so it never gets a broken pipe: without an agent it
blocks once the pipe is full, and the next agent continues to read. Lines may contain any bytes. A
very long line is split, of a progress bar only the last state is kept, and empty lines are left
out.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from strata.sdk.record.line_buffer import LineBuffer
from strata.sdk.record.output_capture import MAX_LINE_CHARS, level_of, overwritten

StreamName: TypeAlias = Literal["stdout", "stderr"]
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
PIPE_BYTES = 1024 * 1024
GATHER_S = 0.02
"""Pause between reads: waking up for each line took 43 s for 1 M lines (measured)."""


class LineAssembler:
    """Splits bytes into lines and adds them to a buffer."""

    def __init__(self, stream: StreamName, lines: LineBuffer) -> None:
        self._stream = stream
        self._lines = lines
        self._begun = b""

    def feed(self, data: bytes) -> None:
        """Add bytes; complete lines go to the buffer."""
        *finished, rest = (self._begun + data).split(b"\n")
        while len(rest) >= MAX_LINE_CHARS:
            finished.append(rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        self._begun = rest
        for line in finished:
            self._finish(line)

    def close(self) -> None:
        """Add an unfinished last line."""
        self._finish(self._begun)
        self._begun = b""

    def _finish(self, line: bytes) -> None:
        for first in range(0, len(line), MAX_LINE_CHARS):
            text = line[first : first + MAX_LINE_CHARS].decode("utf-8", "replace")
            if "\r" in text:
                text = overwritten(text).rstrip("\r")
            if text:
                self._lines(level_of(text, self._stream), text, self._stream)


class OutputPipe:
    """The reading end of one stream of a process."""

    def __init__(self, path: Path, stream: StreamName, lines: LineBuffer) -> None:
        self.path = path
        if not path.exists():
            os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(PermissionError):  # above the user's pipe limit it keeps its small size
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._assembler = LineAssembler(stream, lines)
        self._on_lines: Callable[[], None] = lambda: None
        self._gathering: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()

    def writing_end(self) -> int:
        """A descriptor for the process; the caller closes it."""
        return os.open(self.path, os.O_RDWR)

    def listen(self, on_lines: Callable[[], None]) -> None:
        """Start to read; call it when the process is started."""
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
        """Read what is available; False if all writers have closed."""
        try:
            data = os.read(self._fd, PIPE_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._assembler.feed(data)
            self._on_lines()
        return bool(data)

    def close(self) -> None:
        """Stop reading and delete the pipe."""
        if not self.over.is_set():
            self.detach()
            self._assembler.close()
            self._on_lines()
            self.path.unlink(missing_ok=True)

    def detach(self) -> None:
        """Stop reading, and keep the pipe for the next agent."""
        if self.over.is_set():
            return
        self.over.set()
        if self._gathering is not None:
            self._gathering.cancel()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
