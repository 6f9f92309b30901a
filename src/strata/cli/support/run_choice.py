"""What `strata run` works on: its data folder, and its task, a new one or one that continues."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from strata.cli.support.rest_client import Api
from strata.cli.support.tables import console, count, plain
from strata.cli.support.task_options import TaskRequest, pairs, typed
from strata.cli.support.task_watch import Started
from strata.config import Settings, load_process
from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.rest.action_responses import ContinueTaskResponse, CreateTaskResponse
from strata.coordinator.rest.response_models import TaskResponse
from strata.errors import Conflict, NotFound, StrataError
from strata.launch import run_copies, run_notes
from strata.launch.run_notes import NEWEST, RunNote
from strata.timeline.read.sentences import counted

if TYPE_CHECKING:
    from strata.launch.local_cluster import Local

TASKS_LOOKED_AT = 1000
TASKS_NAMED = 5
LOOK_S = 0.2
ENDING_S = 30.0
"""How long to wait for workers of the ended task that are still ending."""


class RunChoice(NamedTuple):
    """What the command line asks for: `resume` names a task or `newest`, `fresh` continues none."""

    request: TaskRequest
    resume: str
    fresh: bool
    data_dir: Path | None = None

    def slots(self, before: RunNote) -> int:
        """The slots that the task needs: those of the run before if the workers are not given."""
        body = self.request.body
        asked = int(body["worker_count"] + body["spares"])
        return asked if "worker_count" in self.request.given else before.slots or asked

    def start(self, api: Api, out: Console) -> Started:
        """Submit the task, or continue the one that was chosen."""
        chosen = None if self.fresh else self._earlier(api)
        request = self.request.sent(api, [self.data_dir] if self.data_dir else [])
        if chosen is None:
            answer = api.post("/api/tasks", request.body)
            task_id = api.decode(answer, CreateTaskResponse).task_id
            out.print(Text.assemble("task       ", (plain(task_id), "bold")))
            return Started(task_id)
        position, line = recorded(api, chosen.id)
        continued = continue_task(api, chosen.id, request.changes)
        show_continuation(out, continued)
        return Started(continued.task_id, position, line, continued.step)

    def _earlier(self, api: Api) -> TaskResponse | None:
        """The task of this name to continue: the resumed one, else the newest if unfinished."""
        found = api.listing("/api/tasks", TASKS_LOOKED_AT)
        name = self.request.body["name"]
        tasks = [api.decode(item, TaskResponse) for item in found.items]
        named = [task for task in tasks if task.name == name]
        if not self.resume:
            return named[0] if named and unfinished(named[0]) else None
        for task in named:
            if self.resume in (task.id, NEWEST):
                return task
        which = "" if self.resume == NEWEST else f" {self.resume!r}"
        raise NotFound(
            f"there is no task{which} called {name!r} to resume",
            hint=f"the tasks are {', '.join(task.id for task in tasks[:TASKS_NAMED])}; give the "
            "name of one with --name"
            if tasks
            else "leave --resume out to start a task",
        )


def recorded(api: Api, task: str) -> tuple[int, int]:
    """The number of facts, and the number of the task's newest log line."""
    lines = api.decode(api.get("/api/logs", limit=1, task_id=task).body, list[LogEntry])
    return api.get("/api/events", limit=1).total, max((line.seq for line in lines), default=0)


def unfinished(task: TaskResponse) -> bool:
    """Whether a task has ended before its script was done."""
    stopped = task.status == "stopped" and task.exit_code != 0
    return stopped or task.status == "failed"


def changed_parameters(
    args: list[str] | None,
    workers: int | None,
    config: list[str] | None,
    env: list[str] | None,
    epochs: int | None,
    steps: int | None,
    workdir: str | None,
) -> dict[str, Any]:
    """The parameters that `strata continue` and `strata fork` change; None leaves one as it is."""
    return {
        "workdir": workdir,
        "worker_count": workers,
        "args": args,
        "epochs": epochs,
        "max_steps": steps,
        "config": {key: typed(value) for key, value in pairs(config, "--config").items()},
        "env": {"PWD": str(Path.cwd())} | pairs(env, "--env"),
    }


def continue_task(api: Api, task: str, changes: dict[str, Any]) -> ContinueTaskResponse:
    """Continue a task; waits for those of its workers that are still ending."""
    path, deadline_s = f"/api/tasks/{task}/continue", time.monotonic() + ENDING_S
    while True:
        try:
            return api.decode(api.post(path, changes), ContinueTaskResponse)
        except Conflict:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(LOOK_S)


def show_continuation(out: Console, continued: ContinueTaskResponse) -> None:
    """Print the task, the step at which it continues, and each changed parameter."""
    step = continued.step
    how = f" continues from step {count(step)}" if step else " starts from step 0: nothing is saved"
    out.print(Text.assemble("task       ", (plain(continued.task_id), "bold"), (how, "yellow")))
    for change in continued.changes:
        values = f"{plain(change.before) or '–'} → {plain(change.after) or '–'}"
        out.print(Text.assemble("changed    ", (plain(change.name), "bold"), f"  {values}"))


def is_url(text: str) -> bool:
    """Whether a run is named by the URL of an object storage."""
    return "://" in text


def settings_here(
    flags: dict[str, object], task: dict[str, Any], resume: str, beat_s: float
) -> Settings:
    """The settings of a coordinator in this process, for one run."""
    settings = load_process(flags)
    if settings.heartbeat_interval_s == Settings().heartbeat_interval_s:
        # Heartbeats carry the progress, and are cheap within one process.
        settings = msgspec.structs.replace(settings, heartbeat_interval_s=beat_s)
    if resume and is_url(resume) and flags["data_dir"] is not None:
        fetch_into(Path(settings.data_dir), settings, task, resume)
    elif resume and flags["data_dir"] is None:
        folder = resumed_folder(settings, task, resume)
        settings = msgspec.structs.replace(settings, data_dir=str(folder))
    elif flags["data_dir"] is None:
        point_to_unfinished(Path(settings.data_dir), task["entry"])
        settings = in_own_folder(settings, task["name"])
    else:
        run_notes.require_continuable(Path(settings.data_dir), bool(resume))
    end_left_behind(settings)
    if place := run_copies.place_of(Path(settings.data_dir)):
        root = place.url.rpartition(f"/{run_copies.RUNS}/")[0]  # its checkpoints are there
        settings = msgspec.structs.replace(
            settings, checkpoint_dir=root, storage_backend=Settings().storage_backend
        )
    Path(settings.data_dir).mkdir(parents=True, exist_ok=True)
    return settings


def point_to_unfinished(data_dir: Path, entry: str) -> None:
    """Print one line if the newest run of the script is unfinished."""
    folder = run_notes.newest(data_dir, entry)
    if folder is None or run_notes.active_pid(folder):
        return
    note = run_notes.read(folder)
    if note.unfinished:
        at = f" after {counted(note.steps, 'step')}" if note.steps else ""
        line = f"{note.task or folder} {note.how_it_ended}{at}; --resume continues it"
        console().print(Text(line, style="yellow"), soft_wrap=True)


def resumed_folder(settings: Settings, task: dict[str, Any], resume: str) -> Path:
    """The folder of the run to continue: a local one, else made from a copy on S3."""
    data_dir = Path(settings.data_dir)
    if is_url(resume):
        return fetched(settings, task, resume, run_notes.NEWEST)
    try:
        return run_notes.find(data_dir, task["entry"], resume)
    except NotFound as missing:
        root = run_copies.remote_root(settings)
        if not root:
            raise
        try:
            return fetched(settings, task, root, resume)
        except NotFound as there:
            raise NotFound(f"{missing.message}; {there.message}", hint=there.hint) from None


def fetched(settings: Settings, task: dict[str, Any], where: str, wanted: str) -> Path:
    """The folder of a run that has copies: the newest is here, or is copied to a new folder."""
    url, run = run_copies.find(where, task["entry"], wanted, settings)
    for place in sorted(Path(settings.data_dir, run_notes.RUNS).glob(f"*/{run_copies.PLACE}")):
        known = run_copies.place_of(place.parent)
        if known and (known.url, known.claim) == (url, run.claim.number):
            run_notes.require_continuable(place.parent, resume=True)
            return place.parent
    folder = Path(in_own_folder(settings, task["name"]).data_dir)
    copy_here(url, run, folder, settings, task)
    return folder


def fetch_into(folder: Path, settings: Settings, task: dict[str, Any], where: str) -> None:
    """Fill the data folder that was given, unless it already holds the run."""
    if (folder / run_notes.LOG).exists():
        return
    copy_here(
        *run_copies.find(where, task["entry"], run_notes.NEWEST, settings), folder, settings, task
    )


def copy_here(
    url: str, run: run_copies.CopiedRun, folder: Path, settings: Settings, task: dict[str, Any]
) -> None:
    """Make a run's folder from its newest copy, and say so."""
    if not run.ended:
        line = f"waiting whether {url} is still active on {run.claim.host}"
        console().print(Text(line, style="dim"), soft_wrap=True)
    run_copies.fetch(url, run, folder, settings)
    note = msgspec.structs.replace(run_notes.read(folder), entry=task["entry"])
    run_notes.write(folder, note)
    line = f"copied     {url} (last run on {run.claim.host})"
    console().print(Text(line, style="dim"), soft_wrap=True)


class Copies:
    """The copies of a run's log, if its checkpoints are on S3."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self.made: run_copies.RunCopies | None = None

    def begin(self, cluster: "Local", name: str) -> None:
        """Claim the run for this process, and begin to copy; raises if another one continued it."""
        place = run_copies.place_of(self._folder)
        root = run_copies.remote_root(self._settings)
        if place is None and not root:
            return
        url = place.url if place else f"{root}/{run_notes.RUNS}/{stamped(name)}-{cluster.name}"
        self.made = run_copies.RunCopies(
            url, self._folder, self._settings, cluster.saved, cluster.position
        )
        copies = self.made
        copies.on_fenced = lambda: cluster.stop("kill")
        cluster.delete_checkpoints_after(lambda: copies.copied)
        self.made.start()


@contextmanager
def copies_after(folder: Path, settings: Settings) -> Iterator[Copies]:
    """Store the last copy after the block; an error if another process continued the run."""
    copies = Copies(folder, settings)
    try:
        yield copies
    except StrataError as error:
        if copies.made is None or (other := copies.made.fenced_by) is None:
            raise
        raise Conflict(
            f"the run was ended here, because {other.host} continues it (process {other.pid})",
            hint=f"continue what is newest: --resume={copies.made.url}",
        ) from error
    finally:
        if copies.made is not None:
            copies.made.stop()


def in_own_folder(settings: Settings, name: str) -> Settings:
    """The settings with a new data folder for this run."""
    from strata.launch.local_cluster import run_folder

    folder = run_folder(Path(settings.data_dir), safe_name(name))
    return msgspec.structs.replace(settings, data_dir=str(folder))


def end_left_behind(settings: Settings) -> None:
    """Stop workers that a killed run left in this folder; they would use the old port."""
    from strata.agent.agent_host import AGENTS
    from strata.agent.worker_process import end_orphans

    for agent in Path(settings.data_dir).glob(f"{AGENTS}/*"):
        end_orphans(agent)


def safe_name(name: str) -> str:
    """A task's name as a part of a path."""
    return "".join(each if each.isalnum() or each in "._-" else "-" for each in name)[:60]


def stamped(name: str) -> str:
    """A name for copies: they are sorted by the time at which their run began."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{safe_name(name)}"
