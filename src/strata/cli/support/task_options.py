"""Options of `strata run` and `strata submit`, declared once, and the request they make.

`request` declares the options as its parameters. A verb decorated with `task_options` gets them on
its command line and is called with a `TaskRequest`.
"""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import typer

from strata.cli.support.rest_client import Api
from strata.cli.support.terminal import note
from strata.config import load_process
from strata.errors import UNDECODABLE, InvalidArgument, NotFound
from strata.workdir.folder_scan import scan
from strata.workdir.folder_upload import send

WRAPPERS = {"torchrun": "strata.sdk.torchrun"}

Policy = Literal["continue", "replace", "stop"]
RANGE = "use at least 1, for example --workers 4, or a range: --workers 2:8"

Entry = Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script or module to run.")]
Args = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script.")
]
Workers = Annotated[
    str,
    typer.Option(
        "--workers",
        "-n",
        metavar="N|MIN:MAX",
        help="Number of workers. A range starts with MIN, takes free slots and gives them back.",
    ),
]
TaskName = Annotated[
    str, typer.Option("--name", help="Name of the task; default: the script's name.")
]
OfPolicy = Annotated[
    Policy,
    typer.Option(help="When a worker is lost: continue with fewer, replace it, or stop the task."),
]
MinWorkers = Annotated[
    int, typer.Option(min=0, help="Workers to continue with while lost ones are replaced; 0: all.")
]
Spares = Annotated[int, typer.Option(min=0, help="Extra workers that wait to replace a lost one.")]
MaxRestarts = Annotated[
    int, typer.Option(min=0, help="Restarts of a worker without progress before the task fails.")
]
KeepCount = Annotated[
    int,
    typer.Option(min=0, help="Number of newest checkpoints to keep; 0: the coordinator's setting."),
]
KeepEvery = Annotated[
    int,
    typer.Option(
        min=0, help="Keep the first checkpoint at or after each multiple of these steps; 0: none."
    ),
]
KeepBest = Annotated[
    str,
    typer.Option(
        metavar="METRIC",
        help="Keep the best checkpoints by this logged metric: the lowest, or with max:METRIC the "
        "highest.",
    ),
]
KeepBestCount = Annotated[
    int, typer.Option(min=1, help="Number of best checkpoints to keep by --keep-best.")
]
FreshStart = Annotated[
    bool,
    typer.Option(
        "--allow-fresh-start",
        help="If no checkpoint can be restored, train again from step 0 instead of failing.",
    ),
]
Priority = Annotated[
    int, typer.Option(help="Tasks of a higher priority start first; equal ones in their order.")
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after", metavar="TASK", help="Start after this task has completed; repeatable."
    ),
]
Preemptible = Annotated[
    bool,
    typer.Option(
        "--preemptible",
        help="Let tasks of a higher priority take its slots: it saves, waits and continues.",
    ),
]
SelfTest = Annotated[
    bool,
    typer.Option(
        "--self-test",
        help="Test each host before the task's first worker starts there, at most 10 s.",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=0,
        help="Epochs of the script's loop over run.epochs in all; 0: the number in the script.",
        show_default=False,
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=0,
        help="Steps of the script's loop over run.epochs(max_steps=) in all; 0: the number in the "
        "script.",
        show_default=False,
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
    typer.Option(help="Run an unchanged script as this launcher would."),
]


WorkdirOption = Annotated[
    Path | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Send this folder to the hosts and run the script, a path in it, there.",
        show_default=False,
    ),
]


NewWorkdir = Annotated[
    Path | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Send this folder and run in it; default: the folder that the task had.",
        show_default=False,
    ),
]


class WorkerRange(NamedTuple):
    """A number of workers; `fewest` is 0 unless it was given as a range."""

    most: int
    fewest: int = 0


def worker_range(text: str) -> WorkerRange:
    """Parse `--workers N` or `--workers MIN:MAX`."""
    fewest, colon, most = text.rpartition(":")
    try:
        found = WorkerRange(int(most), int(fewest) if colon else 0)
    except ValueError:
        raise InvalidArgument(
            f"--workers {text!r} is not a number or a range", hint=RANGE
        ) from None
    if found.most < 1 or (colon and not 1 <= found.fewest <= found.most):
        raise InvalidArgument(f"--workers {text} is out of range", hint=RANGE)
    return found


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Parse `KEY=VALUE` texts."""
    found: dict[str, str] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InvalidArgument(
                f"{option} {each!r} is not KEY=VALUE", hint=f"for example {option} lr=0.1"
            )
        found[name] = value
    return found


def typed(text: str) -> Any:
    """Parse a value as JSON; text that is not JSON stays text."""
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        return text


def entry_of(script: str) -> str:
    """The absolute path of a script, or the name of a module."""
    file = Path(script)
    if file.is_file():
        return str(file.resolve())
    if file.suffix == ".py" or len(file.parts) > 1:
        raise NotFound(f"script {script} does not exist", hint="check the path")
    return script


def entry_in(folder: Path, script: str) -> str:
    """The path of a script relative to the folder that travels, or the name of a module."""
    root = folder.resolve()
    if not root.is_dir():
        raise NotFound(f"--workdir {folder} is not a folder", hint="give the folder of the script")
    file = root / script
    if file.is_file() and file.resolve().is_relative_to(root):
        return file.relative_to(root).as_posix()
    if file.suffix == ".py" or len(Path(script).parts) > 1:
        here = Path(script).resolve()
        inside = here.is_file() and here.is_relative_to(root)
        use = here.relative_to(root) if inside else "a path relative to --workdir"
        raise NotFound(f"script {script} is not in --workdir {folder}", hint=f"use {use}")
    return script


class FolderLimit(msgspec.Struct, frozen=True):
    """The setting of a coordinator that bounds a folder."""

    max_workdir_bytes: int


class ShownSettings(msgspec.Struct, frozen=True):
    """The response of `GET /api/settings`."""

    values: FolderLimit


def send_folder(api: Api, folder: Path, left_out: Collection[Path] = ()) -> str:
    """Send a folder and return its digest. The data folder of this machine is left out."""
    limit = api.decode(api.get("/api/settings").body, ShownSettings).values.max_workdir_bytes
    scanned = scan(folder, limit, [Path(load_process({}).data_dir), *left_out])
    sent, workdir = send(scanned, api.post), scanned.workdir
    note(
        f"folder {sent.digest[:12]}: {len(workdir.files)} files, {workdir.size_bytes:,} bytes; "
        f"sent {sent.size_bytes:,} bytes"
    )
    return sent.digest


class TaskRequest(NamedTuple):
    """The body of `POST /api/tasks`, and the fields of it that the command line sets.

    If a `folder` travels, the entry is relative to it.
    """

    body: dict[str, Any]
    given: frozenset[str]
    folder: Path | None = None

    @property
    def entry_here(self) -> str:
        """The entry on this machine: the absolute path of a script, or the name of a module."""
        entry: str = self.body["entry"]
        path = self.folder.resolve() / entry if self.folder is not None else Path(entry)
        return str(path) if path.is_file() else entry

    def sent(self, api: Api, left_out: Collection[Path] = ()) -> "TaskRequest":
        """The request after its folder, if any, was sent to the coordinator."""
        if self.folder is None:
            return self
        digest = send_folder(api, self.folder, left_out)
        return self._replace(body=self.body | {"workdir": digest})

    @property
    def changes(self) -> dict[str, Any]:
        """The body of `POST /api/tasks/{id}/continue`: what is not given stays as it was."""
        given = self.given | {"entry", "env", "workdir"}
        if self.body["elastic"]:
            given |= {"elastic", "min_workers"}
        return {name: self.body[name] for name in CONTINUED if name in given}


CONTINUED = (
    "entry",
    "args",
    "worker_count",
    "elastic",
    "policy",
    "min_workers",
    "spares",
    "max_restarts",
    "keep_count",
    "keep_every",
    "keep_best",
    "keep_best_count",
    "allow_fresh_start",
    "priority",
    "preemptible",
    "self_test",
    "epochs",
    "max_steps",
    "config",
    "env",
    "workdir",
)
"""The fields of a task that may change when it continues."""

FIELDS = {"workers": "worker_count", "steps": "max_steps"}
"""The fields whose options have other names."""


def request(
    script: Entry,
    args: Args = None,
    workers: Workers = "1",
    name: TaskName = "",
    policy: OfPolicy = "replace",
    min_workers: MinWorkers = 0,
    spares: Spares = 0,
    max_restarts: MaxRestarts = 3,
    keep_count: KeepCount = 0,
    keep_every: KeepEvery = 0,
    keep_best: KeepBest = "",
    keep_best_count: KeepBestCount = 1,
    allow_fresh_start: FreshStart = False,
    priority: Priority = 0,
    after: After = None,
    preemptible: Preemptible = False,
    self_test: SelfTest = False,
    epochs: Epochs = None,
    steps: MaxSteps = None,
    config: Config = None,
    env: Env = None,
    wrap: Wrap = None,
    workdir: WorkdirOption = None,
) -> dict[str, Any]:
    """The body of `POST /api/tasks`; the workers start in the current folder, or in `workdir`."""
    entry = entry_of(script) if workdir is None else entry_in(workdir, script)
    count = worker_range(workers)
    if min_workers > count.most:
        raise InvalidArgument(
            f"--min-workers is {min_workers}, but the task has {count.most} workers",
            hint="use at most the number of --workers",
        )
    if min_workers and count.fewest:
        raise InvalidArgument(
            f"--min-workers is {min_workers} and --workers is {workers}", hint="give one of them"
        )
    return {
        "name": name or Path(entry).stem,
        "entry": WRAPPERS[wrap] if wrap else entry,
        "args": [*([entry] if wrap else []), *(args or [])],
        "worker_count": count.most,
        "policy": policy,
        "min_workers": count.fewest or min_workers,
        "elastic": count.fewest > 0,
        "spares": spares,
        "max_restarts": max_restarts,
        "keep_count": keep_count,
        "keep_every": keep_every,
        "keep_best": keep_best,
        "keep_best_count": keep_best_count,
        "allow_fresh_start": allow_fresh_start,
        "priority": priority,
        "after": after or [],
        "preemptible": preemptible,
        "self_test": self_test,
        "epochs": epochs or 0,
        "max_steps": steps or 0,
        "config": {key: typed(value) for key, value in pairs(config, "--config").items()},
        "env": ({} if workdir else {"PWD": str(Path.cwd())}) | pairs(env, "--env"),
        "workdir": "",
    }


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given; defaults, also those of `strata.toml`, apply to new tasks."""
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def task_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of `request` before its own; it is called with the request."""
    shared = inspect.signature(request).parameters
    own = list(inspect.signature(verb).parameters.values())[1:]

    @wraps(verb)
    def with_request(context: typer.Context, **options: Any) -> None:
        folder: Path | None = options["workdir"]
        body = request(**{name: options.pop(name) for name in shared})
        given = (name for name in shared if is_given(context, name))
        names = frozenset(FIELDS.get(name, name) for name in given)
        verb(TaskRequest(body, names, folder), **options)

    first = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [first, *shared.values(), *own]
    # Typer reads both.
    with_request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_request.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_request
