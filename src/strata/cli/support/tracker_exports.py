"""The export of a task's metrics to TensorBoard, MLflow and Weights & Biases."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import msgspec
import typer

from strata.cli.support.past_source import opened
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.tables import count
from strata.cli.support.terminal import note
from strata.config import mlflow_token
from strata.core.workers.worker_facts import MediaLogged
from strata.errors import DeadlineExceeded, Unavailable
from strata.timeline.answers import EventDetail

if TYPE_CHECKING:
    from strata.timeline.forward.forwarding import Destination, Source
    from strata.timeline.forward.logged_pages import LoggedItem, LoggedPage

Tracker: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]

BATCH = 500
AWAY_S = 5.0

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


class RemoteSource:
    """What one rank of a task logged, over a coordinator's REST API."""

    def __init__(self, api: Api, run: str, task: str, rank: int) -> None:
        self.rank = rank
        self._api = api
        self._run = run
        self._task = task
        self._reached = False

    def page(self, cursor: str) -> "LoggedPage":
        """The items after a cursor; once reached, a coordinator that is away is waited for."""
        from strata.timeline.forward.logged_pages import LoggedPage

        while True:
            try:
                answer = self._api.get(
                    "/api/timeline/logged",
                    task=self._task,
                    rank=self.rank,
                    cursor=cursor,
                    limit=BATCH,
                    run=self._run,
                )
            except (Unavailable, DeadlineExceeded) as error:
                if not self._reached:
                    raise
                note(f"{error.message}; trying again in {AWAY_S:.0f} s")
                time.sleep(AWAY_S)
                continue
            self._reached = True
            return self._api.decode(answer.body, LoggedPage)

    def media(self, item: "LoggedItem") -> MediaLogged:
        """The content of an image, text or histogram."""
        answer = self._api.get(f"/api/timeline/event/{item.ref}", run=self._run)
        return msgspec.convert(self._api.decode(answer.body, EventDetail).body, MediaLogged)


def tracker_of(format: str) -> Tracker | None:
    """The format, if it is one of these tools."""
    return next((each for each in get_args(Tracker) if each == format), None)


def forward(
    tracker: Tracker,
    out: str,
    *,
    data: str,
    run: str,
    url: str | None,
    task: str,
    rank: int,
    follow: bool,
    project: str,
    state: str,
) -> None:
    """Send what a task logged to a tool."""
    from strata.timeline.forward.forwarding import Forwarder, LogSource

    with opened(data, run) if data else nullcontext() as timeline:
        source: Source = (
            RemoteSource(reach(url), run, task, rank)
            if timeline is None
            else LogSource(timeline, task, rank)
        )
        name = source.page("").task
        path = Path(state or f"strata-{tracker}-{name}.json")
        destination = destination_of(tracker, out, project, source)
        forwarder = Forwarder(source, destination, path)
        forwarder.run(follow)
    if tracker == "mlflow":
        typer.echo(f"sent {count(forwarder.sent)} values of {name} to {out}")
    else:
        folder = f"{out}/{name}" if tracker == "tensorboard" else out
        typer.echo(f"wrote {count(forwarder.sent)} values of {name} to {folder}")


def destination_of(tracker: Tracker, out: str, project: str, source: "Source") -> "Destination":
    """The tool to send to."""
    if tracker == "mlflow":
        from strata.timeline.forward.mlflow_runs import MlflowRuns

        return MlflowRuns(out, project, source, note, mlflow_token())
    if tracker == "wandb":
        from strata.timeline.forward.wandb_runs import WandbRuns

        return WandbRuns(Path(out), project, source, note)
    from strata.timeline.forward.tensorboard_files import TensorBoardFolder

    return TensorBoardFolder(Path(out), source)
