"""List the workers: state, step, and last heartbeat of each."""

from typing import Annotated, Literal

import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, print_list, size, state
from strata.cli._options import AsJson, Limit, OfTask, Url

Status = Literal["active", "idle", "checkpointing", "recovering", "failed"]
OfStatus = Annotated[Status | None, typer.Option("--status", help="Only of this status.")]
Ended = Annotated[
    bool, typer.Option("--ended", help="Also show workers that were lost in tasks that have ended.")
]


class Gpu(Struct, frozen=True):
    """What is shown of a card."""

    utilization_percent: float


class Resources(Struct, frozen=True):
    """What is shown of a worker's use."""

    cpu_percent: float
    memory_used_bytes: int
    gpu_metrics: list[Gpu]


class Worker(Struct, frozen=True):
    """What is shown of a worker."""

    id: str
    hostname: str
    status: str
    reason: str
    rank: int
    gpu_count: int
    last_heartbeat: int
    current_epoch: int
    current_step: int
    current_task: str
    assigned_shards: int
    resources: Resources | None


def cpu(worker: Worker) -> str:
    """How busy its processor is."""
    return f"{worker.resources.cpu_percent:.0f} %" if worker.resources else "–"


def memory(worker: Worker) -> str:
    """How much memory it uses."""
    return size(worker.resources.memory_used_bytes) if worker.resources else "–"


def gpus(worker: Worker) -> str:
    """How many cards it has, and how busy they are on average."""
    busy = (
        [card.utilization_percent for card in worker.resources.gpu_metrics]
        if worker.resources
        else []
    )
    return f"{worker.gpu_count} at {sum(busy) / len(busy):.0f} %" if busy else str(worker.gpu_count)


def failure(worker: Worker) -> str:
    """Why a worker failed."""
    return f"{worker.id}: {worker.reason}" if worker.status == "failed" and worker.reason else ""


LOOK = Look(
    "workers",
    Worker,
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
    """List the workers: state, step, and last heartbeat of each."""
    also = "true" if ended else None
    print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task, ended=also)
