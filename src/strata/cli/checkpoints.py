"""List the checkpoints, or show, save, verify, copy or delete one."""

from typing import Annotated, Literal

import typer

from strata.cli.support import checkpoint_actions
from strata.cli.support.options import AsJson, Limit, OfTask, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import (
    Column,
    Look,
    ago,
    count,
    print_list,
    size,
    state,
)
from strata.coordinator.rest.response_models import CheckpointResponse, CheckpointStatus
from strata.errors import InvalidArgument

OfStatus = Annotated[
    CheckpointStatus | None, typer.Option("--status", help="Show only this status.")
]


def failure(saved: CheckpointResponse) -> str:
    """Why a checkpoint failed."""
    return f"{saved.id}: {saved.reason}" if saved.status == "failed" and saved.reason else ""


def how_large(saved: CheckpointResponse) -> str:
    """The size; while it is written, the share that the storage has."""
    if saved.status != "in_progress":
        return size(saved.size)
    if not saved.size_total:
        return f"{size(saved.size_written)} so far"
    share = 100 * saved.size_written // saved.size_total
    return f"{share} % of {size(saved.size_total)}"


def held_by(saved: CheckpointResponse) -> str:
    """The kinds of storage that have the checkpoint, nearest first."""
    return " + ".join("s3" if tier.startswith("s3://") else "disk" for tier in saved.tiers) or "–"


LOOK = Look(
    "checkpoints",
    CheckpointResponse,
    [
        Column("checkpoint", lambda saved, _: saved.id, shrinks=True),
        Column("status", lambda saved, _: state(saved.status)),
        Column("step", lambda saved, _: count(saved.step), "right"),
        Column("epoch", lambda saved, _: count(saved.epoch), "right", from_width=90),
        Column("size", lambda saved, _: how_large(saved), "right"),
        Column("new", lambda saved, _: size(saved.size_new), "right", from_width=90),
        Column("parts", lambda saved, _: f"{saved.parts}/{saved.parts_expected}", "right"),
        Column("stored on", lambda saved, _: held_by(saved), from_width=80),
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
    typer.Argument(help="Action: list, show, save, verify, copy (pull) or delete (rm)."),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Id of the checkpoint; for verify and pull also its path or s3:// URL.",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Target folder of pull; default: the current folder.",
        show_default=False,
    ),
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
    """List the checkpoints, newest first; or show, save, verify, pull or rm one.

    `save` asks the workers of --task to save at their next step. `verify` and `pull` read the
    storage from this host, with the same environment variables as a worker.
    """
    if action == "ls":
        return print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task)
    if action == "save":
        return checkpoint_actions.save(reach(url), task)
    if not checkpoint:
        raise InvalidArgument(
            f"{action} needs a checkpoint", hint="`strata checkpoints` lists them"
        )
    if action == "show":
        checkpoint_actions.show(reach(url), checkpoint, task, as_json)
    elif action == "rm":
        checkpoint_actions.remove(reach(url), checkpoint, task)
    elif action == "verify":
        checkpoint_actions.verify(url, checkpoint, task)
    else:
        checkpoint_actions.pull(url, checkpoint, task, target)
