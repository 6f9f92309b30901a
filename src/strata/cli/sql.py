"""Ask in SQL, over everything a run recorded: events, operations, steps, workers, samples."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from strata.cli._extras import needed
from strata.cli._look import console, plain, print_json
from strata.cli._options import AsJson, Limit
from strata.cli._past import RunName, opened
from strata.config import load_process

Query = Annotated[str, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL.")]
Data = Annotated[
    str, typer.Option("--data", help="A run's folder; else where the settings keep the log.")
]


def sql(
    query: Query,
    data: Data = "",
    run: RunName = "",
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Ask in SQL, over everything a run recorded: events, operations, steps, workers, samples.

    The first query of a log decodes it into columns beside it; later ones add what is new.
    """
    engine = needed("strata.timeline.sql", "duckdb", "timeline")
    with opened(data or load_process({}).data_dir, run) as timeline:
        found = engine.query(timeline, query, limit)
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
        out.print(Text(f"only the first {limit:,} rows: --limit", style="dim"))


def cell(value: object) -> str:
    """A value in a table."""
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
