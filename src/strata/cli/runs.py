"""List recorded runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from strata.cli.support.options import AsJson
from strata.cli.support.tables import (
    console,
    count,
    duration,
    plain,
    print_empty,
    print_json,
)
from strata.cli.support.terminal import note
from strata.cli.support.timeline_output import stamp
from strata.config import load_process
from strata.errors import NotFound, StrataError
from strata.timeline.answers import RunRow

Where = Annotated[
    str,
    typer.Argument(
        metavar="[WHERE]",
        help="A data folder, a folder of runs, or s3://bucket/prefix.",
    ),
]
NUMBERS = frozenset({"lasted", "facts", "events"})
MAX_LINES = 20
TITLES = ("run", "stored as", "from", "lasted", "facts", "events", "tasks")


def left_out(name: str, error: StrataError) -> None:
    """Say which run is not in the list, and why."""
    note(f"run {name} is left out: {error.message}")


def runs(where: Where = "", as_json: AsJson = False) -> None:
    """List the runs in a folder or object storage; forks are below the task they come from.

    Without WHERE: the log in the data folder, and the finished runs archived from it.
    """
    from strata.timeline.archive.run_list import runs_at

    settings = load_process({})
    place = where or settings.data_dir
    if where and "://" not in where and not Path(where).exists():
        raise NotFound(f"there is no folder {where}", hint="check the path")
    found = runs_at(place, settings, on_unreadable=left_out)
    if not where and settings.archive_to:
        found += runs_at(settings.archive_to, settings)
    if as_json:
        print_json([msgspec.json.encode(row) for row in found])
        return
    if not found:
        print_empty(f"no runs found in {plain(place)}", "strata run train.py")
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in TITLES:
        justify: Literal["left", "right"] = "right" if title in NUMBERS else "left"
        # A run is named in other commands, so its name is never shortened.
        grid.add_column(title, justify=justify, no_wrap=title == "run")
    for depth, row in in_tree(found):
        grid.add_row(
            f"{branch(depth)}{plain(row.name)}",
            Text("Parquet" if row.archived else "log", style="cyan" if row.archived else "green"),
            stamp(row.from_ms, dated=True),
            duration((row.to_ms - row.from_ms) / 1000),
            count(row.facts),
            count(row.events),
            "\n".join(shown_tasks(row)),
        )
    console().print(grid)


def in_tree(rows: list[RunRow]) -> Iterator[tuple[int, RunRow]]:
    """Each run with its depth: an archived fork comes after the run of its parent."""
    at = {task: number for number, row in enumerate(rows) for task in row.tasks}
    parents = [
        next((at[fork.parent] for fork in row.forks if row.archived and fork.parent in at), number)
        for number, row in enumerate(rows)
    ]
    below: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        if parent != number:
            below.setdefault(parent, []).append(number)

    def walk(number: int, depth: int) -> Iterator[tuple[int, RunRow]]:
        yield depth, rows[number]
        for child in below.get(number, ()):
            yield from walk(child, depth + 1)

    for number, parent in enumerate(parents):
        if parent == number:
            yield from walk(number, 0)


def shown_tasks(row: RunRow) -> list[str]:
    """The tasks of a run, one per line if some are forks: each below the task it comes from."""
    if not row.forks:
        return [plain(", ".join(row.tasks[:3])) + (" …" if len(row.tasks) > 3 else "")]
    origin = {fork.task: fork for fork in row.forks}
    below: dict[str, list[str]] = {}
    for fork in row.forks:
        below.setdefault(fork.parent, []).append(fork.task)

    def walk(task: str, depth: int) -> Iterator[str]:
        fork = origin.get(task)
        named = f"{task} at step {count(fork.step)}" if fork and depth else task
        if fork and not depth:
            named = f"{task}, fork of {fork.parent} at step {count(fork.step)}"
        yield f"{branch(depth)}{plain(named)}"
        for child in below.get(task, ()):
            yield from walk(child, depth + 1)

    here = set(row.tasks)
    roots = [each for each in row.tasks if each not in origin or origin[each].parent not in here]
    lines = [line for root in roots for line in walk(root, 0)]
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"… and {more} more"] if more > 0 else [])]


def branch(depth: int) -> str:
    """The indentation of a fork."""
    return f"{'  ' * (depth - 1)}└ " if depth else ""
