"""The task that `strata run` watches: a new one, or an earlier one that continues."""

import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from strata.cli.support.rest_client import Api
from strata.cli.support.tables import count, plain
from strata.cli.support.task_options import TaskRequest, pairs, typed
from strata.cli.support.task_watch import Started
from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.rest.action_responses import ContinueTaskResponse, CreateTaskResponse
from strata.coordinator.rest.response_models import TaskResponse
from strata.errors import Conflict, NotFound
from strata.launch.run_notes import NEWEST, RunNote

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

    def slots(self, before: RunNote) -> int:
        """The slots that the task needs: those of the run before if the workers are not given."""
        body = self.request.body
        asked = int(body["worker_count"] + body["spares"])
        return asked if "worker_count" in self.request.given else before.slots or asked

    def start(self, api: Api, out: Console) -> Started:
        """Submit the task, or continue the one that was chosen."""
        chosen = None if self.fresh else self._earlier(api)
        if chosen is None:
            answer = api.post("/api/tasks", self.request.body)
            task_id = api.decode(answer, CreateTaskResponse).task_id
            out.print(Text.assemble("task       ", (plain(task_id), "bold")))
            return Started(task_id)
        position, line = recorded(api, chosen.id)
        continued = continue_task(api, chosen.id, self.request.changes)
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
) -> dict[str, Any]:
    """The parameters that `strata continue` and `strata fork` change; None leaves one as it is."""
    return {
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
