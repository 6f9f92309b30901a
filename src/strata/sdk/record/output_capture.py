"""Capture the output of a training process (stdout, stderr, `logging`) for the log and the record.

Output goes to the original streams first, unchanged; the sink gets whole lines. Lines are assembled
per thread, so the lines of two threads do not mix. A carriage return starts the line over, as on a
terminal: a progress bar is one line, not thousands. Empty lines are left out.

A `logging` record is captured in `Logger.callHandlers`, and the output of its handlers is not
captured again. A handler on the root logger would be simpler, but it changes the script:
`logging.basicConfig` does nothing if the root has a handler, records of loggers that do not
propagate would be missed, and a record printed to stderr would be captured twice.

The sink may print or log: its own output is not captured. An exception in the sink does not break a
`print`; it is counted in `failures`. After a fork the child's output is not captured, since the
sink's queue and threads belong to the parent.

Output that native code writes directly to the file descriptors is not captured here; the agent
reads it from the pipes of the process.

All output goes to the log. Logged warnings and errors, and printed errors, are recorded as events
too, for the timeline: truncated, and at most `PER_MINUTE`. The next one contains how many were left
out.
"""

import logging
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TextIO

from strata.core.workers.worker_facts import LogLine
from strata.logsetup import full_message, level_name
from strata.sdk.record.line_buffer import SEVERITY, sendable
from strata.sdk.record.recorder import Recorder

Sink = Callable[[str, str, str], None]
"""Called with level, message and stream (`stdout`, `stderr` or `logging`)."""

MAX_LINE_CHARS = 64 * 1024
"""A longer line is split, so that output without newlines needs little memory."""

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


def capture_output(sink: Sink, streams: bool = True) -> "OutputCapture":
    """Start to capture; end it with `restore`, or use it as a context manager.

    Without `streams` only log records are captured; the agent reads the rest from the pipes.
    """
    return OutputCapture(sink, streams)


def level_of(line: str, stream: str) -> str:
    """The level at the start of a line, or the default level of its stream."""
    if line and line[0] in PREFIX_STARTS:
        stated = PREFIX.match(line)
        if stated:
            return LEVELS[stated[1]]
    return DEFAULT_LEVEL[stream]


def overwritten(line: str) -> str:
    """The text after the last carriage return of a line, as a terminal shows it."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


class _Local(threading.local):
    """Per thread: the unfinished line of each stream, and whether capturing is suspended."""

    def __init__(self) -> None:
        self.begun = {"stdout": "", "stderr": ""}
        self.quiet = False


class OutputCapture:
    """A running capture; `failures` counts the lines for which the sink raised."""

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
        """Stop capturing, but leave the wrappers in place."""
        self._active = False

    def restore(self) -> None:
        """End the capture; unfinished lines of this thread go to the sink.

        If the script has wrapped this capture's stream, it stays and only passes output through.
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
        """Pass one line to the sink."""
        local = self._local
        local.quiet = True
        try:
            self._sink(level, message, stream)
        except Exception:
            # The script's own print must not fail because of the sink.
            self.failures += 1
        finally:
            local.quiet = False

    def take(self, text: str, stream: str) -> None:
        """Add a piece of output, and pass complete lines to the sink."""
        local = self._local
        if local.quiet or not self._active:
            return
        begun = local.begun
        if text == "\n":
            # A fast path: `print` ends every line with this.
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
            # The arguments do not match the format; `logging` has reported it on stderr.
            message = f"{record.msg} {record.args}"
        self.emit(level_name(record.levelno), message, "logging")


_in_force: "weakref.WeakSet[OutputCapture]" = weakref.WeakSet()


def _leave_child() -> None:
    for capture in list(_in_force):
        capture.pass_through()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)


class Tee:
    """A text stream that writes to the original and passes the text to the capture.

    All other attributes are the original's.
    """

    def __init__(self, original: TextIO, name: str, capture: OutputCapture) -> None:
        self.original = original
        self._name = name
        self._capture = capture

    def write(self, text: str) -> int:
        """Write text to the original, and capture complete lines."""
        written = self.original.write(text)
        self._capture.take(text, self._name)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several pieces of text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)


MAX_CHARS = 1_000
PER_MINUTE = 60


class WarningRecorder:
    """A sink for `capture_output`; `lines` gets all output if no agent reads the pipes."""

    def __init__(self, recorder: Recorder, lines: Sink | None) -> None:
        self.lines = lines
        self._recorder = recorder
        self._minute_ends_s = 0.0
        self._left = PER_MINUTE
        self._skipped = 0

    def __call__(self, level: str, message: str, stream: str) -> None:
        """Handle a line."""
        if self.lines is not None:
            self.lines(level, message, stream)
        if level == "error" or (stream == "logging" and SEVERITY[level] >= SEVERITY["warn"]):
            self._note(level, message, stream)

    def _note(self, level: str, message: str, stream: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._minute_ends_s:
            self._minute_ends_s, self._left = now_s + 60, PER_MINUTE
        if self._left <= 0:
            self._skipped += 1
            return
        self._left -= 1
        skipped, self._skipped = self._skipped, 0
        self._recorder.emit(
            LogLine(
                level=level, message=sendable(message[:MAX_CHARS]), source=stream, skipped=skipped
            )
        )
