"""Output of all verbs to stdout and stderr, with control characters escaped.

Names, folders, log lines and error texts come from outside and may contain escape sequences that
control a terminal. `guarded` filters both streams while a verb runs: control characters are
escaped, except sequences that set colours. `SafeConsole` escapes those too in what it prints.

With `--json`, stdout and stderr have JSON only, one object per line: an error is `{"error":
{"code", "message", "hint", "exit_code"}}`, as in the REST API, a note is `{"note": "…"}`.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# JSON does not escape these, and some terminals interpret them.
JSON_CONTROLS = {code: f"\\u{code:04x}" for code in range(127, 160)}

MAX_NOTE = 300


class Guarded:
    """A text stream that escapes control characters, except colours."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text with escaped control characters."""
        parts = _COLOUR.split(text)
        parts[::2] = map(escaped, parts[::2])
        self.stream.write("".join(parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard stdout and stderr in this block."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("Any", Guarded(out)), cast("Any", Guarded(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def escaped(text: str) -> str:
    """A text with escaped control characters."""
    if not _CONTROL.search(text):
        return text
    # Imported only if needed: `--help` needs neither settings nor msgspec.
    from strata.logsetup import printable

    return printable(text)


def wants_json(arguments: list[str]) -> bool:
    """Whether the command line asks for JSON."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def as_line(value: object) -> str:
    """A value as one line of JSON without control characters."""
    return json.dumps(value, ensure_ascii=False).translate(JSON_CONTROLS)


def note(text: str) -> None:
    """Print a note to stderr, as JSON with `--json`."""
    line = as_line({"note": text}) if wants_json(sys.argv[1:]) else escaped(text)
    print(line, file=sys.stderr, flush=True)


def print_error(code: str, message: str, hint: str, exit_code: int) -> None:
    """Print an error with its hint to stderr, as JSON with `--json`."""
    if wants_json(sys.argv[1:]):
        error = {"code": code, "message": message, "hint": hint, "exit_code": exit_code}
        print(as_line({"error": error}), file=sys.stderr)
        return
    print(f"strata: {escaped(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {escaped(hint)}", file=sys.stderr)


def open_page(url: str, *, possible: bool) -> None:
    """Open a page in the browser; prints a note if there is none. A text browser is not started,
    because it would take over this terminal.
    """
    if not possible:
        note("there is no desktop to open a browser on: open the dashboard's address yourself")
        return
    # Imported here: few commands open a page. In a thread: some browsers return when closed.
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def notify(out: IO[str], title: str, text: str, *, desktop: bool) -> None:
    """Show a notification on the desktop or in the terminal; `text` has no control characters.

    `notify-send` shows it if it is installed and there is a `desktop` session. Otherwise the
    terminal is asked (OSC 9, which several terminals show as a notification) and rings its bell.
    Failures are ignored, because the text is printed too.
    """
    shown = " ".join(text.split())[:MAX_NOTE]
    program = shutil.which("notify-send") if desktop else None
    if program is not None:
        with suppress(OSError):
            subprocess.Popen(
                [program, "--app-name=Strata", "--", title, shown],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            return
    while isinstance(out, Guarded):
        out = out.stream
    out.write(f"\x1b]9;{title}: {shown}\x07\x07")
    out.flush()
