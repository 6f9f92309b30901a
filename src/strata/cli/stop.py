"""Stop a task gracefully: its workers may save first."""

from typing import Annotated

import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import plain, print_json
from strata.cli._options import AsJson, Url

Task = Annotated[
    str, typer.Argument(metavar="TASK", help="Id of the task, as `strata tasks` lists it.")
]


class Stopped(Struct, frozen=True):
    """What became of it."""

    task_id: str
    status: str


def stop(task: Task, url: Url = None, as_json: AsJson = False) -> None:
    """Stop a task gracefully; a task that has ended stays as it is."""
    api = reach(url)
    answer = api.post(f"/api/tasks/{task}/stop")
    stopped = api.decode(answer, Stopped)
    if as_json:
        print_json([answer])
        return
    typer.echo(f"{plain(stopped.task_id)} is {plain(stopped.status)}")
