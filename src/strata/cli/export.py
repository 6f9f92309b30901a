"""Export a run: Perfetto, Parquet, JSON lines, OTLP, TensorBoard, MLflow or W&B."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata.cli.support.options import OfTask, Url
from strata.cli.support.past_source import (
    Data,
    From,
    RunName,
    To,
    opened,
    past_of,
    time_in,
)
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import count
from strata.cli.support.task_options import is_given
from strata.cli.support.tracker_exports import (
    FollowTask,
    OfRank,
    Project,
    StateFile,
    forward,
    tracker_of,
)
from strata.config import load_process
from strata.errors import InvalidArgument
from strata.timeline.queries import TimelineQueries

Format = Literal["perfetto", "parquet", "jsonl", "otlp", "tensorboard", "mlflow", "wandb"]
WINDOW = {"start": "--from", "end": "--to"}
TRACKED = {"task": "--task", "rank": "--rank", "follow": "--follow"}
SENT = {"project": "--project", "state": "--state"}
"""Options that only some formats take."""

OfFormat = Annotated[Format, typer.Option("--format", help="Format of the export.")]
Out = Annotated[
    str,
    typer.Option(
        "--out",
        help="Target file; parquet: a folder or s3://bucket/prefix (a file with --from or --to); "
        "otlp, mlflow: the URL of the receiver; tensorboard, wandb: a folder.",
    ),
]


def export(
    context: typer.Context,
    out: Out,
    format: OfFormat = "perfetto",
    start: From = "",
    end: To = "",
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    task: OfTask = "",
    rank: OfRank = 0,
    follow: FollowTask = False,
    project: Project = "strata",
    state: StateFile = "",
) -> None:
    """Export a run as a Perfetto trace, Parquet, JSON lines or OTLP; or the metrics of a task to
    TensorBoard, MLflow or Weights & Biases.

    Open a Perfetto trace at ui.perfetto.dev. All verbs read a run exported as Parquet with --data.
    With --from or --to, Parquet is one file with the events of that window.
    """
    refuse_unused(context, format)
    if (tracker := tracker_of(format)) is not None:
        forward(
            tracker,
            out,
            data=data,
            run=run,
            url=url,
            task=task,
            rank=rank,
            follow=follow,
            project=project,
            state=state,
        )
        return
    if not data:
        fetch(format, out, start, end, run, url)
        return
    with opened(data, run) as timeline:
        queries = TimelineQueries(timeline)
        from_ms = time_in(queries, start) if start else None
        to_ms = time_in(queries, end) if end else None
        if format == "parquet" and (start or end):
            write_window(queries, out, from_ms, to_ms)
        elif format == "parquet":
            keep(queries, out, run)
        elif format == "otlp":
            from strata.timeline.export import otlp

            sent = otlp.send(timeline, out, *queries.window(from_ms, to_ms))
            typer.echo(f"sent {count(sent.spans)} spans and {count(sent.logs)} records to {out}")
        else:
            with Path(out).open("wb") as file:
                file.writelines(queries.export(format, from_ms, to_ms))
            typer.echo(f"wrote {out}")


def refuse_unused(context: typer.Context, format: Format) -> None:
    """Raise for an option that the format does not take."""
    if tracker_of(format) is None:
        unused = TRACKED | SENT
    else:
        unused = WINDOW | (SENT if format == "tensorboard" else {})
    wrong = [option for name, option in unused.items() if is_given(context, name)]
    if wrong:
        raise InvalidArgument(
            f"{', '.join(wrong)} cannot be used with --format {format}",
            hint="leave it out; `strata export --help` lists the options",
        )


def keep(queries: TimelineQueries, out: str, run: str) -> None:
    """Export the whole run as Parquet, under its name."""
    from strata.timeline.archive.run_archive import archive

    name = run or queries.timeline.name or "run"
    kept = archive(queries.timeline, out, name, load_process({}))
    events = sum(stream.events for stream in kept.streams)
    typer.echo(f"wrote {count(kept.position)} facts and {count(events)} events to {out}/{name}")


def write_window(
    queries: TimelineQueries, out: str, from_ms: float | None, to_ms: float | None
) -> None:
    """Write the events of a window as one Parquet file; it cannot be opened with --data."""
    if "://" in out or Path(out).is_dir():
        raise InvalidArgument(
            f"--out is {out}, but a window of a run is written to one Parquet file",
            hint="give a file name, or omit --from and --to to export the whole run",
        )
    from strata.timeline.archive.event_columns import tables
    from strata.timeline.export.event_files import write_file

    records = queries.timeline.records(*queries.window(from_ms, to_ms))
    write_file(Path(out), tables(records, exact=True))
    typer.echo(f"wrote {out}")


def fetch(format: Format, out: str, start: str, end: str, run: str, url: str | None) -> None:
    """Export over the REST API of a coordinator."""
    if format == "otlp":
        raise InvalidArgument("the OTLP export needs the folder of a run", hint="add --data FOLDER")
    past = past_of("", run, url)
    from_ms = repr(time_in(past, start)) if start else None
    to_ms = repr(time_in(past, end)) if end else None
    answer = reach(url).get(
        "/api/timeline/export", format=format, from_ms=from_ms, to_ms=to_ms, run=run
    )
    Path(out).write_bytes(answer.body)
    typer.echo(f"wrote {out}")
