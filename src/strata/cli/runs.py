"""List the runs that were kept: a data folder, a folder of archives, or s3://bucket/prefix."""

from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from strata.cli._look import console, count, duration, plain, print_empty, print_json
from strata.cli._options import AsJson
from strata.cli._scene import stamp
from strata.config import load_process

Where = Annotated[str, typer.Argument(metavar="[WHERE]", help="A folder, or s3://bucket/prefix.")]
NUMBERS = frozenset({"lasted", "facts", "events"})
TITLES = ("run", "kept as", "from", "lasted", "facts", "events", "tasks")


def runs(where: Where = "", as_json: AsJson = False) -> None:
    """List the runs at a place: a data folder, a folder of archives, or s3://bucket/prefix.

    Without one: the log of the data folder, and the finished runs that were archived from it.
    """
    from strata.timeline.runs import runs_at

    settings = load_process({})
    place = where or settings.data_dir
    found = runs_at(place, settings)
    if not where and settings.archive_to:
        found += runs_at(settings.archive_to, settings)
    if as_json:
        print_json([msgspec.json.encode(row) for row in found])
        return
    if not found:
        print_empty(f"there are no runs at {plain(place)}", "strata run train.py")
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in TITLES:
        grid.add_column(title, justify="right" if title in NUMBERS else "left")
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
