"""Logging of a Strata process to stderr: levels by package, and the format.

The filter `coordinator=debug,storage=debug,info` sets a level for each named package and, without a
name, for everything else, other libraries included. A package is the first part of a module's name
below `strata`; `coordinator.engine` names one module. Rust's `::` is read as a dot and its `trace`
as `debug`, so that a `RUST_LOG` written for other tools works.

Only processes that Strata owns (the coordinator, agents, the command line) are configured here. A
training script configures its own logging: the SDK reads the records and changes nothing.
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
    """A parsed filter: the default level, and the levels of packages."""

    default: int = DEFAULT_LEVEL
    packages: dict[str, int] = {}


def parse_filter(text: str) -> LogFilter:
    """Parse `package=level,...,level`; a later part wins over an earlier one."""
    default = DEFAULT_LEVEL
    packages: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        package, named, level = part.rpartition("=")
        if not named:
            default = _level(level, text)
            continue
        name = package.strip().replace("::", ".").removeprefix(f"{PACKAGE}.")
        packages["" if name == PACKAGE else name] = _level(level, text)
    return LogFilter(default, packages)


def _level(word: str, text: str) -> int:
    level = LEVELS.get(word.strip().lower())
    if level is None:
        (closest,) = difflib.get_close_matches(word.lower(), LEVELS, n=1, cutoff=0.0)
        raise SettingError(
            f"unknown log level {word.strip()!r} in the log filter {text!r}",
            hint=f"did you mean {closest}? an example: coordinator=debug,info",
        )
    return level


def level_name(levelno: int) -> str:
    """Strata's name for a level of `logging`: error, warn, info or debug."""
    if levelno >= logging.ERROR:
        return "error"
    if levelno >= logging.WARNING:
        return "warn"
    return "info" if levelno >= logging.INFO else "debug"


def package_of(logger: str) -> str:
    """The package of a Strata logger, or the name of another library."""
    first, _, rest = logger.partition(".")
    return (rest.partition(".")[0] or PACKAGE) if first == PACKAGE else first


def printable(text: str) -> str:
    """Escape control characters, so that a log line cannot control the terminal."""
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
        return f"{time} {shown} {package_of(record.name):<12} {message}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the fields of a log entry and the logger's name."""

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
    """A record's formatted message, with the traceback if there is one."""
    if record.exc_info or record.exc_text or record.stack_info:
        return _plain.format(record)
    return record.getMessage()


class Handler(logging.StreamHandler[TextIO]):
    """A stream handler that reports a full disk once, on stderr."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report a failed write once, instead of a traceback for each lost line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._reported and self.stream is not sys.stderr:
            self._reported = True
            missed = printable(record.getMessage())
            print(f"the log cannot be written ({error.strerror}): {missed}", file=sys.stderr)


def configure(settings: Settings, source: str, stream: TextIO | None = None) -> LogFilter:
    """Configure the logging of this process; a second call replaces the first."""
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
    """Set the level of every package; packages without one use the default."""
    manager = logging.getLogger().manager
    for name in list(manager.loggerDict):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(wanted.default)
    for package, level in wanted.packages.items():
        logging.getLogger(f"{PACKAGE}.{package}" if package else PACKAGE).setLevel(level)
