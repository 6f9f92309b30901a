"""Start a new task from a checkpoint of another one."""

from typing import Annotated

import typer

from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.run_choice import changed_parameters, show_continuation
from strata.cli.support.tables import console, print_json
from strata.cli.support.task_options import (
    Args,
    Config,
    Env,
    Epochs,
    MaxSteps,
    NewWorkdir,
    send_folder,
)
from strata.cli.support.texts.known_ids import task_ids
from strata.coordinator.rest.action_responses import ContinueTaskResponse

Parent = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Id of the task, as listed by `strata tasks`.",
        autocompletion=task_ids,
    ),
]
Step = Annotated[
    int | None,
    typer.Option(min=0, help="Step of the checkpoint to start from; default: the newest."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-n", min=1, help="Number of workers; default: as the task."),
]
Name = Annotated[str | None, typer.Option(help="Name of the new task; default: as the task.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the step and the changes, and start nothing.")
]


def fork(
    task: Parent,
    args: Args = None,
    step: Step = None,
    name: Name = None,
    workers: Workers = None,
    epochs: Epochs = None,
    steps: MaxSteps = None,
    config: Config = None,
    env: Env = None,
    workdir: NewWorkdir = None,
    dry_run: DryRun = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Start a new task with the history of a task up to one of its checkpoints, and print its id.

    It trains the same samples from there. Options change its parameters. Values of environment
    variables are not stored, so pass them again with --env.
    """
    api = reach(url)
    digest = send_folder(api, workdir) if workdir is not None else None
    changes = changed_parameters(args, workers, config, env, epochs, steps, digest)
    fork = {"step": step, "name": name, "dry_run": dry_run}
    answer = api.post(f"/api/tasks/{task}/fork", changes | fork)
    if as_json:
        print_json([answer])
    else:
        show_continuation(console(), api.decode(answer, ContinueTaskResponse))
