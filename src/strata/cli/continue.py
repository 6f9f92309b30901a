"""Continue a task that has ended."""

from typing import Annotated

import msgspec
import typer

from strata.cli.stop import Task
from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.run_choice import changed_parameters, continue_task, show_continuation
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

Workers = Annotated[
    int | None,
    typer.Option("--workers", "-n", min=1, help="Number of workers; default: as before."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the step and the changes, and change nothing.")
]


def continue_(
    task: Task,
    args: Args = None,
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
    """Continue an ended task at its newest checkpoint; options change its parameters.

    Values of environment variables are not stored, so pass them again with --env.
    """
    api = reach(url)
    digest = send_folder(api, workdir) if workdir is not None else None
    changes = changed_parameters(args, workers, config, env, epochs, steps, digest)
    continued = continue_task(api, task, changes | {"dry_run": dry_run})
    if as_json:
        print_json([msgspec.json.encode(continued)])
    else:
        show_continuation(console(), continued)
