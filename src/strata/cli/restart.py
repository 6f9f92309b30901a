"""Run a task again; a running one is stopped first."""

import time
from pathlib import Path

import msgspec
import typer

from strata.cli.stop import Task
from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.tables import print_json
from strata.cli.support.task_options import Env, pairs
from strata.cli.support.task_watch import ENDED
from strata.coordinator.rest.action_responses import CreateTaskResponse
from strata.coordinator.rest.response_models import TaskResponse
from strata.errors import NotAllowedNow

LOOK_S = 0.1


def restart(task: Task, env: Env = None, url: Url = None, as_json: AsJson = False) -> None:
    """Run a task again as it was submitted, and print the new id. A running task is stopped first.

    Values of environment variables are not stored, so pass them again with --env.
    """
    api = reach(url)
    given = {"PWD": str(Path.cwd())} | pairs(env, "--env")
    try:
        created = again(api, task, given)
    except NotAllowedNow:
        api.post(f"/api/tasks/{task}/stop")
        while api.decode(api.get(f"/api/tasks/{task}").body, TaskResponse).status not in ENDED:
            time.sleep(LOOK_S)
        created = again(api, task, given)
    if as_json:
        print_json([msgspec.json.encode(created)])
    else:
        typer.echo(created.task_id)


def again(api: Api, task: str, env: dict[str, str]) -> CreateTaskResponse:
    """Request a restart of the task."""
    return api.decode(api.post(f"/api/tasks/{task}/restart", {"env": env}), CreateTaskResponse)
