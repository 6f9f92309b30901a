"""What the verbs that submit a task have in common: its options, and how they become a request."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from strata.errors import InvalidArgument, NotFound

WRAPPERS = {"torchrun": "strata.sdk.torchrun"}

Policy = Literal["continue", "replace", "stop"]

Entry = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or a module.")]
Args = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script.")
]
Workers = Annotated[int, typer.Option("--workers", "-n", min=1, help="Number of workers.")]
TaskName = Annotated[
    str, typer.Option("--name", help="Name of the task; else the name of the script.")
]
OfPolicy = Annotated[
    Policy,
    typer.Option(help="When a worker is lost: continue with fewer, replace it, or stop the task."),
]
MinWorkers = Annotated[
    int, typer.Option(min=0, help="Train on with so many while lost ones are replaced; else all.")
]
Spares = Annotated[
    int, typer.Option(min=0, help="Workers that wait, ready to take the place of a lost one.")
]
MaxRestarts = Annotated[
    int, typer.Option(min=0, help="Restarts of a worker in a row with no or little progress.")
]
FreshStart = Annotated[
    bool,
    typer.Option(
        "--allow-fresh-start",
        help="Train again from step 0 when no checkpoint can be restored, instead of failing.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="KEY=VALUE", help="Entry of run.config for the script; repeatable."
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME=VALUE", help="Environment variable of the workers; repeatable."
    ),
]


Wrap = Annotated[
    Literal["torchrun"] | None,
    typer.Option(help="Run a script that does not know Strata as torchrun would."),
]


class Created(msgspec.Struct, frozen=True):
    """What the coordinator made of a request."""

    task_id: str
    status: str


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping."""
    found: dict[str, str] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"{option} {each!r} is no KEY=VALUE", hint=f"{option} lr=0.1")
        found[name] = value
    return found


def typed(text: str) -> Any:
    """A value as JSON means it; what is no JSON is text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def entry_of(script: str) -> str:
    """The script as its workers find it: its whole path, or the name of a module."""
    file = Path(script)
    if file.is_file():
        return str(file.resolve())
    if file.suffix == ".py" or len(file.parts) > 1:
        raise NotFound(f"there is no script {script}", hint="check the path")
    return script


def name_of(entry: str, name: str) -> str:
    """The task's name: as given, or the script's."""
    return name or Path(entry).stem


def request(
    script: str,
    args: list[str] | None,
    *,
    workers: int,
    name: str,
    policy: Policy,
    min_workers: int,
    spares: int,
    max_restarts: int,
    config: list[str] | None,
    env: list[str] | None,
    wrap: str | None = None,
    allow_fresh_start: bool = False,
) -> dict[str, Any]:
    """The body of `POST /api/tasks`; the workers start in the present folder."""
    entry = entry_of(script)
    if min_workers > workers:
        raise InvalidArgument(
            f"--min-workers {min_workers} of {workers} workers", hint="ask for at most --workers"
        )
    return {
        "name": name_of(entry, name),
        "entry": WRAPPERS[wrap] if wrap else entry,
        "args": [*([entry] if wrap else []), *(args or [])],
        "worker_count": workers,
        "policy": policy,
        "min_workers": min_workers,
        "spares": spares,
        "max_restarts": max_restarts,
        "allow_fresh_start": allow_fresh_start,
        "config": {key: typed(value) for key, value in pairs(config, "--config").items()},
        "env": {"PWD": str(Path.cwd())} | pairs(env, "--env"),
    }
