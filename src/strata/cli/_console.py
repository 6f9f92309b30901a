"""A rich console that prints no control characters but its own."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from strata.cli._terminal import Guarded
from strata.logsetup import printable


class SafeConsole(Console):
    """Prints to stdout or stderr; what it is given cannot drive the terminal.

    It writes past the guard of the stream: it moves the cursor itself while a task is watched.
    """

    def __init__(self, *, stderr: bool = False, **given: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        raw: Any = stream.stream if isinstance(stream, Guarded) else stream
        if hasattr(raw, "reconfigure"):
            raw.reconfigure(errors="replace")  # a character it cannot write becomes a question mark
        super().__init__(file=raw, highlight=False, emoji=False, **given)
        self.push_render_hook(_Spelling())


class _Spelling(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Spelt(each) for each in renderables]


class _Spelt:
    """A renderable whose control characters are spelt out."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            text = segment.text if segment.control else printable(segment.text)
            yield Segment(text, segment.style, segment.control)
