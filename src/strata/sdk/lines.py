"""What the training process said, on its way to the coordinator.

Lines wait here, bounded in number and in size; what does not fit is dropped, and the count travels
with the next lines. Unlike events they are not kept on disk and not asked for again: lines that
were on the wire when the connection broke are lost.
"""

import threading
import time
from collections import deque

from strata.wire.v1 import coordinator_pb2 as pb

MAX_LINES = 20_000
MAX_CHARS = 8 * 2**20
MESSAGE_LINES = 1_000
MESSAGE_CHARS = 512 * 1024


class LineBuffer:
    """Lines that wait to be sent; a sink for `capture_output`."""

    def __init__(self, max_lines: int = MAX_LINES, max_chars: int = MAX_CHARS) -> None:
        self.max_lines = max_lines
        self.max_chars = max_chars
        self._lines: deque[tuple[int, str, str, str]] = deque()
        self._chars = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def __call__(self, level: str, message: str, stream: str) -> None:
        """Takes a line in, or counts it as dropped."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if len(self._lines) >= self.max_lines or self._chars >= self.max_chars:
                self._dropped += 1
                return
            self._lines.append((now_ms, level, message, stream))
            self._chars += len(message)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._lines and not self._dropped

    def take(self) -> pb.LogLines | None:
        """The next lines as one message."""
        taken: list[pb.LogLine] = []
        with self._lock:
            if self.empty:
                return None
            room = MESSAGE_CHARS
            while self._lines and len(taken) < MESSAGE_LINES and room > 0:
                timestamp_ms, level, message, stream = self._lines.popleft()
                self._chars -= len(message)
                room -= len(message)
                taken.append(
                    pb.LogLine(
                        timestamp_ms=timestamp_ms,
                        level=level,
                        message=sendable(message),
                        stream=stream,
                    )
                )
            dropped, self._dropped = self._dropped, 0
        return pb.LogLines(lines=taken, dropped=dropped)

    def became_child(self) -> None:
        """In a forked child nothing is taken in: nobody would send it."""
        self._lock = threading.Lock()
        self._lines = deque()
        self.max_lines = 0


def sendable(text: str) -> str:
    """The text without what UTF-8 cannot carry, such as file names that were not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
