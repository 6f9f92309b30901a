"""Terminal output: states, times, sizes, tables.

Text from workers and users goes through `plain`, so that it can neither control the terminal nor
break a line. A table fits the terminal's width: less important columns are omitted if it is narrow,
and long names are shortened. Output to a file or pipe is not shortened.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.support import terminal
from strata.cli.support.rest_client import Api, Listing, Param
from strata.cli.support.safe_console import SafeConsole
from strata.cli.support.terminal import JSON_CONTROLS
from strata.coordinator.rest.response_models import StatusResponse
from strata.logsetup import printable

WIDTH_ELSEWHERE = 200
NOTES_SHOWN = 5

STATES = {
    "active": ("●", "green"),
    "idle": ("○", "dim"),
    "up": ("●", "green"),
    "lost": ("✗", "red"),
    "excluded": ("⊘", "yellow"),
    "checkpointing": ("◆", "cyan"),
    "recovering": ("↻", "yellow"),
    "failed": ("✗", "red"),
    "queued": ("○", "dim"),
    "starting": ("◐", "cyan"),
    "running": ("●", "green"),
    "stopping": ("◑", "yellow"),
    "completed": ("✓", "green"),
    "stopped": ("■", "dim"),
    "waiting": ("◔", "yellow"),
    "released": ("✓", "green"),
    "in_progress": ("◔", "cyan"),
}

Item = TypeVar("Item")
Cell = Text | str


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column: its cell for an item at a time, and the terminal width from which it is shown."""

    title: str
    cell: Callable[[Item, int], Cell]
    justify: Literal["left", "right"] = "left"
    shrinks: bool = False
    from_width: int = 0


@dataclass(frozen=True)
class Look(Generic[Item]):
    """How a list is shown: its columns, the text if it is empty, and notes on some items, each with
    a mark and its style.

    `next_command` is suggested if the list is empty; by default the command that adds a worker.
    """

    verb: str
    kind: type[Item]
    columns: Sequence[Column[Item]]
    empty: str
    next_command: str = ""
    note: Callable[[Item], str] = lambda _: ""
    mark: Callable[[Item], tuple[str, str]] = lambda _: STATES["failed"]


def console() -> Console:
    """A console for stdout."""
    width = shutil.get_terminal_size((WIDTH_ELSEWHERE, 50)).columns
    return SafeConsole(markup=False, width=width)


def print_json(items: Sequence[bytes | msgspec.Raw]) -> None:
    """Print each item as one line, as the coordinator encoded it."""
    for item in items:
        typer.echo(bytes(item).decode().translate(JSON_CONTROLS))


def print_list(api: Api, look: Look[Item], limit: int, as_json: bool, **filters: Param) -> None:
    """Print a list as JSON, or as a table with notes."""

    def print_none() -> None:
        if any(filters.values()):
            print_empty(f"no {look.verb} match", f"strata {look.verb}")
        else:
            print_empty(look.empty, look.next_command or join_command(api))

    found = api.listing(f"/api/{look.verb}", limit, **filters)
    print_found(look, found, as_json, print_none, api.decode)


def print_found(
    look: Look[Item],
    found: Listing,
    as_json: bool,
    print_none: Callable[[], None],
    decode: Callable[[msgspec.Raw, type[Item]], Item],
) -> None:
    """Print items as JSON, or as a table with notes; `print_none` prints that there are none."""
    if as_json:
        print_json(found.items)
    elif found.items:
        items = [decode(item, look.kind) for item in found.items]
        out = console()
        out.print(table(look.columns, items, found.now_ms, out.width))
        notes = [(look.mark(item), note) for item in items if (note := look.note(item))]
        print_notes(out, notes)
    else:
        print_none()
    if len(found.items) < found.total:
        hint = f"--limit {found.total} shows all"
        terminal.note(f"{len(found.items):,} of {found.total:,} shown; {hint}")


def print_empty(sentence: str, next_command: str) -> None:
    """Print that there are no items, and a command to run next."""
    out = console()
    out.print(Text(sentence))
    out.print(Text.assemble(("next: ", "dim"), (next_command, "bold")), soft_wrap=True)


def join_command(api: Api) -> str:
    """The command that starts a worker for this coordinator."""
    address = api.decode(api.get("/api/status").body, StatusResponse).address or ""
    port = address.rpartition(":")[2]
    return f"COORDINATOR_ADDR={api.host}:{plain(port)} python train.py"


def table(columns: Sequence[Column[Item]], items: list[Item], now_ms: int, width: int) -> Table:
    """A table with the columns that fit the width, one line per item."""
    shown = [column for column in columns if column.from_width <= width]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        grid.add_column(column.title, justify=column.justify, no_wrap=not column.shrinks)
    for item in items:
        grid.add_row(*(one_line(column.cell(item, now_ms)) for column in shown))
    return grid


def one_line(cell: Cell) -> Text:
    """A cell that is shortened instead of wrapped."""
    text = Text(plain(cell)) if isinstance(cell, str) else cell
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def print_notes(out: Console, notes: list[tuple[tuple[str, str], str]]) -> None:
    """Print the first notes below a table, each after its mark."""
    if notes:
        out.print()
    for (glyph, style), note in notes[:NOTES_SHOWN]:
        out.print(Text.assemble((f"{glyph} ", style), plain(note)), soft_wrap=True)
    if len(notes) > NOTES_SHOWN:
        out.print(Text(f"  and {len(notes) - NOTES_SHOWN} more", style="dim"))


def plain(text: str) -> str:
    """A text on one line, with control characters escaped."""
    return printable(" ".join(text.splitlines()))


def shortened(text: str, width: int) -> str:
    """A name cut in the middle to fit a width, because names differ at their ends."""
    text = plain(text)
    kept = width - 1
    return text if len(text) <= width else f"{text[: kept // 2]}…{text[-(kept - kept // 2) :]}"


def state(name: str, count: int | None = None) -> Text:
    """A state with its glyph and colour, and optionally a count."""
    glyph, style = STATES.get(name, ("·", "none"))
    words = plain(name).replace("_", " ")
    return Text(f"{glyph} {words if count is None else f'{count:,} {words}'}", style=style)


def ago(moment_ms: int | None, now_ms: int) -> str:
    """The time since a moment."""
    if moment_ms is None:
        return "–"
    passed_s = (now_ms - moment_ms) // 1000
    return "now" if passed_s < 1 else f"{duration(passed_s)} ago"


def clock(moment_ms: int) -> str:
    """A time of day, with the date if it is not today."""
    moment = datetime.fromtimestamp(moment_ms / 1000)
    day = "" if moment.date() == datetime.now().date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S}.{moment_ms % 1000:03d}"


def duration(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)} {unit}"
    return f"{int(seconds)} s"


def size(size_bytes: int) -> str:
    """A size with one to three digits before the decimal point."""
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.0f} PB"


def count(number: int) -> str:
    """An integer with thousands separators."""
    return f"{number:,}"
