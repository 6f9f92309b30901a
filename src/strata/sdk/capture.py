"""Hands what a training process says (stdout, stderr, `logging`) to a sink, and lets it be said.

Output goes to the original streams first, unchanged; the sink gets whole lines. Lines are
assembled per thread, so two threads that print at once do not mix theirs. A carriage return
starts the line over, as it does on a terminal: a progress bar is one line, not thousands. Empty
lines are left out.

A `logging` record is taken where loggers hand it to their handlers (`Logger.callHandlers`), and
what the handlers then print about it is not taken again. A handler on the root logger would be the
plainer way, but it changes the script: `logging.basicConfig` does nothing once the root has a
handler, records of loggers that do not propagate are missed, and a record printed to stderr
would arrive twice.

The sink may print or log: what it says in there is passed through and not captured. A sink that
raises does not break a `print`; it is counted in `failures`. After a fork the child's output is
passed through only, since the sink's queue and threads belong to the parent.

What other languages write to the file descriptors directly is not seen here: whoever started the
process reads that from its pipes.
"""

import logging
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TextIO

from strata.logsetup import full_message, level_name

Sink = Callable[[str, str, str], None]
"""Called with level, message and stream (`stdout`, `stderr` or `logging`)."""

MAX_LINE_CHARS = 64 * 1024
"""A longer line is handed on in pieces, so that output without newlines takes no memory."""

DEFAULT_LEVEL = {"stdout": "info", "stderr": "warn"}
PREFIX_STARTS = frozenset("[DIWECF")
PREFIX = re.compile(r"\[?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b(?=[\]:\s|,-]|$)")
LEVELS = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warn",
    "WARNING": "warn",
    "ERROR": "error",
    "CRITICAL": "error",
    "FATAL": "error",
}


def capture_output(sink: Sink, streams: bool = True) -> "Capture":
    """Begins to capture; end it with `restore`, or use it as a context manager.

    Without `streams` only what is logged is captured: whoever reads the pipes has the rest.
    """
    return Capture(sink, streams)


def level_of(line: str, stream: str) -> str:
    """The level a line states at its start, or the one that its stream stands for."""
    if line and line[0] in PREFIX_STARTS:
        stated = PREFIX.match(line)
        if stated:
            return LEVELS[stated[1]]
    return DEFAULT_LEVEL[stream]


def overwritten(line: str) -> str:
    """What a terminal shows of a line: the text after its last carriage return, if there is any."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


class _Local(threading.local):
    """Of each thread: its unfinished line by stream, and whether to pass output through only."""

    def __init__(self) -> None:
        self.begun = {"stdout": "", "stderr": ""}
        self.quiet = False


class Capture:
    """A capture in force; `failures` counts lines that the sink refused."""

    def __init__(self, sink: Sink, streams: bool = True) -> None:
        self.failures = 0
        self._sink = sink
        self._local = _Local()
        self._active = True
        self._tees = {
            name: Tee(original, name, self)
            for name in ("stdout", "stderr")
            if streams and (original := getattr(sys, name)) is not None
        }
        for name, tee in self._tees.items():
            setattr(sys, name, tee)
        self._call_handlers = logging.Logger.callHandlers
        self._patch = self._patched()
        logging.Logger.callHandlers = self._patch  # type: ignore[assignment,method-assign]
        _in_force.add(self)

    def pass_through(self) -> None:
        """Stops to capture and leaves everything in place."""
        self._active = False

    def restore(self) -> None:
        """Ends the capture; unfinished lines of this thread are handed on.

        Where the script has put its own wrapper around ours, ours stays and passes output through.
        """
        if not self._active:
            return
        for name, line in self._local.begun.items():
            self._finish(line, name)
        self.pass_through()
        _in_force.discard(self)
        for name, tee in self._tees.items():
            if getattr(sys, name) is tee:
                setattr(sys, name, tee.original)
        if logging.Logger.callHandlers is self._patch:
            logging.Logger.callHandlers = self._call_handlers  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def emit(self, level: str, message: str, stream: str) -> None:
        """Hands one line to the sink."""
        local = self._local
        local.quiet = True
        try:
            self._sink(level, message, stream)
        except Exception:
            # The script's own print must not fail because of us; the count is there to be read.
            self.failures += 1
        finally:
            local.quiet = False

    def take(self, text: str, stream: str) -> None:
        """Takes in a piece of output, and hands on the lines that it finishes."""
        local = self._local
        if local.quiet or not self._active:
            return
        begun = local.begun
        if text == "\n":
            # How `print` ends every line, hence with a way of its own.
            line, begun[stream] = begun[stream], ""
            self._finish(line, stream)
            return
        text = begun[stream] + text
        if "\n" not in text and "\r" not in text and len(text) < MAX_LINE_CHARS:
            begun[stream] = text
            return
        *lines, rest = text.split("\n")
        rest = overwritten(rest)
        while len(rest) >= MAX_LINE_CHARS:
            lines.append(rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        begun[stream] = rest
        for line in lines:
            self._finish(line, stream)

    def _finish(self, line: str, stream: str) -> None:
        if "\r" in line:
            line = overwritten(line).rstrip("\r")
        if line:
            self.emit(level_of(line, stream), line, stream)

    def _patched(self) -> Callable[[logging.Logger, logging.LogRecord], None]:
        call_handlers = self._call_handlers

        def call(logger: logging.Logger, record: logging.LogRecord) -> None:
            local = self._local
            if local.quiet or not self._active:
                call_handlers(logger, record)
                return
            local.quiet = True
            try:
                call_handlers(logger, record)
            finally:
                local.quiet = False
            self._take_record(record)

        return call

    def _take_record(self, record: logging.LogRecord) -> None:
        try:
            message = full_message(record)
        except Exception:
            # Arguments that do not fit: `logging` has complained on stderr already.
            message = f"{record.msg} {record.args}"
        self.emit(level_name(record.levelno), message, "logging")


_in_force: "weakref.WeakSet[Capture]" = weakref.WeakSet()


def _leave_child() -> None:
    for capture in list(_in_force):
        capture.pass_through()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)


class Tee:
    """A text stream that writes to the original and shows the capture what was written.

    In everything else it is the original.
    """

    def __init__(self, original: TextIO, name: str, capture: Capture) -> None:
        self.original = original
        self._name = name
        self._capture = capture

    def write(self, text: str) -> int:
        """Writes text to the original; the lines it finishes are captured."""
        written = self.original.write(text)
        self._capture.take(text, self._name)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes pieces of text one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)
