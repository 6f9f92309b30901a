"""Run a script on several workers and watch it."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TextIO
from urllib.parse import quote

import typer
from rich.console import Console
from rich.text import Text

from strata import __version__
from strata.cli.support.exit_codes import INTERRUPTED
from strata.cli.support.failures.failure_advice import Place, advice
from strata.cli.support.fault_injection import WorkerKiller
from strata.cli.support.hosts.ray_hosts import Gpus, RayAddress, on_ray, ray_hosts
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.run_choice import RunChoice, copies_after, is_url, settings_here
from strata.cli.support.tables import console, plain
from strata.cli.support.task_options import TaskRequest, task_options
from strata.cli.support.task_watch import ENDED, LOOK_S, Started, Watcher, exit_code
from strata.cli.support.terminal import open_page
from strata.config import Settings, active_environment, has_browser, load_process
from strata.coordinator.rest.response_models import TaskDetail
from strata.launch import run_copies, run_notes
from strata.logsetup import configure
from strata.wire.client_certificates import client_certificates

if TYPE_CHECKING:
    from strata.launch.local_cluster import Local

BEAT_S = 1.0
KILL_BEAT_S = 0.1  # kills depend on the progress that heartbeats report
MOMENT_S = 3.0
IDLE_S = 0.02
LAST_LOOKS = 3
"""Polls after the end: a worker's last log lines arrive after the fact that it ended."""

SENDERS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
REPEAT_S = 0.5
"""A second signal within this time is ignored: some tools signal the process and its group."""

RemoteUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of the REST API of a running coordinator; default: one is started here.",
        show_default=False,
    ),
]
DataDir = Annotated[
    str | None, typer.Option(help="Folder for the log and checkpoints; default: a new folder.")
]
CheckpointDir = Annotated[
    str | None,
    typer.Option(
        help="Folder or s3://bucket/prefix for checkpoints; default: in the data folder. On S3 a "
        "copy of the log is stored beside them, so that another machine can continue the run."
    ),
]
HttpPort = Annotated[int, typer.Option(help="Port of the dashboard; 0: any free port.")]
Slots = Annotated[
    int | None, typer.Option(min=1, help="Workers to run at a time; default: all of them.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the dashboard in the browser.")]
Kill = Annotated[
    int,
    typer.Option(
        "--kill", min=0, help="Number of workers to kill during the run, to test recovery."
    ),
]
Engine = Annotated[
    Literal["local", "ray"], typer.Option(help="Where agents run: in this process, or on Ray.")
]
Hosts = Annotated[int, typer.Option(min=1, help="With Ray: number of hosts.")]
Grace = Annotated[
    float | None, typer.Option(help="Seconds between SIGTERM and SIGKILL of a worker.")
]


Resume = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="[RUN]",
        help="Continue a run of this script: the newest, or the one named by folder, task or "
        "s3://bucket/prefix.",
        show_default=False,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="With --data-dir: start anew, though a run there is unfinished."),
]


@task_options
def run(
    task: TaskRequest,
    url: RemoteUrl = None,
    slots: Slots = None,
    data_dir: DataDir = None,
    checkpoint_dir: CheckpointDir = None,
    resume: Resume = "",
    fresh: Fresh = False,
    http_port: HttpPort = 0,
    open: Open = False,
    stop_grace_s: Grace = None,
    kill: Kill = 0,
    engine: Engine = "local",
    hosts: Hosts = 1,
    gpus: Gpus = 0,
    ray_address: RayAddress = None,
) -> None:
    """Run a script on several workers, watch it, and exit with the code of its task.

    0: completed, or stopped by `run.stop()`. 1: failed. 93: restart loop. 94: completed, but the
    final checkpoint failed. 130: stopped from outside. Others: see `strata --help`.
    """
    if url is not None:
        with stopping_hard():
            api = reach(url)
            console().print(Text(f"dashboard  {api.url}", style="dim"), soft_wrap=True)
            show_page(api, open)
            started = RunChoice(task, resume, fresh=not resume).start(api, console())
            watched = watch(api, started, console(), patient=True)
            print_advice(watched, Place(look_back=f"--url {url}"))
            sys.exit(exit_code(watched.task))
    flags: dict[str, object] = {
        "http_port": http_port,
        "grpc_port": 0,
        "stop_grace_s": stop_grace_s,
    }
    flags |= {"data_dir": data_dir, "checkpoint_dir": checkpoint_dir}
    entry = task.entry_here
    settings = settings_here(
        flags, task.body | {"entry": entry}, resume, KILL_BEAT_S if kill else BEAT_S
    )
    folder = Path(settings.data_dir)
    if resume and resume != run_notes.read(folder).task and (data_dir is None or is_url(resume)):
        resume = run_notes.NEWEST  # it named the folder
    chosen = RunChoice(task, resume, fresh, Path(load_process(flags).data_dir))
    slots = slots or chosen.slots(run_notes.read(folder))
    on = embedded(settings, slots)
    if engine == "ray":
        on = embedded_on_ray(settings, slots, hosts, gpus, ray_address)
    with stopping_hard(), copies_after(folder, settings) as copies, on as (api, cluster):
        show_page(api, open)
        copies.begin(cluster, task.body["name"])
        started = chosen.start(api, console())
        run_notes.begin(folder, entry, started.task_id, slots)
        killer = WorkerKiller(kill, cluster.pids)
        watched = watch(api, started, console(), patient=False, consider=killer.consider)
        ended = watched.task
        run_notes.end(
            folder,
            task=ended.id,
            status=ended.status,
            exit_code=ended.exit_code,
            steps=ended.committed_steps,
        )
        wait_idle(cluster, settings.stop_grace_s if ended.exit_code == 0 else MOMENT_S)
    look_back = f"--data {shown_path(str(folder))}"
    print_advice(watched, Place(look_back, sys.executable, active_environment()))
    print_closing(folder, entry, data_dir, kill, killer.left)
    sys.exit(exit_code(ended))


def show_page(api: Api, wanted: bool) -> None:
    """Open the dashboard of a coordinator in the browser, if that is wanted."""
    if wanted:
        token = f"/?token={quote(api.token, safe='')}" if api.token else ""
        open_page(f"{api.url}{token}", possible=has_browser())


class Watched(NamedTuple):
    """An ended task, and the last line of each different traceback of its workers."""

    task: TaskDetail
    exceptions: list[str]


def print_advice(ended: Watched, place: Place) -> None:
    """Print what to do about a task that failed for a frequent reason."""
    if ended.task.status == "failed":
        text = advice(place, Path(ended.task.entry), ended.task.reason, ended.exceptions)
        if text:
            line = f"  what to do: {plain(text)}"
            console().print(Text(line, style="yellow"), soft_wrap=True)


def print_closing(folder: Path, entry: str, data_dir: str | None, kill: int, spared: int) -> None:
    """Print the number of workers that were not killed, and commands for what comes next."""
    if spared:
        text = f"  {spared} of {kill} workers were not killed: the task ended before"
        console().print(Text(text, style="yellow"))
    if run_notes.read(folder).unfinished:
        line = f"  continue:  {resume_command(folder, data_dir)}"
        console().print(Text(line, style="yellow"), soft_wrap=True)
        if place := run_copies.place_of(folder):
            line = f"  on another machine: strata run {shown_path(entry)} --resume={place.url}"
            console().print(Text(line, style="yellow"), soft_wrap=True)
    look_back = f"  look back: strata timeline --data {shown_path(str(folder))}"
    console().print(Text(look_back, style="dim"), soft_wrap=True)


def resume_command(folder: Path, data_dir: str | None) -> str:
    """The command that continues a run: the same one with `--resume`."""
    return shlex.join(["strata", *resuming(sys.argv[1:], "" if data_dir else folder.name)])


def resuming(words: list[str], run: str) -> list[str]:
    """The words of a command with `--resume=RUN` instead of what they had; none if empty."""
    own = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    for before, word in zip(["", *words], words[:own], strict=False):
        is_value = before == "--resume" and not word.startswith("-") and not word.endswith(".py")
        if not is_value and not word.startswith("--resume") and word != "--fresh":
            kept.append(word)
    return [*kept, *([f"--resume={run}"] if run else []), *words[own:]]


def shown_path(folder: str) -> str:
    """A folder relative to the current one, if it is inside."""
    path = Path(folder).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def stopping_hard() -> Iterator[None]:
    """Exit with 130 after Ctrl-C, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def embedded(settings: Settings, slots: int) -> Iterator[tuple[Api, "Local"]]:
    """A coordinator and an agent in this process, with a client of the REST API."""
    # Imported here: a run on a remote coordinator needs neither coordinator nor agent.
    from strata.launch.local_cluster import local

    # The terminal is for the task; the logs of coordinator and agent go to a file.
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
        yield Api(cluster.url, cluster.token, client_certificates(settings)), cluster


@contextmanager
def embedded_on_ray(
    settings: Settings, slots: int, hosts: int, gpus: int, ray_address: str | None
) -> Iterator[tuple[Api, "Local"]]:
    """A coordinator in this process, with agents on Ray."""
    with (
        on_ray(settings, ray_address) as seen,
        embedded(seen, 0) as (api, cluster),
        ray_hosts(seen, cluster, api, slots, hosts, gpus),
    ):
        yield api, cluster


@contextmanager
def quietly(settings: Settings, log: TextIO) -> Iterator[None]:
    """Write this process's log to a file in this block."""
    configure(settings, "run", log)
    try:
        yield
    finally:
        configure(settings, "run")


def wait_idle(cluster: "Local", timeout_s: float) -> None:
    """Wait until the workers have ended after their task."""
    deadline_s = time.monotonic() + timeout_s
    while not cluster.idle() and time.monotonic() < deadline_s:
        time.sleep(IDLE_S)


def watch(
    api: Api,
    started: Started,
    out: Console,
    patient: bool,
    consider: Callable[[TaskDetail, Watcher], None] = lambda task, watcher: None,
) -> Watched:
    """Watch a task to its end; Ctrl-C stops it gracefully, a second one at once."""
    asked = False
    with Interrupts() as interrupts, Watcher(api, started, out, patient) as watcher:
        while (task := watcher.look()).status not in ENDED:
            if interrupts.came and not asked:
                asked = True
                api.post(f"/api/tasks/{started.task_id}/stop", reason=interrupts.reason)
            consider(task, watcher)
            time.sleep(LOOK_S)
        for _ in range(LAST_LOOKS):
            time.sleep(LOOK_S)
            watcher.look()
    watcher.summary(task)
    if task.committed_steps:
        watcher.audit()
        watcher.goodput()
    return Watched(task, watcher.exceptions)


class Interrupts:
    """Records the first Ctrl-C or SIGTERM; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.came = False
        self.reason = ""
        self._first_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SENDERS:
            self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self.came:
            self.came, self._first_s = True, now_s
            self.reason = f"stopped by {SENDERS[number]}"
        elif now_s - self._first_s > REPEAT_S:
            raise KeyboardInterrupt
