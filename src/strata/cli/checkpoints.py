"""List the checkpoints: what was saved, when, and how large it is."""

from typing import Annotated, Literal

import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, print_list, size, state
from strata.cli._options import AsJson, Limit, OfTask, Url

Status = Literal["in_progress", "completed", "failed"]
OfStatus = Annotated[Status | None, typer.Option("--status", help="Only of this status.")]


class Checkpoint(Struct, frozen=True):
    """What is shown of a checkpoint."""

    id: str
    task_id: str
    status: str
    step: int
    epoch: int
    size: int
    parts: int
    parts_expected: int
    created_at: int
    worker_id: str
    path: str
    reason: str


def failure(saved: Checkpoint) -> str:
    """Why a checkpoint failed."""
    return f"{saved.id}: {saved.reason}" if saved.status == "failed" and saved.reason else ""


LOOK = Look(
    "checkpoints",
    Checkpoint,
    [
        Column("checkpoint", lambda saved, _: saved.id, shrinks=True),
        Column("status", lambda saved, _: state(saved.status)),
        Column("step", lambda saved, _: count(saved.step), "right"),
        Column("epoch", lambda saved, _: count(saved.epoch), "right", from_width=90),
        Column("size", lambda saved, _: size(saved.size), "right"),
        Column("parts", lambda saved, _: f"{saved.parts}/{saved.parts_expected}", "right"),
        Column("begun", lambda saved, now_ms: ago(saved.created_at, now_ms)),
        Column("by", lambda saved, _: saved.worker_id, shrinks=True, from_width=100),
        Column("task", lambda saved, _: saved.task_id, shrinks=True, from_width=100),
        Column("path", lambda saved, _: saved.path or "–", shrinks=True, from_width=120),
    ],
    empty="nothing was saved",
    next_command="strata tasks",
    note=failure,
)


def checkpoints(
    status: OfStatus = None,
    task: OfTask = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints, newest first: what was saved, when, and how large it is."""
    print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task)
