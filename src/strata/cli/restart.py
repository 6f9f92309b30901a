"""Run a task again as it was asked for; one that still runs is stopped first."""

import time
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct

from strata.cli._api import Api, reach
from strata.cli._options import Url
from strata.cli._submission import Created, Env, pairs
from strata.cli._watch import ENDED
from strata.cli.stop import Task
from strata.errors import InvalidArgument

LOOK_S = 0.1


class Asked(Struct, frozen=True):
    """What was asked for."""

    id: str
    name: str
    type: str
    status: str
    dataset_id: str
    worker_count: int
    entry: str
    args: list[str]
    env_names: list[str]
    config: dict[str, Any]
    policy: str
    min_workers: int
    spares: int
    model_state: str
    keep_count: int
    max_restarts: int
    external: bool


def restart(task: Task, env: Env = None, url: Url = None) -> None:
    """Run a task again as it was asked for; prints the new id.

    The values of its environment are not told to anybody, so they have to be given again.
    """
    api = reach(url)
    asked = look(api, task)
    if asked.external:
        raise InvalidArgument(f"{task} was not started by strata", hint="start its workers again")
    given = {"PWD": str(Path.cwd())} | pairs(env, "--env")
    missing = [name for name in asked.env_names if name not in given]
    if missing:
        raise InvalidArgument(
            f"{task} needs values for {', '.join(missing)}", hint=f"--env {missing[0]}=VALUE"
        )
    if asked.status not in ENDED:
        api.post(f"/api/tasks/{task}/stop")
    while look(api, task).status not in ENDED:
        time.sleep(LOOK_S)
    body = {
        name: getattr(asked, name)
        for name in Asked.__struct_fields__
        if name not in ("id", "status", "env_names", "external")
    }
    created = api.decode(api.post("/api/tasks", body | {"env": given}), Created)
    typer.echo(created.task_id)


def look(api: Api, task: str) -> Asked:
    """The task as it is now."""
    return api.decode(api.get(f"/api/tasks/{task}").body, Asked)
