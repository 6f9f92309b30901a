"""What the verbs write to stdout and stderr, and the one place where it is made harmless.

Names, folders, log lines and error texts come from outside and may contain escape sequences that
drive a terminal. `guarded` puts a filter around both streams for as long as a verb runs: control
characters are spelt out, and only sequences that set colours pass. `SafeConsole` spells out even
these in what it is given to print.

With `--json` stdout has JSON only, and so has stderr: an error is `{"error": {"code", "message",
"hint", "exit_code"}}`, as in the REST API, a remark `{"note": "…"}`; each is one line.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# JSON leaves these as they are, and some terminals obey them.
JSON_CONTROLS = {code: f"\\u{code:04x}" for code in range(127, 160)}


class Guarded:
    """A text stream that spells out control characters; only colours pass."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes a text without what could drive a terminal."""
        parts = _COLOUR.split(text)
        parts[::2] = map(spelt_out, parts[::2])
        self.stream.write("".join(parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Both standard streams are guarded until the block ends."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("Any", Guarded(out)), cast("Any", Guarded(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def spelt_out(text: str) -> str:
    """A text with its control characters spelt out."""
    if not _CONTROL.search(text):
        return text
    # Imported where there is something to do: `--help` needs neither settings nor msgspec.
    from strata.logsetup import printable

    return printable(text)


def wants_json(arguments: list[str]) -> bool:
    """Whether the command line asks for JSON."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def as_line(value: object) -> str:
    """A value as one line of JSON that no terminal obeys."""
    return json.dumps(value, ensure_ascii=False).translate(JSON_CONTROLS)


def note(text: str) -> None:
    """Prints a remark to stderr, as JSON where that is asked for."""
    line = as_line({"note": text}) if wants_json(sys.argv[1:]) else spelt_out(text)
    print(line, file=sys.stderr, flush=True)


def print_error(code: str, message: str, hint: str, exit_code: int) -> None:
    """Prints an error to stderr: a sentence and a hint, or an object where JSON is asked for."""
    if wants_json(sys.argv[1:]):
        error = {"code": code, "message": message, "hint": hint, "exit_code": exit_code}
        print(as_line({"error": error}), file=sys.stderr)
        return
    print(f"strata: {spelt_out(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {spelt_out(hint)}", file=sys.stderr)
