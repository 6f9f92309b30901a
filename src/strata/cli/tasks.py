"""List the tasks: how each one is, how far, and with how many workers."""

from typing import Annotated, Literal

import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, duration, print_list, state
from strata.cli._options import AsJson, Limit, Url

Status = Literal[
    "queued", "starting", "running", "recovering", "stopping", "completed", "failed", "stopped"
]
OfStatus = Annotated[Status | None, typer.Option("--status", help="Only of this status.")]


class Task(Struct, frozen=True):
    """What is shown of a task."""

    id: str
    name: str
    type: str
    status: str
    dataset_id: str
    submitted_at: int
    started_at: int | None
    completed_at: int | None
    progress: float | None
    worker_ids_total: int
    worker_count: int
    generation: int
    committed_steps: int
    reason: str


def progress(task: Task) -> str:
    """How much is done, if that can be told."""
    return "–" if task.progress is None else f"{task.progress:.1f} %"


def staff(task: Task) -> str:
    """How many workers it has, and of how many while some are missing."""
    present = count(task.worker_ids_total)
    short = task.worker_ids_total < task.worker_count
    return f"{present}/{count(task.worker_count)}" if short else present


def took(task: Task, now_ms: int) -> str:
    """How long it runs, or ran."""
    if task.started_at is None:
        return "–"
    return duration(((task.completed_at or now_ms) - task.started_at) / 1000)


def failure(task: Task) -> str:
    """Why a task failed."""
    return f"{task.id}: {task.reason}" if task.status == "failed" and task.reason else ""


LOOK = Look(
    "tasks",
    Task,
    [
        Column("task", lambda task, _: task.id, shrinks=True),
        Column("name", lambda task, _: task.name, shrinks=True, from_width=100),
        Column("status", lambda task, _: state(task.status)),
        Column("workers", lambda task, _: staff(task), "right"),
        Column("steps", lambda task, _: count(task.committed_steps), "right"),
        Column("done", lambda task, _: progress(task), "right"),
        Column("ran", took, "right"),
        Column("submitted", lambda task, now_ms: ago(task.submitted_at, now_ms)),
        Column("generation", lambda task, _: count(task.generation), "right", from_width=90),
        Column("dataset", lambda task, _: task.dataset_id or "–", shrinks=True, from_width=110),
        Column("type", lambda task, _: task.type, shrinks=True, from_width=130),
    ],
    empty="no task was submitted",
    note=failure,
)


def tasks(
    status: OfStatus = None,
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks, newest first: state, progress and workers of each."""
    print_list(reach(url), LOOK, limit, as_json, status=status)
