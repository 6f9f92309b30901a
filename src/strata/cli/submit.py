"""Submit a task to a coordinator; its agents run it."""

import typer

from strata.cli import _submission as submission
from strata.cli._api import reach
from strata.cli._look import print_json
from strata.cli._options import AsJson, Url
from strata.cli._submission import (
    Args,
    Config,
    Created,
    Entry,
    Env,
    FreshStart,
    MaxRestarts,
    MinWorkers,
    OfPolicy,
    Spares,
    TaskName,
    Workers,
    Wrap,
)


def submit(
    script: Entry,
    args: Args = None,
    workers: Workers = 1,
    name: TaskName = "",
    policy: OfPolicy = "replace",
    min_workers: MinWorkers = 0,
    spares: Spares = 0,
    max_restarts: MaxRestarts = 3,
    allow_fresh_start: FreshStart = False,
    config: Config = None,
    env: Env = None,
    wrap: Wrap = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task; prints its id. The script has to be at the same place on the agents' hosts."""
    api = reach(url)
    body = submission.request(
        script,
        args,
        workers=workers,
        name=name,
        policy=policy,
        min_workers=min_workers,
        spares=spares,
        max_restarts=max_restarts,
        allow_fresh_start=allow_fresh_start,
        config=config,
        env=env,
        wrap=wrap,
    )
    answer = api.post("/api/tasks", body)
    created = api.decode(answer, Created)
    if as_json:
        print_json([answer])
    else:
        typer.echo(created.task_id)
