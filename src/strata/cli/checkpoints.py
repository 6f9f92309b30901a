"""List, show, save, verify, export, pin or delete checkpoints."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata.checkpoint.export.checkpoint_export import Format
from strata.cli.support import checkpoint_actions
from strata.cli.support.checkpoint_exports import export, requested_export
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
from strata.core.checkpoints.keep_reasons import metric_name
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


def metric(saved: CheckpointResponse) -> str:
    """The value of the metric by which the task keeps its best checkpoints."""
    name = metric_name(saved.keep_best)
    if not name or saved.status != "completed":
        return "–"
    value = saved.metrics.get(name)
    return f"no {name}" if value is None else f"{name} {value:.6g}"


def reasons(saved: CheckpointResponse) -> str:
    """The rules that keep a checkpoint."""
    return ", ".join(saved.kept_because) or "–"


LOOK = Look(
    "checkpoints",
    CheckpointResponse,
    [
        Column("checkpoint", lambda saved, _: saved.id, shrinks=True),
        Column("status", lambda saved, _: state(saved.status)),
        Column("step", lambda saved, _: count(saved.step), "right"),
        Column("epoch", lambda saved, _: count(saved.epoch), "right", from_width=140),
        Column("size", lambda saved, _: how_large(saved), "right"),
        Column("new", lambda saved, _: size(saved.size_new), "right", from_width=140),
        Column("metric", lambda saved, _: metric(saved), shrinks=True, from_width=100),
        Column("kept because", lambda saved, _: reasons(saved), shrinks=True),
        Column(
            "parts",
            lambda saved, _: f"{saved.parts}/{saved.parts_expected}",
            "right",
            from_width=120,
        ),
        Column("stored on", lambda saved, _: held_by(saved), from_width=120),
        Column("started", lambda saved, now_ms: ago(saved.created_at, now_ms)),
        Column("started by", lambda saved, _: saved.worker_id, shrinks=True, from_width=160),
        Column("task", lambda saved, _: saved.task_id, shrinks=True, from_width=120),
        Column("path", lambda saved, _: saved.path or "–", shrinks=True, from_width=180),
    ],
    empty="no checkpoint was saved",
    next_command="strata tasks",
    note=failure,
)


Action = Annotated[
    Literal["ls", "show", "save", "verify", "pull", "export", "pin", "unpin", "rm"],
    typer.Argument(
        help="Action: list, show, save, verify, copy (pull), export, protect from deletion (pin), "
        "end that (unpin) or delete (rm)."
    ),
]
Note = Annotated[str, typer.Option(help="Note of pin: why the checkpoint is kept.")]
Which = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Id of the checkpoint; for verify, pull and export also its path or s3:// URL.",
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
ExportFormat = Annotated[
    Format | None,
    typer.Option("--format", help="Format of an export.", show_default=False),
]
Out = Annotated[
    str,
    typer.Option("--out", metavar="DIR", help="Folder that export creates.", show_default=False),
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="PATH",
        help="Part of the state to export, such as model; default: all, for hf the model.",
        show_default=False,
    ),
]
ShardSize = Annotated[
    str,
    typer.Option(
        "--shard-size",
        metavar="SIZE",
        help="Size of tensors, such as 500MB or 5GB, above which safetensors and hf use several "
        "files.",
    ),
]
ConfigFrom = Annotated[
    Path | None,
    typer.Option(
        "--config-from",
        metavar="DIR",
        help="Folder with the config.json and tokenizer files to copy into an export to hf.",
        show_default=False,
    ),
]


def checkpoints(
    action: Action = "ls",
    checkpoint: Which = "",
    target: Target = "",
    status: OfStatus = None,
    task: OfTask = "",
    note: Note = "",
    limit: Limit = 100,
    format: ExportFormat = None,
    out: Out = "",
    only: Only = "",
    shard_size: ShardSize = "5GB",
    config_from: ConfigFrom = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints, newest first; or apply an action to one.

    The list says why each checkpoint is kept. A pinned one is kept until `unpin`, which deletes it
    if no other rule keeps it.

    `save` asks the workers of --task to save at their next step. `verify`, `pull` and `export` read
    the storage from this host, with the same environment variables as a worker. `export` joins the
    parts of all ranks into a new folder that other programs load.
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
    elif action == "pin":
        checkpoint_actions.pin(reach(url), checkpoint, task, note)
    elif action == "unpin":
        checkpoint_actions.unpin(reach(url), checkpoint, task)
    elif action == "rm":
        checkpoint_actions.remove(reach(url), checkpoint, task)
    elif action == "verify":
        checkpoint_actions.verify(url, checkpoint, task)
    elif action == "pull":
        checkpoint_actions.pull(url, checkpoint, task, target)
    else:
        request = requested_export(format, out, only, shard_size, config_from)
        export(url, checkpoint, task, request, as_json)
