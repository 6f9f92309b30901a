"""Log lines as structures, and their conversion from arbitrary process output.

The id of an entry is its number in hex. Numbers only grow: each start of the store uses a new range
of them, so the id of a line that was lost in a crash is never used for another line.

Messages are stored as text: invalid UTF-8 is replaced, and text longer than `MAX_MESSAGE_BYTES` is
cut, with a note of its length. Control characters and markup are stored unchanged; each user
interface escapes them.
"""

from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

Level: TypeAlias = Literal["error", "warn", "info", "debug"]
Stream: TypeAlias = Literal["", "stdout", "stderr", "logging"]

SEVERITY: dict[Level, int] = {"error": 3, "warn": 2, "info": 1, "debug": 0}
STREAMS = ("", "stdout", "stderr", "logging")
ALSO_CALLED: dict[str, Level] = {
    "warning": "warn",
    "critical": "error",
    "fatal": "error",
    "trace": "debug",
}

MAX_MESSAGE_BYTES = 64 * 1024
MAX_NAME_CHARS = 256
LATEST_MS = 2**53 - 1
"""The largest integer that JavaScript represents exactly."""

PREFIX = "log_"
OPENING_BITS = 36
"""Line numbers per start of the store: 68 billion."""


class LogLine(Struct, frozen=True, gc=False):
    """A line to store; without a `timestamp` it gets the time of its arrival."""

    level: str
    message: str | bytes
    source: str = "worker"
    task_id: str = ""
    worker_id: str = ""
    stream: str = ""
    timestamp: int = 0


class LogEntry(Struct, frozen=True, gc=False):
    """A stored line."""

    id: str
    timestamp: int
    level: Level
    message: str
    source: str
    task_id: str = ""
    worker_id: str = ""
    stream: Stream = ""

    @property
    def seq(self) -> int:
        """Number of the line."""
        return seq_of(self.id)


class Skipped(Struct, frozen=True):
    """Stands for matching lines that a follower was too slow to receive."""

    count: int


def seq_of(entry_id: str) -> int:
    """The number in an id or a cursor; raises `ValueError` if it is invalid."""
    return int(entry_id.removeprefix(PREFIX), 16)


def entry_id(seq: int) -> str:
    """The id of the line with a number."""
    return f"{PREFIX}{seq:x}"


def level_of(word: str) -> Level:
    """The level with this name; `info` for an unknown name."""
    if word in SEVERITY:
        return word
    word = word.lower()
    return word if word in SEVERITY else ALSO_CALLED.get(word, "info")


def make(seq: int, line: LogLine, now_ms: int) -> LogEntry:
    """The entry that stores a line."""
    message = line.message
    if not isinstance(message, str) or not message.isascii() or len(message) > MAX_MESSAGE_BYTES:
        message = clean(message)
    stamp = line.timestamp
    return LogEntry(
        id=f"log_{seq:x}",
        timestamp=stamp if 0 < stamp <= LATEST_MS else now_ms,
        level=level_of(line.level),
        message=message,
        source=clean_name(line.source),
        task_id=clean_name(line.task_id),
        worker_id=clean_name(line.worker_id),
        stream=cast("Stream", line.stream if line.stream in STREAMS else ""),
    )


def clean(message: str | bytes) -> str:
    """The message as valid text, cut to the limit."""
    raw = message.encode("utf-8", "replace") if isinstance(message, str) else message
    if len(raw) <= MAX_MESSAGE_BYTES:
        return raw.decode("utf-8", "replace")
    # An incomplete character at the end is dropped instead of being replaced.
    kept = raw[:MAX_MESSAGE_BYTES].decode("utf-8", "replace").rstrip("\ufffd")
    return f"{kept}… [cut: {len(raw)} bytes in all]"


def clean_name(name: str) -> str:
    """The name of a source, task or worker as valid text, cut to the limit."""
    if len(name) > MAX_NAME_CHARS:
        name = name[:MAX_NAME_CHARS]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)


def encode_lines(entries: list[LogEntry]) -> bytes:
    """The entries as JSON lines."""
    return _encoder.encode_lines(entries)


def decode_line(line: bytes | memoryview) -> LogEntry:
    """The entry in a JSON line; raises `msgspec.DecodeError` if it is invalid."""
    return _decoder.decode(line)
