"""List recorded runs."""

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

Where = Annotated[
    str,
    typer.Argument(
        metavar="[WHERE]",
        help="A data folder, a folder of runs, or s3://bucket/prefix.",
    ),
]
NUMBERS = frozenset({"lasted", "facts", "events"})
TITLES = ("run", "stored as", "from", "lasted", "facts", "events", "tasks")


def left_out(name: str, error: StrataError) -> None:
    """Say which run is not in the list, and why."""
    note(f"run {name} is left out: {error.message}")


def runs(where: Where = "", as_json: AsJson = False) -> None:
    """List the runs in a folder or object storage.

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
    for row in found:
        tasks = ", ".join(row.tasks[:3]) + (" …" if len(row.tasks) > 3 else "")
        grid.add_row(
            plain(row.name),
            Text("Parquet" if row.archived else "log", style="cyan" if row.archived else "green"),
            stamp(row.from_ms, dated=True),
            duration((row.to_ms - row.from_ms) / 1000),
            count(row.facts),
            count(row.events),
            plain(tasks),
        )
    console().print(grid)
