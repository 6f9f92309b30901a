"""What a script warns of, as facts: often it says why the next thing happened.

All that a process says goes to the log aggregation. Warnings and errors that it logs, and errors
that it prints, are in the timeline as well: cut short, and at most so many a minute. How many were
left out is told by the next one.
"""

import time

from strata.core.worker_facts import LogLine
from strata.sdk.capture import Sink
from strata.sdk.events import Recorder
from strata.sdk.lines import SEVERITY, sendable

MAX_CHARS = 1_000
PER_MINUTE = 60


class Remarks:
    """A sink for `capture_output`; `lines` takes everything, where no process reads the pipes."""

    def __init__(self, recorder: Recorder, lines: Sink | None) -> None:
        self.lines = lines
        self._recorder = recorder
        self._minute_ends_s = 0.0
        self._left = PER_MINUTE
        self._skipped = 0

    def __call__(self, level: str, message: str, stream: str) -> None:
        """Takes a line in."""
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
        self._recorder.emit(LogLine(level, sendable(message[:MAX_CHARS]), stream, skipped))
