"""List the tasks."""

from typing import Annotated

import typer

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import (
    STATES,
    Column,
    Look,
    ago,
    count,
    duration,
    print_list,
    state,
)
from strata.coordinator.rest.response_models import TaskResponse, TaskState

OfStatus = Annotated[TaskState | None, typer.Option("--status", help="Show only this status.")]


def progress(task: TaskResponse) -> str:
    """The progress, if known."""
    return "–" if task.progress is None else f"{task.progress:.1f} %"


def staff(task: TaskResponse) -> str:
    """The number of workers, and of how many if some are missing or the task is elastic."""
    present = count(task.worker_ids_total)
    if task.elastic:
        return f"{present} ({count(task.min_workers)}:{count(task.worker_count)})"
    short = task.worker_ids_total < task.worker_count
    return f"{present}/{count(task.worker_count)}" if short else present


def took(task: TaskResponse, now_ms: int) -> str:
    """The run time."""
    if task.started_at is None:
        return "–"
    return duration(((task.completed_at or now_ms) - task.started_at) / 1000)


def fork_of(task: TaskResponse) -> str:
    """The task that a fork shares its history with, and up to which step."""
    return f"{task.parent} at {count(task.forked_at)}" if task.parent else "–"


def remark(task: TaskResponse) -> str:
    """Why a task failed, or what it waits for."""
    told = task.status in ("failed", "queued") and task.reason
    return f"{task.id}: {task.reason}" if told else ""


LOOK = Look(
    "tasks",
    TaskResponse,
    [
        Column("task", lambda task, _: task.id, shrinks=True),
        Column("name", lambda task, _: task.name, shrinks=True, from_width=100),
        Column("status", lambda task, _: state(task.status)),
        Column("priority", lambda task, _: str(task.priority), "right", from_width=90),
        Column("workers", lambda task, _: staff(task), "right"),
        Column("steps", lambda task, _: count(task.committed_steps), "right"),
        Column("done", lambda task, _: progress(task), "right"),
        Column("ran", took, "right"),
        Column("submitted", lambda task, now_ms: ago(task.submitted_at, now_ms)),
        Column("fork of", lambda task, _: fork_of(task), shrinks=True, from_width=110),
        Column("generation", lambda task, _: count(task.generation), "right", from_width=90),
        Column("dataset", lambda task, _: task.dataset_id or "–", shrinks=True, from_width=110),
        Column("type", lambda task, _: task.type, shrinks=True, from_width=130),
    ],
    empty="no task was submitted",
    note=remark,
    mark=lambda task: STATES[task.status],
)


def tasks(
    status: OfStatus = None,
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks, newest first: state, progress and workers of each."""
    print_list(reach(url), LOOK, limit, as_json, status=status)
