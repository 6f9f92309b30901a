"""The export of a task's metrics to TensorBoard, MLflow and Weights & Biases."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from strata.cli.support.options import needed
from strata.cli.support.past_source import opened
from strata.cli.support.tables import count
from strata.cli.support.terminal import note
from strata.config import mlflow_token
from strata.errors import InvalidArgument

if TYPE_CHECKING:
    from strata.timeline.forward.forwarding import Destination, Source

Tracker: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]

OfRank = Annotated[
    int, typer.Option("--rank", min=0, help="Rank of the worker whose metrics are exported.")
]
FollowTask = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue until the task has ended.")
]
Project = Annotated[str, typer.Option("--project", help="Project of W&B, or experiment of MLflow.")]
StateFile = Annotated[
    str,
    typer.Option(
        "--state",
        help="File that notes what was sent to MLflow or W&B; default: strata-FORMAT-TASK.json.",
        show_default=False,
    ),
]


def tracker_of(format: str) -> Tracker | None:
    """The format, if it is one of these tools."""
    return next((each for each in get_args(Tracker) if each == format), None)


def forward(
    tracker: Tracker,
    out: str,
    *,
    data: str,
    run: str,
    task: str,
    rank: int,
    follow: bool,
    project: str,
    state: str,
) -> None:
    """Send what a task logged to a tool."""
    if not data:
        raise InvalidArgument(
            f"--format {tracker} reads the folder of a run",
            hint="add --data FOLDER: the data folder of a coordinator, or an exported run",
        )
    from strata.timeline.forward.forwarding import Forwarder, Source

    with opened(data, run) as timeline:
        source = Source(timeline, task, rank)
        name = source.page("").task
        path = Path(state or f"strata-{tracker}-{name}.json")
        destination = destination_of(tracker, out, project, source)
        forwarder = Forwarder(source, destination, path)
        forwarder.run(follow)
    typer.echo(f"sent {count(forwarder.sent)} logged items of {name} to {out}")


def destination_of(tracker: Tracker, out: str, project: str, source: "Source") -> "Destination":
    """The tool to send to."""
    if tracker == "mlflow":
        from strata.timeline.forward.mlflow_runs import MlflowRuns

        return MlflowRuns(out, project, source, note, mlflow_token())
    if tracker == "wandb":
        runs = needed("strata.timeline.forward.wandb_runs", "wandb", "wandb")
        made: Destination = runs.WandbRuns(Path(out), project, source, note)
        return made
    from strata.timeline.forward.tensorboard_files import TensorBoardFolder

    return TensorBoardFolder(Path(out), source)
