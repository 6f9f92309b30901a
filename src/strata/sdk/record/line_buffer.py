"""A bounded buffer of log lines on their way to the coordinator.

Lines beyond the limits are dropped, and their number is sent in their place. The newest dropped
lines are kept nevertheless: the last lines of a process say why it failed. Lines are numbered. A
sent line is kept until the coordinator has acknowledged it, and sent again over the next
connection; the coordinator stores each number once. Unlike events, lines are not on disk: they are
lost with the process.
"""

import secrets
import threading
import time
from collections import deque
from itertools import islice

from strata.wire.v1 import coordinator_pb2 as pb

MAX_LINES = 20_000
MAX_CHARS = 8 * 2**20
LAST_LINES = 100
MESSAGE_LINES = 1_000
MESSAGE_CHARS = 512 * 1024
SEVERITY = {"debug": 0, "info": 1, "warn": 2, "error": 3}

Line = tuple[int, str, str, str]
"""Time, level, message and stream."""

Entry = Line | int
"""A line, or the number of lines dropped at this place."""


class LineBuffer:
    """Lines to send, or sent and not acknowledged; a sink for `capture_output`."""

    def __init__(
        self,
        max_lines: int = MAX_LINES,
        max_chars: int = MAX_CHARS,
        least_level: str = "debug",
    ) -> None:
        self.max_lines = max_lines
        self.max_chars = max_chars
        self.sender = secrets.token_hex(8)
        self._least = SEVERITY[least_level]
        self._entries: deque[Entry] = deque()
        self._first = 1
        self._sent = 0
        self._chars = 0
        self._dropped = 0
        self._last: deque[Line] = deque(maxlen=LAST_LINES)
        self._lock = threading.Lock()

    def __call__(self, level: str, message: str, stream: str) -> None:
        """Add a line, or count it as dropped."""
        if SEVERITY[level] < self._least:
            return
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if self._full:
                self._dropped += len(self._last) == self._last.maxlen
                self._last.append((now_ms, level, message, stream))
                return
            self._admit_last()
            self._keep((now_ms, level, message, stream))

    @property
    def delivered(self) -> bool:
        """Whether the coordinator has acknowledged all lines."""
        return not self._entries and not self._last

    def take(self) -> pb.LogLines | None:
        """The next unsent lines of this connection, as one message."""
        with self._lock:
            if self._sent >= self.max_lines:
                return None  # too many lines are not acknowledged yet
            if not self._full:
                self._admit_last()
            if self._sent == len(self._entries):
                return None
            message = pb.LogLines(first=self._first + self._sent, sender=self.sender)
            room = MESSAGE_CHARS
            for entry in islice(self._entries, self._sent, self._sent + MESSAGE_LINES):
                self._sent += 1
                if isinstance(entry, int):
                    message.dropped = entry
                    break
                timestamp_ms, level, text, stream = entry
                message.lines.add(
                    timestamp_ms=timestamp_ms, level=level, message=sendable(text), stream=stream
                )
                room -= len(text)
                if room <= 0:
                    break
        return message

    def taken(self, number: int) -> None:
        """Note that the coordinator has stored everything up to this number."""
        with self._lock:
            while self._first <= number and self._entries:
                entry = self._entries.popleft()
                self._chars -= 0 if isinstance(entry, int) else len(entry[2])
                self._first += 1
                self._sent = max(self._sent - 1, 0)

    def resend(self) -> None:
        """Mark all unacknowledged lines as unsent, for a new connection."""
        with self._lock:
            self._sent = 0

    def became_child(self) -> None:
        """Disable the buffer: a forked child has no thread that sends."""
        self._lock = threading.Lock()
        self._entries = deque()
        self._last = deque(maxlen=0)
        self.max_lines = 0

    @property
    def _full(self) -> bool:
        return len(self._entries) >= self.max_lines or self._chars >= self.max_chars

    def _admit_last(self) -> None:
        """Add the number of dropped lines, then the newest of them, once there is room."""
        if self._dropped:
            self._entries.append(self._dropped)
            self._dropped = 0
        while self._last:
            self._keep(self._last.popleft())

    def _keep(self, line: Line) -> None:
        self._entries.append(line)
        self._chars += len(line[2])


def sendable(text: str) -> str:
    """The text without characters that UTF-8 cannot encode, such as undecodable file names."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
