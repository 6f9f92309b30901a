"""List the checkpoints, newest first; show, save, verify, pull or rm one."""

from typing import Annotated, Literal

import typer
from msgspec import Struct

from strata.cli import _checkpoint
from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, print_list, size, state
from strata.cli._options import AsJson, Limit, OfTask, Url
from strata.errors import InvalidArgument

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
    size_new: int
    parts: int
    parts_expected: int
    size_written: int
    size_total: int
    created_at: int
    worker_id: str
    path: str
    tiers: list[str]
    reason: str


def failure(saved: Checkpoint) -> str:
    """Why a checkpoint failed."""
    return f"{saved.id}: {saved.reason}" if saved.status == "failed" and saved.reason else ""


def how_large(saved: Checkpoint) -> str:
    """The size; while it is being written, how much of it the storage has."""
    if saved.status != "in_progress":
        return size(saved.size)
    if not saved.size_total:
        return f"{size(saved.size_written)} so far"
    share = 100 * saved.size_written // saved.size_total
    return f"{share} % of {size(saved.size_total)}"


def held_by(saved: Checkpoint) -> str:
    """Which kinds of storage hold it, the nearest first."""
    return " + ".join("s3" if tier.startswith("s3://") else "disk" for tier in saved.tiers) or "–"


LOOK = Look(
    "checkpoints",
    Checkpoint,
    [
        Column("checkpoint", lambda saved, _: saved.id, shrinks=True),
        Column("status", lambda saved, _: state(saved.status)),
        Column("step", lambda saved, _: count(saved.step), "right"),
        Column("epoch", lambda saved, _: count(saved.epoch), "right", from_width=90),
        Column("size", lambda saved, _: how_large(saved), "right"),
        Column("new", lambda saved, _: size(saved.size_new), "right", from_width=90),
        Column("parts", lambda saved, _: f"{saved.parts}/{saved.parts_expected}", "right"),
        Column("kept on", lambda saved, _: held_by(saved), from_width=80),
        Column("started", lambda saved, now_ms: ago(saved.created_at, now_ms)),
        Column("started by", lambda saved, _: saved.worker_id, shrinks=True, from_width=100),
        Column("task", lambda saved, _: saved.task_id, shrinks=True, from_width=100),
        Column("path", lambda saved, _: saved.path or "–", shrinks=True, from_width=120),
    ],
    empty="no checkpoint was saved",
    next_command="strata tasks",
    note=failure,
)


Action = Annotated[
    Literal["ls", "show", "save", "verify", "pull", "rm"],
    typer.Argument(help="What to do: list, show one, request one, verify, copy, delete."),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The id of one; for verify and pull also its folder, or s3://…",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="Where pull copies it: a folder.", show_default=False),
]


def checkpoints(
    action: Action = "ls",
    checkpoint: Which = "",
    target: Target = "",
    status: OfStatus = None,
    task: OfTask = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints, newest first; show, save, verify, pull or rm one.

    `save` asks the workers of --task to save at their next step. `verify` and `pull` read the
    storage from here; what they need of it is in the environment, as for a worker.
    """
    if action == "ls":
        return print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task)
    if action == "save":
        return _checkpoint.save(reach(url), task)
    if not checkpoint:
        raise InvalidArgument(f"{action} needs a checkpoint", hint="strata checkpoints lists them")
    if action == "show":
        _checkpoint.show(reach(url), checkpoint, task, as_json)
    elif action == "rm":
        _checkpoint.remove(reach(url), checkpoint, task)
    elif action == "verify":
        _checkpoint.verify(url, checkpoint, task)
    else:
        _checkpoint.pull(url, checkpoint, task, target)
