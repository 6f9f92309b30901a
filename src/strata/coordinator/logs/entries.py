"""One line of the log, made safe to keep whatever a process wrote.

An entry's id is its number in hex. Numbers only grow: each opening of the store begins a new range
of them, so an id that was shown and then lost with a crash never comes back as another line.

What is kept is what was written, as text: bytes that are no UTF-8 are replaced, and what is longer
than `MAX_MESSAGE_BYTES` is cut, with a mark that says how much there was. Control characters and
markup stay as they are; JSON keeps them apart, and whoever shows a line escapes it for its own
medium.
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
"""The last moment that every reader of JSON can represent."""

PREFIX = "log_"
OPENING_BITS = 36
"""Lines that one opening of the store may number: 68 billion."""


class Line(Struct, frozen=True, gc=False):
    """A line as it comes in; without a `timestamp` it is stamped when it arrives."""

    level: str
    message: str | bytes
    source: str = "worker"
    task_id: str = ""
    worker_id: str = ""
    stream: str = ""
    timestamp: int = 0


class LogEntry(Struct, frozen=True, gc=False):
    """A line as it is kept and shown."""

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
        """Its number."""
        return seq_of(self.id)


def seq_of(entry_id: str) -> int:
    """The number in an id or a cursor; raises `ValueError` when it is none."""
    return int(entry_id.removeprefix(PREFIX), 16)


def entry_id(seq: int) -> str:
    """The id of a number."""
    return f"{PREFIX}{seq:x}"


def level_of(word: str) -> Level:
    """The level a word means; one that means none is `info`."""
    if word in SEVERITY:
        return word
    word = word.lower()
    return word if word in SEVERITY else ALSO_CALLED.get(word, "info")


def make(seq: int, line: Line, now_ms: int) -> LogEntry:
    """The entry that keeps a line."""
    message = line.message
    if not isinstance(message, str) or not message.isascii() or len(message) > MAX_MESSAGE_BYTES:
        message = clean(message)
    stamp = line.timestamp
    return LogEntry(
        f"log_{seq:x}",
        stamp if 0 < stamp <= LATEST_MS else now_ms,
        level_of(line.level),
        message,
        clean_name(line.source),
        clean_name(line.task_id),
        clean_name(line.worker_id),
        cast("Stream", line.stream if line.stream in STREAMS else ""),
    )


def clean(message: str | bytes) -> str:
    """The message as text that can be encoded, cut to the limit."""
    raw = message.encode("utf-8", "replace") if isinstance(message, str) else message
    if len(raw) <= MAX_MESSAGE_BYTES:
        return raw.decode("utf-8", "replace")
    # A character cut in two at the end is dropped, not shown as damage.
    kept = raw[:MAX_MESSAGE_BYTES].decode("utf-8", "replace").rstrip("\ufffd")
    return f"{kept}… [cut: {len(raw)} bytes in all]"


def clean_name(name: str) -> str:
    """A source, task or worker as text that can be encoded, cut to the limit."""
    if len(name) > MAX_NAME_CHARS:
        name = name[:MAX_NAME_CHARS]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)


def encode_lines(entries: list[LogEntry]) -> bytes:
    """The entries as lines of JSON, each with its newline."""
    return _encoder.encode_lines(entries)


def decode_line(line: bytes | memoryview) -> LogEntry:
    """The entry that a line holds; raises `msgspec.DecodeError` when it holds none."""
    return _decoder.decode(line)
