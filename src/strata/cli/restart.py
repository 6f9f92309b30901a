"""Run a task again as it was asked for; one that still runs is stopped first."""

import time
from pathlib import Path

import msgspec
import typer
from msgspec import Struct

from strata.cli._api import Api, reach
from strata.cli._look import print_json
from strata.cli._options import AsJson, Url
from strata.cli._submission import Created, Env, pairs
from strata.cli._watch import ENDED
from strata.cli.stop import Task
from strata.errors import NotAllowedNow

LOOK_S = 0.1


class Seen(Struct, frozen=True):
    """How a task is."""

    status: str


def restart(task: Task, env: Env = None, url: Url = None, as_json: AsJson = False) -> None:
    """Run a task again as it was submitted; prints the new id.

    The values of its environment variables may be secret and are not kept, so give them again.
    """
    api = reach(url)
    given = {"PWD": str(Path.cwd())} | pairs(env, "--env")
    try:
        created = again(api, task, given)
    except NotAllowedNow:
        api.post(f"/api/tasks/{task}/stop")
        while api.decode(api.get(f"/api/tasks/{task}").body, Seen).status not in ENDED:
            time.sleep(LOOK_S)
        created = again(api, task, given)
    if as_json:
        print_json([msgspec.json.encode(created)])
    else:
        typer.echo(created.task_id)


def again(api: Api, task: str, env: dict[str, str]) -> Created:
    """Asks for the task once more."""
    return api.decode(api.post(f"/api/tasks/{task}/restart", {"env": env}), Created)
