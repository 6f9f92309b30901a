"""What a Strata process writes to its own stderr: which levels by room, and in which form.

The filter is the seeds' syntax: `coordinator=debug,storage=debug,info` sets a level for each named
room and, without a name, for everything else, other libraries included. A room is the first part
of a module's name below `strata`; `coordinator.engine` names one module of it. Rust's `::` is read
as a dot and its `trace` as `debug`, so that a `RUST_LOG` written for other tools works.

Only processes that Strata owns (the coordinator, agents, the command line) are set up here. A
training script's logging belongs to its author: the SDK listens to it and changes nothing.
"""

import difflib
import logging
import sys
from datetime import datetime
from typing import TextIO

import msgspec

from strata.config import Settings
from strata.errors import SettingError

PACKAGE = "strata"
DEFAULT_LEVEL = logging.INFO
OFF = logging.CRITICAL + 10

LEVELS = {
    "off": OFF,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}

COLOURS = {"error": "\x1b[31m", "warn": "\x1b[33m", "info": "\x1b[32m", "debug": "\x1b[2m"}
PLAIN = "\x1b[0m"

CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}
del CONTROLS[ord("\t")], CONTROLS[ord("\n")]

_MARK = "_strata_logsetup"


class LogFilter(msgspec.Struct, frozen=True):
    """A parsed filter: the level of everything, and of the rooms that have their own."""

    default: int = DEFAULT_LEVEL
    rooms: dict[str, int] = {}


def parse_filter(text: str) -> LogFilter:
    """Reads `room=level,...,level`; a later part wins over an earlier one."""
    default = DEFAULT_LEVEL
    rooms: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        room, named, level = part.rpartition("=")
        if not named:
            default = _level(level, text)
            continue
        name = room.strip().replace("::", ".").removeprefix(f"{PACKAGE}.")
        rooms["" if name == PACKAGE else name] = _level(level, text)
    return LogFilter(default, rooms)


def _level(word: str, text: str) -> int:
    level = LEVELS.get(word.strip().lower())
    if level is None:
        (closest,) = difflib.get_close_matches(word.lower(), LEVELS, n=1, cutoff=0.0)
        raise SettingError(
            f"there is no log level {word.strip()!r}, found in the log filter {text!r}",
            hint=f"did you mean {closest}? a room has its own as in coordinator=debug,info",
        )
    return level


def level_name(levelno: int) -> str:
    """One of the four names that Strata shows, for any level of `logging`."""
    if levelno >= logging.ERROR:
        return "error"
    if levelno >= logging.WARNING:
        return "warn"
    return "info" if levelno >= logging.INFO else "debug"


def room_of(logger: str) -> str:
    """The room a logger belongs to, or the library's own name."""
    first, _, rest = logger.partition(".")
    return (rest.partition(".")[0] or PACKAGE) if first == PACKAGE else first


def printable(text: str) -> str:
    """The text with control characters spelt out, so that a log cannot drive a terminal."""
    return text.translate(CONTROLS)


class TextFormatter(logging.Formatter):
    """`12:34:56.789 INFO  coordinator  message`; further lines are indented."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        level = level_name(record.levelno)
        shown = f"{level.upper():5}"
        if self.colour:
            shown = f"{COLOURS[level]}{shown}{PLAIN}"
        message = printable(full_message(record)).replace("\n", "\n    ")
        return f"{time} {shown} {room_of(record.name):<12} {message}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the fields of a log entry and the logger's name."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "timestamp": int(record.created * 1000),
            "level": level_name(record.levelno),
            "message": full_message(record).encode("utf-8", "replace").decode(),
            "source": self.source,
            "logger": record.name,
            "task_id": getattr(record, "task_id", ""),
            "worker_id": getattr(record, "worker_id", ""),
        }
        return msgspec.json.encode(fields).decode()


_plain = logging.Formatter()


def full_message(record: logging.LogRecord) -> str:
    """A record's message with its arguments, and the traceback where there is one."""
    if record.exc_info or record.exc_text or record.stack_info:
        return _plain.format(record)
    return record.getMessage()


class Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream; where it cannot, on a full disk, a line to stderr says so once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk is no fault of the program: no traceback for each line that it misses."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told and self.stream is not sys.stderr:
            self._told = True
            missed = printable(record.getMessage())
            print(f"the log cannot be written ({error.strerror}): {missed}", file=sys.stderr)


def configure(settings: Settings, source: str, stream: TextIO | None = None) -> LogFilter:
    """Sets this process's logging up; doing it again replaces what the last time set."""
    stream = stream or sys.stderr
    wanted = parse_filter(settings.log_filter)
    handler = Handler(stream)
    setattr(handler, _MARK, True)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(source))
    else:
        handler.setFormatter(TextFormatter(colour=stream.isatty()))
    root = logging.getLogger()
    for old in [old for old in root.handlers if hasattr(old, _MARK)]:
        root.removeHandler(old)
    root.addHandler(handler)
    apply_filter(wanted)
    return wanted


def apply_filter(wanted: LogFilter) -> None:
    """Gives every room its level; rooms without one follow the default."""
    manager = logging.getLogger().manager
    for name in list(manager.loggerDict):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(wanted.default)
    for room, level in wanted.rooms.items():
        logging.getLogger(f"{PACKAGE}.{room}" if room else PACKAGE).setLevel(level)
