"""Output of `strata goodput` in the terminal, and at the end of `strata run`."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.support.tables import plain
from strata.timeline.goodput.goodput_answers import (
    CauseAnswer,
    ClassShare,
    GoodputAnswer,
    GoodputRow,
    RunsGoodput,
    TimeClass,
)
from strata.timeline.goodput.prices import money
from strata.timeline.read.sentences import counted, lasting

BAR = 24
EIGHTHS = " ▏▎▍▌▋▊▉█"
STYLES: dict[TimeClass, str] = {
    "productive": "green",
    "data_wait": "blue",
    "communication_wait": "cyan",
    "straggler_wait": "yellow",
    "checkpoint_stall": "magenta",
    "checkpoint_restore": "magenta",
    "loss_detection": "red",
    "replacement_wait": "red",
    "starting": "bright_blue",
    "rolled_back": "red",
    "evaluation": "cyan",
    "paused": "yellow",
}
DIM = "bright_black"


def bar(share: float, width: int = BAR) -> str:
    """A share as a bar; a share above 0 is at least the thinnest bar."""
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def percent(share: float) -> str:
    """A share in percent; one below 0.1 % is not shown as 0."""
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def show_classes(out: Console, found: GoodputAnswer) -> None:
    """Print the goodput, and a line for each class."""
    total = f"{lasting(found.total_s)} of {counted(found.workers, 'worker')}"
    head = Text.assemble(
        (f"goodput {percent(found.goodput)}", "bold green"), f"  {plain(found.task)}: {total}"
    )
    if found.cost is not None:
        lost = money(found.currency, found.lost_cost)
        head.append(f" = {money(found.currency, found.cost)}, of which {lost} was lost")
    out.print(head, soft_wrap=True)
    out.print(_classes(found.classes, found.currency))
    if found.pending_s:
        pending = f"  not counted yet: {lasting(found.pending_s)} of steps that are not finished"
        out.print(Text(f"{pending} or not committed", style=DIM), soft_wrap=True)


def _classes(classes: Sequence[ClassShare], currency: str) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for each in classes:
        style = STYLES.get(each.name, DIM)
        grid.add_row(
            f"  {each.label}",
            lasting(each.seconds),
            percent(each.share),
            money(currency, each.cost),
            Text(bar(each.share), style=style),
        )
    return grid


def show(out: Console, found: GoodputAnswer) -> None:
    """Print the classes, then the causes with what would have saved their time."""
    show_classes(out, found)
    show_causes(out, found.causes, found.causes_total, found.currency)
    _show_notes(out, found.notes)


def show_causes(out: Console, causes: Sequence[CauseAnswer], total: int, currency: str) -> None:
    """Print the most expensive causes."""
    if not causes:
        return
    out.print()
    more = f", the most expensive of {total:,}" if total > len(causes) else ""
    out.print(Text(f"causes of lost time{more}", style="bold"))
    for each in causes:
        line = Text.assemble(f"  {lasting(each.seconds):>9}")
        if each.cost is not None:
            line.append(f"  {money(currency, each.cost):>10}")
        line.append(f"  {plain(each.text)}")
        if each.ref:
            line.append(f"  {plain(each.ref)}", style="cyan")
        out.print(line, soft_wrap=True)
        if each.saving is not None:
            saving = plain(each.saving.text)
            out.print(Text(f"             {saving}", style="green"), soft_wrap=True)


def _show_notes(out: Console, notes: Sequence[str]) -> None:
    for note in notes:
        out.print(Text(f"  {plain(note)}", style="yellow"), soft_wrap=True)


def show_runs(out: Console, found: RunsGoodput) -> None:
    """Print the goodput over several runs: by run, week, host and kind of cause."""
    text = f"  {counted(len(found.runs), 'run')}: {lasting(found.total_s)} of worker time"
    head = Text.assemble((f"goodput {percent(found.goodput)}", "bold green"), text)
    if found.cost is not None:
        head.append(f" = {money(found.currency, found.cost)}")
    out.print(head)
    for title, rows in (("run", found.runs), ("week", found.weeks), ("host", found.hosts)):
        if rows:
            out.print()
            out.print(_rows(title, rows, found.currency))
    if found.kinds:
        out.print()
        out.print(_kinds(found))
    show_causes(out, found.causes, sum(each.count for each in found.kinds), found.currency)
    _show_notes(out, [*found.notes, *(f"left out: {each}" for each in found.left_out)])


def _kinds(found: RunsGoodput) -> Table:
    lost_s = sum(each.seconds for each in found.kinds)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("lost time by kind of cause", no_wrap=True)
    for name in ("lost", "share", "cost", "causes"):
        grid.add_column(name, justify="right", no_wrap=True)
    for each in found.kinds:
        grid.add_row(
            plain(each.text),
            lasting(each.seconds),
            percent(each.seconds / lost_s),
            money(found.currency, each.cost),
            f"{each.count:,}",
        )
    return grid


def _rows(title: str, rows: Sequence[GoodputRow], currency: str) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column(title, no_wrap=True)
    for name in ("worker time", "goodput", "cost"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("")
    for each in rows:
        grid.add_row(
            plain(each.name),
            lasting(each.total_s),
            percent(each.goodput),
            money(currency, each.cost),
            Text(bar(each.goodput), style="green"),
        )
    return grid
