"""Query a run with SQL."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from strata.cli.support.options import AsJson, Limit
from strata.cli.support.past_source import RunName, opened
from strata.cli.support.tables import console, plain, print_json
from strata.cli.support.terminal import note
from strata.config import load_process

if TYPE_CHECKING:
    from strata.timeline.read.run_timeline import Timeline

Query = Annotated[str, typer.Argument(metavar="QUERY", help="One query in DuckDB's SQL.")]
Data = Annotated[
    str,
    typer.Option(
        "--data", help="Folder of the run or s3://bucket/prefix; default: the data folder."
    ),
]


def sql(
    query: Query,
    data: Data = "",
    run: RunName = "",
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Query a run with SQL. Tables: events, operations, steps, workers, samples, activity.

    The first query of a log decodes it into a file beside the log; later queries add new events.
    """
    from strata.timeline.export import sql_queries

    with opened(data or load_process({}).data_dir, run) as timeline:
        found = sql_queries.query(timeline, query, limit)
        note_missing(timeline)
    if as_json:
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        print_json([msgspec.json.encode(row, enc_hook=str) for row in rows])
        return
    out = console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(found.columns):
        numeric = all(isinstance(row[place], int | float) for row in found.rows)
        grid.add_column(plain(column), justify="right" if numeric else "left", overflow="fold")
    for row in found.rows:
        grid.add_row(*map(cell, row))
    out.print(grid)
    if found.more:
        out.print(Text(f"only the first {limit:,} rows are shown; see --limit", style="dim"))


def note_missing(timeline: "Timeline") -> None:
    """Say on stderr that rows are missing, since a query does not show it."""
    # Imported here: the command line starts without the timeline.
    from strata.timeline.read.log_trust import examine

    grave = [finding.text for finding in examine(timeline).findings if finding.grave]
    if grave:
        more = f", and {len(grave) - 1} more" if len(grave) > 1 else ""
        note(f"rows may be missing: {grave[0]}{more}; `strata why trust` lists all")


def cell(value: object) -> str:
    """A value as table text."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return plain(str(value))
