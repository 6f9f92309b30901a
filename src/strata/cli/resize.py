"""Change the number of workers of a running task."""

from typing import Annotated

import typer

from strata.cli.stop import Task
from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import plain, print_json
from strata.cli.support.task_options import worker_range
from strata.coordinator.rest.action_responses import ResizeTaskResponse
from strata.timeline.read.sentences import counted

NewWorkers = Annotated[
    str,
    typer.Option(
        "--workers",
        "-n",
        metavar="N|MIN:MAX",
        help="New number of workers. A range takes free slots up to MAX and gives them back.",
    ),
]


def resize(task: Task, workers: NewWorkers, url: Url = None, as_json: AsJson = False) -> None:
    """Change the number of workers of a task between two of its steps, without a restart.

    New workers get the model from the others. The samples and the global batch stay the same.
    """
    wanted = worker_range(workers)
    api = reach(url)
    body = {"worker_count": wanted.most, "min_workers": wanted.fewest}
    answer = api.post(f"/api/tasks/{task}/resize", body)
    if as_json:
        print_json([answer])
    else:
        typer.echo(outcome(api.decode(answer, ResizeTaskResponse), workers))


def outcome(resized: ResizeTaskResponse, workers: str) -> str:
    """What the resize did, as one line."""
    task = plain(resized.task_id)
    if not resized.changed:
        return f"{task} is already resized to {workers}; nothing changed"
    present = f"{resized.placed} of {resized.placed + resized.waiting} workers"
    before = counted(resized.before, "worker")
    change = f"{task} was resized from {before} to {workers}"
    return f"{change}: {plain(resized.waiting_for) or present}"
