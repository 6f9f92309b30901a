"""Run a script on several workers and watch it: here, or on a coordinator that is named."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TextIO

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata import __version__
from strata.cli import _submission as submission
from strata.cli._api import Api, reach
from strata.cli._exit_codes import INTERRUPTED
from strata.cli._look import console, plain
from strata.cli._mishaps import Mishaps
from strata.cli._ray import Gpus, RayAddress, on_ray, ray_hosts
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
from strata.cli._watch import ENDED, LOOK_S, Task, Watcher, exit_code
from strata.config import Settings, load_process
from strata.logsetup import configure

if TYPE_CHECKING:
    from strata.launch.local import Local

BEAT_S = 1.0
KILL_BEAT_S = 0.1  # a worker is killed at a share of the steps, which heartbeats report
MOMENT_S = 3.0
IDLE_S = 0.02
LAST_LOOKS = 3
"""After the end: a worker's last words travel a little longer than the fact that it ended."""

TASKS_LOOKED_AT = 1000

REPEAT_S = 0.5
"""Within this a second signal is an echo: some senders signal the process and its group."""

Remote = Annotated[
    str | None,
    typer.Option(
        "--coordinator", help="URL of a coordinator; else one is started in this process."
    ),
]
DataDir = Annotated[
    str | None, typer.Option(help="Folder for the log and checkpoints; else a new one.")
]
HttpPort = Annotated[int, typer.Option(help="Port of the dashboard; 0 takes a free port.")]
Slots = Annotated[
    int | None, typer.Option(min=1, help="Workers to run at a time; else all of them.")
]
Kill = Annotated[
    int,
    typer.Option("--kill", min=0, help="Kill this many workers during the run, to see it recover."),
]
Engine = Annotated[Literal["local", "ray"], typer.Option(help="What places and starts the agents.")]
Hosts = Annotated[int, typer.Option(min=1, help="With Ray: hosts to spread the workers over.")]
Grace = Annotated[float | None, typer.Option(help="Seconds from SIGTERM to SIGKILL.")]


class Named(msgspec.Struct, frozen=True):
    """A task that may have been left behind."""

    id: str
    name: str
    status: str


def run(
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
    coordinator: Remote = None,
    slots: Slots = None,
    data_dir: DataDir = None,
    http_port: HttpPort = 0,
    stop_grace_s: Grace = None,
    kill: Kill = 0,
    engine: Engine = "local",
    hosts: Hosts = 1,
    gpus: Gpus = 0,
    ray_address: RayAddress = None,
) -> None:
    """Run a script on several workers, watch it, and end with the exit code of its task.

    0: completed, or stopped by `run.stop()`. 1: failed. 93: restart loop. 94: completed, but the
    final checkpoint failed. 130: stopped from outside. Others: see `strata --help`.
    """
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
    if coordinator is not None:
        with stopping_hard():
            sys.exit(watch(reach(coordinator), body, console(), patient=True))
    flags = {"http_port": http_port, "grpc_port": 0, "stop_grace_s": stop_grace_s}
    settings = settings_here(
        flags | {"data_dir": data_dir}, body["name"], KILL_BEAT_S if kill else BEAT_S
    )
    slots = slots or workers + spares
    on = embedded(settings, slots)
    if engine == "ray":
        on = embedded_on_ray(settings, slots, hosts, gpus, ray_address)
    with stopping_hard(), on as (api, cluster):
        mishaps = Mishaps(kill, cluster.pids)
        code = watch(api, body, console(), patient=False, consider=mishaps.consider)
        wait_idle(cluster, settings.stop_grace_s if code == 0 else MOMENT_S)
    print_closing(settings.data_dir, kill, mishaps.left)
    sys.exit(code)


def print_closing(data_dir: str, kill: int, spared: int) -> None:
    """Print what was not killed as asked, and the command that shows the run again."""
    if spared:
        text = f"  {spared} of {kill} not killed as asked: the task was over before"
        console().print(Text(text, style="yellow"))
    look_back = f"  look back: strata timeline --data {shown_path(data_dir)}"
    console().print(Text(look_back, style="dim"), soft_wrap=True)


def shown_path(folder: str) -> str:
    """A folder as one would type it from here."""
    path = Path(folder).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def settings_here(flags: dict[str, object], name: str, beat_s: float = BEAT_S) -> Settings:
    """The settings of a coordinator in this process, for one run."""
    settings = load_process(flags)
    if settings.heartbeat_interval_s == Settings().heartbeat_interval_s:
        # Progress rides on the beats, and here they cost nothing.
        settings = msgspec.structs.replace(settings, heartbeat_interval_s=beat_s)
    if flags["data_dir"] is None:
        settings = in_own_folder(settings, name)
    else:
        end_left_behind(settings)
    Path(settings.data_dir).mkdir(parents=True, exist_ok=True)
    return settings


@contextmanager
def stopping_hard() -> Iterator[None]:
    """Ends as a program does that was interrupted, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def in_own_folder(settings: Settings, name: str) -> Settings:
    """The settings with a new folder for this run."""
    from strata.launch.local import run_folder

    safe = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)[:60]
    folder = run_folder(Path(settings.data_dir), safe)
    return msgspec.structs.replace(settings, data_dir=str(folder))


def end_left_behind(settings: Settings) -> None:
    """Ends what a run that was killed in this folder left: it would look for that run's port."""
    from strata.agent.orphans import end_orphans
    from strata.launch.local import AGENTS

    for agent in Path(settings.data_dir).glob(f"{AGENTS}/*"):
        end_orphans(agent)


@contextmanager
def embedded(settings: Settings, slots: int) -> Iterator[tuple[Api, "Local"]]:
    """A coordinator and an agent in this process, and the API that they serve."""
    # Imported for a run in here only: a remote one needs neither coordinator nor agent.
    from strata.launch.local import local

    # The terminal is for the task; what coordinator and agent say of themselves is in a file.
    with (
        (Path(settings.data_dir) / "run.log").open("a", encoding="utf-8") as log,
        quietly(settings, log),
        local(settings, slots, __version__) as cluster,
    ):
        out = console()
        where = Path(settings.data_dir).resolve()
        out.print(
            Text(f"dashboard  {cluster.url}\ndata       {where}", style="dim"), soft_wrap=True
        )
        yield Api(cluster.url, cluster.token, settings.tls_cert), cluster


@contextmanager
def embedded_on_ray(
    settings: Settings, slots: int, hosts: int, gpus: int, ray_address: str | None
) -> Iterator[tuple[Api, "Local"]]:
    """A coordinator in this process whose agents Ray places and starts."""
    with (
        on_ray(settings, ray_address) as seen,
        embedded(seen, 0) as (api, cluster),
        ray_hosts(seen, cluster, api, slots, hosts, gpus),
    ):
        yield api, cluster


@contextmanager
def quietly(settings: Settings, log: TextIO) -> Iterator[None]:
    """This process's own log goes to a file until the block ends."""
    configure(settings, "run", log)
    try:
        yield
    finally:
        configure(settings, "run")


def wait_idle(cluster: "Local", patience_s: float) -> None:
    """Lets the workers end by themselves after their task has."""
    deadline_s = time.monotonic() + patience_s
    while not cluster.idle() and time.monotonic() < deadline_s:
        time.sleep(IDLE_S)


def watch(
    api: Api,
    body: dict[str, Any],
    out: Console,
    patient: bool,
    consider: Callable[[Task, Watcher], None] = lambda task, watcher: None,
) -> int:
    """Submits a task and follows it to its end; Ctrl-C stops it gracefully, twice at once."""
    task_id = "" if patient else left_running(api, body["name"])
    goes_on = " goes on: the run before it did not end it" if task_id else ""
    task_id = task_id or api.decode(api.post("/api/tasks", body), Created).task_id
    out.print(Text.assemble("task       ", (plain(task_id), "bold"), (goes_on, "yellow")))
    asked = False
    with Interrupts() as interrupts, Watcher(api, task_id, out, patient) as watcher:
        while (task := watcher.look()).status not in ENDED:
            if interrupts.came and not asked:
                asked = True
                api.post(f"/api/tasks/{task_id}/stop")
            consider(task, watcher)
            time.sleep(LOOK_S)
        for _ in range(LAST_LOOKS):
            time.sleep(LOOK_S)
            watcher.look()
    watcher.summary(task)
    if task.committed_steps:
        watcher.audit()
    return exit_code(task)


def left_running(api: Api, name: str) -> str:
    """The task of a name that an earlier run in the same folder was killed in; else nothing."""
    found = api.listing("/api/tasks", TASKS_LOOKED_AT)
    tasks = [api.decode(item, Named) for item in found.items]
    return next((each.id for each in tasks if each.name == name and each.status not in ENDED), "")


class Interrupts:
    """Notes the first Ctrl-C or SIGTERM; a second one, a while later, is not waited for."""

    def __init__(self) -> None:
        self.came = False
        self._first_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self.came:
            self.came, self._first_s = True, now_s
        elif now_s - self._first_s > REPEAT_S:
            raise KeyboardInterrupt
