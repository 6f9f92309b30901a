"""Submit a task to a coordinator; its agents run it."""

import typer

from strata.cli.support import terminal
from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import print_json
from strata.cli.support.task_options import TaskRequest, task_options
from strata.coordinator.rest.action_responses import CreateTaskResponse
from strata.coordinator.rest.response_models import TaskDetail


@task_options
def submit(task: TaskRequest, url: Url = None, as_json: AsJson = False) -> None:
    """Submit a task and print its id.

    With --workdir the folder of the script is sent to the hosts; otherwise the script must have the
    same path there.
    """
    api = reach(url)
    answer = api.post("/api/tasks", task.sent(api).body)
    created = api.decode(answer, CreateTaskResponse)
    if as_json:
        print_json([answer])
        return
    typer.echo(created.task_id)
    if created.status == "queued":
        task_id = created.task_id
        queued = api.decode(api.get(f"/api/tasks/{task_id}").body, TaskDetail)
        if queued.waiting_for:
            terminal.note(f"{task_id} waits: {queued.waiting_for}")
