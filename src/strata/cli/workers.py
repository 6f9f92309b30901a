"""List the workers."""

from typing import Annotated

import typer

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
from strata.coordinator.rest.response_models import WorkerResponse, WorkerStatus

OfStatus = Annotated[WorkerStatus | None, typer.Option("--status", help="Show only this status.")]
Ended = Annotated[bool, typer.Option("--ended", help="Also show lost workers of ended tasks.")]


def cpu(worker: WorkerResponse) -> str:
    """CPU utilization."""
    return f"{worker.resources.cpu_percent:.0f} %" if worker.resources else "–"


def memory(worker: WorkerResponse) -> str:
    """Used memory."""
    return size(worker.resources.memory_used_bytes) if worker.resources else "–"


def gpus(worker: WorkerResponse) -> str:
    """Number of GPUs and their mean utilization."""
    cards = worker.resources.gpu_metrics if worker.resources else []
    busy = [each.utilization_percent for each in cards if each.utilization_percent is not None]
    return f"{worker.gpu_count} at {sum(busy) / len(busy):.0f} %" if busy else str(worker.gpu_count)


def failure(worker: WorkerResponse) -> str:
    """Why a worker failed."""
    return f"{worker.id}: {worker.reason}" if worker.status == "failed" and worker.reason else ""


LOOK = Look(
    "workers",
    WorkerResponse,
    [
        Column("worker", lambda worker, _: worker.id, shrinks=True),
        Column("status", lambda worker, _: state(worker.status)),
        Column("rank", lambda worker, _: str(worker.rank) if worker.rank >= 0 else "–", "right"),
        Column("epoch", lambda worker, _: count(worker.current_epoch), "right", from_width=100),
        Column("step", lambda worker, _: count(worker.current_step), "right"),
        Column("shards", lambda worker, _: count(worker.assigned_shards), "right", from_width=110),
        Column("task", lambda worker, _: worker.current_task, shrinks=True, from_width=90),
        Column("heartbeat", lambda worker, now_ms: ago(worker.last_heartbeat, now_ms)),
        Column("cpu", lambda worker, _: cpu(worker), "right"),
        Column("memory", lambda worker, _: memory(worker), "right"),
        Column("gpus", lambda worker, _: gpus(worker), "right"),
        Column("host", lambda worker, _: worker.hostname, shrinks=True, from_width=130),
    ],
    empty="no worker is connected",
    note=failure,
)


def workers(
    status: OfStatus = None,
    task: OfTask = "",
    ended: Ended = False,
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the workers: state, step and last heartbeat of each."""
    also = "true" if ended else None
    print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task, ended=also)
