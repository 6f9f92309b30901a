"""Write a run down for others: Perfetto to look at, Parquet to keep, JSON lines, OTLP."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata.cli._api import reach
from strata.cli._extras import needed
from strata.cli._look import count
from strata.cli._options import Url
from strata.cli._past import Data, RunName, opened, past_of, time_in
from strata.config import load_process
from strata.errors import InvalidArgument
from strata.timeline.desk import Desk

Format = Literal["perfetto", "parquet", "jsonl", "otlp"]
OfFormat = Annotated[Format, typer.Option("--format", help="What to write.")]
Out = Annotated[
    str,
    typer.Option(
        "--out",
        help="A file; for parquet a folder or s3://bucket/prefix, with --from or --to a file; "
        "for otlp an address.",
    ),
]
From = Annotated[str, typer.Option("--from", help="Where to begin.", show_default=False)]
To = Annotated[str, typer.Option("--to", help="Where to end.", show_default=False)]


def export(
    out: Out,
    format: OfFormat = "perfetto",
    start: From = "",
    end: To = "",
    data: Data = "",
    run: RunName = "",
    url: Url = None,
) -> None:
    """Write a run down for others: Perfetto to look at, Parquet to keep, JSON lines, OTLP.

    Open a Perfetto trace at ui.perfetto.dev. A run kept as Parquet is read like a live one: give
    its folder as --data. With --from or --to Parquet is one file with the events of that window.
    """
    if not data:
        fetch(format, out, start, end, run, url)
        return
    with opened(data, run) as timeline:
        desk = Desk(timeline)
        from_ms = time_in(desk, start) if start else None
        to_ms = time_in(desk, end) if end else None
        if format == "parquet" and (start or end):
            write_window(desk, out, from_ms, to_ms)
        elif format == "parquet":
            keep(desk, out, run)
        elif format == "otlp":
            sent = needed("strata.timeline.otlp", "opentelemetry", "otlp").send(
                timeline, out, *desk.window(from_ms, to_ms)
            )
            typer.echo(f"sent {count(sent.spans)} spans and {count(sent.logs)} records to {out}")
        else:
            with Path(out).open("wb") as file:
                file.writelines(desk.export(format, from_ms, to_ms))
            typer.echo(f"wrote {out}")


def keep(desk: Desk, out: str, run: str) -> None:
    """Keeps the whole run as Parquet, under its name."""
    from strata.timeline.archiving import archive

    name = run or desk.timeline.name or "run"
    kept = archive(desk.timeline, out, name, load_process({}))
    events = sum(stream.events for stream in kept.streams)
    typer.echo(f"kept {count(kept.position)} facts and {count(events)} events as {out}/{name}")


def write_window(desk: Desk, out: str, from_ms: float | None, to_ms: float | None) -> None:
    """Writes the events of a window as one Parquet file; a run to read back has the whole."""
    if "://" in out or Path(out).is_dir():
        raise InvalidArgument(
            f"a part of a run is written as one Parquet file, and {out} is not a file's name",
            hint="name a file with --out, or leave --from and --to out to keep the whole run",
        )
    from strata.timeline.columns import tables
    from strata.timeline.exporting import write_file

    records = desk.timeline.records(*desk.window(from_ms, to_ms))
    write_file(Path(out), tables(records, exact=True))
    typer.echo(f"wrote {out}")


def fetch(format: Format, out: str, start: str, end: str, run: str, url: str | None) -> None:
    """What a coordinator that runs exports over its API."""
    if format == "otlp":
        raise InvalidArgument("OTLP is sent from a run's folder", hint="name it with --data")
    past = past_of("", run, url)
    from_ms = repr(time_in(past, start)) if start else None
    to_ms = repr(time_in(past, end)) if end else None
    answer = reach(url).get(
        "/api/timeline/export", format=format, from_ms=from_ms, to_ms=to_ms, run=run
    )
    Path(out).write_bytes(answer.body)
    typer.echo(f"wrote {out}")
