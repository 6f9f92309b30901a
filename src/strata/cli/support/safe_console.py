"""A rich console that escapes control characters in what it prints."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from strata.cli.support.terminal import Guarded
from strata.logsetup import printable


class SafeConsole(Console):
    """Prints to stdout or stderr; control characters in the printed text are escaped.

    It bypasses the stream's `Guarded` filter, because it moves the cursor itself.
    """

    def __init__(self, *, stderr: bool = False, **given: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        raw: Any = stream.stream if isinstance(stream, Guarded) else stream
        if hasattr(raw, "reconfigure"):
            raw.reconfigure(errors="replace")  # unsupported characters become question marks
        super().__init__(file=raw, highlight=False, emoji=False, **given)
        self.push_render_hook(_Escaping())


class _Escaping(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """A renderable with escaped control characters."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            text = segment.text if segment.control else printable(segment.text)
            yield Segment(text, segment.style, segment.control)
