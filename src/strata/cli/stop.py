"""Stop a task gracefully."""

from typing import Annotated

import typer

from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import plain, print_json
from strata.cli.support.texts.known_ids import task_ids
from strata.coordinator.rest.action_responses import StopTaskResponse

Task = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Id of the task, as listed by `strata tasks`.",
        autocompletion=task_ids,
    ),
]


def stop(task: Task, url: Url = None, as_json: AsJson = False) -> None:
    """Stop a task gracefully: its workers can save first. An ended task is not changed."""
    api = reach(url)
    answer = api.post(f"/api/tasks/{task}/stop", reason="stopped by `strata stop`")
    stopped = api.decode(answer, StopTaskResponse)
    if as_json:
        print_json([answer])
        return
    typer.echo(f"{plain(stopped.task_id)} is {plain(stopped.status)}")
