"""Conversion of the state to REST structures: pure functions.

The cost of a function is proportional to its result. If a list is cut, its full length is given.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from strata.coordinator.rest.paging import Key, newest_first
from strata.coordinator.rest.response_models import (
    AgentResponse,
    BarrierResponse,
    CheckpointResponse,
    CheckpointStatus,
    DatasetDetail,
    DatasetResponse,
    FactResponse,
    GpuResponse,
    ResourcesResponse,
    TaskDetail,
    TaskResponse,
    TaskWorkdirResponse,
    WorkerResponse,
    WorkerStatus,
)
from strata.coordinator.rest.views.shard_views import AssignedShards
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.barriers.barrier_rules import missing_workers
from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.checkpoints.keep_reasons import keep_reasons, metric_name
from strata.core.datasets.training_loops import trained_steps
from strata.core.events import Event, UnknownFact, position_id
from strata.core.state import Agent, Cluster, Dataset, Worker, WorkerState
from strata.core.task_state import Barrier, Checkpoint, CheckpointState, Feed, Task
from strata.core.tasks.host_slots import taken_slots
from strata.core.tasks.task_queue import Queue
from strata.core.workers.heartbeats import ResourceMetrics
from strata.errors import NotFound
from strata.timeline.read.records import ref_of_cause

NAMES_SHOWN = 100
METRICS_SHOWN = 10
MS_NS = 1_000_000

WORKER_STATUS: dict[WorkerState, WorkerStatus] = {
    "training": "active",
    "loading_data": "active",
    "initializing": "idle",
    "idle": "idle",
    "checkpointing": "checkpointing",
    "recovering": "recovering",
    "lost": "failed",
    "error": "failed",
}
"""A worker that has left is not shown."""

CHECKPOINT_STATUS: dict[CheckpointState, CheckpointStatus] = {
    "in_progress": "in_progress",
    "sealing": "in_progress",
    "committed": "completed",
    "failed": "failed",
}
"""A checkpoint that was deleted is not shown."""


def milliseconds(moment_ns: int) -> int:
    """Nanoseconds as milliseconds."""
    return moment_ns // MS_NS


def shown_workers(state: Cluster, ended: bool = False) -> Iterator[Worker]:
    """The workers that have not left; with `ended`, also workers lost in tasks that have ended."""
    return (
        worker
        for worker in state.workers.values()
        if worker.state in WORKER_STATUS
        and (ended or worker.alive or not state.tasks[worker.task].ended)
    )


def count_workers(state: Cluster) -> dict[WorkerStatus, int]:
    """Number of shown workers by status, including 0."""
    found = Counter(worker.state for worker in shown_workers(state))
    counts: dict[WorkerStatus, int] = dict.fromkeys(WORKER_STATUS.values(), 0)
    for worker_state, status in WORKER_STATUS.items():
        counts[status] += found[worker_state]
    return counts


def workers(
    state: Cluster, heartbeats: Heartbeats, chosen: Iterable[Worker]
) -> list[WorkerResponse]:
    """Workers with their last heartbeats."""
    chosen = list(chosen)
    tasks = (state.tasks[name] for name in {worker.task for worker in chosen})
    assigned = {task.id: AssignedShards(state, task) for task in tasks}
    return [
        _worker(state.tasks[worker.task], worker, heartbeats, assigned[worker.task].of(worker.id))
        for worker in chosen
    ]


def _worker(task: Task, worker: Worker, heartbeats: Heartbeats, assigned: int) -> WorkerResponse:
    seen = heartbeats.workers.get(worker.id)
    if seen is not None and seen.incarnation != worker.incarnation:
        seen = None
    epoch = max((feed.epoch for feed in task.feeds.values()), default=0)
    return WorkerResponse(
        id=worker.id,
        ip=worker.address or worker.hostname,
        port=worker.port,
        status=WORKER_STATUS[worker.state],
        gpu_count=worker.gpu_count,
        last_heartbeat=seen.last_heartbeat_ms if seen else milliseconds(worker.changed_ns),
        assigned_shards=assigned,
        current_epoch=seen.epoch if seen else epoch,
        current_step=seen.step if seen else task.committed,
        current_task=worker.task,
        resources=_resources(seen.resources) if seen and seen.resources else None,
        hostname=worker.hostname,
        state=worker.state,
        reason=worker.reason,
        rank=worker.rank,
        incarnation=worker.incarnation,
        registered_at=milliseconds(worker.registered_ns),
        loss=shown_number(seen.loss) if seen else None,
    )


def _resources(used: ResourceMetrics) -> ResourcesResponse:
    cards = [
        GpuResponse(**msgspec.structs.asdict(card) | {"utilization_percent": card.utilization})
        for card in used.gpu_metrics
    ]
    return ResourcesResponse(**(msgspec.structs.asdict(used) | {"gpu_metrics": cards}))


def find_worker(state: Cluster, worker_id: str) -> Worker:
    """The worker with an id; raises if it is unknown or has left."""
    worker = state.workers.get(worker_id)
    if worker is None or worker.state not in WORKER_STATUS:
        raise NotFound(f"there is no worker {worker_id!r}", hint="GET /api/workers lists them")
    return worker


def dataset(known: Dataset) -> DatasetResponse:
    """A dataset; without a name its id is the name."""
    spec = known.spec
    return DatasetResponse(
        id=known.id,
        name=spec.name or known.id,
        total_samples=spec.total_samples,
        shard_size=spec.shard_size,
        shard_count=spec.shard_count,
        format=spec.format,
        shuffle=spec.shuffle,
        registered_at=milliseconds(known.registered_ns),
        seed=spec.seed,
        path=spec.path,
    )


def dataset_detail(known: Dataset) -> DatasetDetail:
    """A dataset with all its registered fields."""
    spec = known.spec
    shown = msgspec.structs.asdict(dataset(known))
    return DatasetDetail(**shown, fingerprint=spec.fingerprint, metadata=spec.metadata)


def shown_checkpoints(state: Cluster, task_id: str = "") -> Iterator[tuple[Task, Checkpoint]]:
    """The checkpoints of one task or of all tasks, without deleted ones."""
    tasks = [state.task(task_id)] if task_id else state.tasks.values()
    for task in tasks:
        for checkpoint in task.checkpoints.values():
            if checkpoint.state in CHECKPOINT_STATUS:
                yield task, checkpoint


def checkpoint_order(each: tuple[Task, Checkpoint]) -> Key:
    """Newest first."""
    task, saved = each
    return newest_first(saved.created_ns, task.id, saved.id)


def checkpoints(
    heartbeats: Heartbeats, chosen: Iterable[tuple[Task, Checkpoint]]
) -> list[CheckpointResponse]:
    """Checkpoints with their first metrics."""
    chosen = list(chosen)
    tasks = {task.id: task for task, _ in chosen}
    reasons = {task.id: keep_reasons(task) for task in tasks.values()}
    return [
        checkpoint(heartbeats, task, saved, reasons[task.id].get(saved.id, []), METRICS_SHOWN)
        for task, saved in chosen
    ]


def checkpoint(
    heartbeats: Heartbeats,
    task: Task,
    saved: Checkpoint,
    kept_because: list[str],
    metrics: int | None = None,
) -> CheckpointResponse:
    """A checkpoint, its progress, and a number of its metrics."""
    best = metric_name(task.retention.keep_best)
    ordered = sorted(saved.metrics.items(), key=lambda each: (each[0] != best, each[0]))
    writing = heartbeats.saving(task, saved) if saved.state == "in_progress" else []
    begun = len(saved.parts) + len(writing) >= saved.expected or saved.state != "in_progress"
    # A part is complete only when its rank has acknowledged it, however much is stored.
    stored = sum(min(part.written_bytes, max(part.total_bytes - 1, 0)) for part in writing)
    return CheckpointResponse(
        id=saved.id,
        step=saved.step,
        epoch=saved.epoch,
        size=saved.size_bytes + saved.kept_bytes,
        path=saved.path,
        created_at=milliseconds(saved.created_ns),
        worker_id=saved.author,
        status=CHECKPOINT_STATUS[saved.state],
        task_id=task.id,
        reason=saved.reason,
        parts=len(saved.parts),
        parts_expected=saved.expected,
        size_written=saved.size_bytes + stored,
        size_total=saved.size_bytes + sum(part.total_bytes for part in writing) if begun else 0,
        tiers=[saved.path, *saved.copies] if saved.state == "committed" else [],
        size_new=saved.size_bytes,
        kept_because=kept_because,
        keep_best=task.retention.keep_best,
        metrics=dict(ordered[:metrics]),
        metrics_total=len(ordered),
    )


def shown_barriers(state: Cluster, task_id: str = "") -> Iterator[tuple[Task, Barrier]]:
    """The barriers of one task or of all tasks."""
    tasks = [state.task(task_id)] if task_id else state.tasks.values()
    return ((task, barrier) for task in tasks for barrier in task.barriers.values())


def barrier_order(each: tuple[Task, Barrier]) -> Key:
    """Newest first."""
    task, met = each
    return newest_first(met.opened_ns, task.id, met.name)


def barrier(task: Task, met: Barrier, names: int = NAMES_SHOWN) -> BarrierResponse:
    """A barrier and its missing workers."""
    missing = missing_workers(task, met) if met.state == "waiting" else met.missing
    return BarrierResponse(
        id=f"{task.id}/{met.name}#{met.round}",
        name=met.name,
        arrived=len(met.arrived),
        total=len(met.arrived) + len(missing),
        status=met.state,
        created_at=milliseconds(met.opened_ns),
        missing=missing[:names],
        missing_total=len(missing),
        task_id=task.id,
        step=met.step,
        ended_at=milliseconds(met.ended_ns) if met.ended_ns else None,
    )


def task_order(known: Task) -> Key:
    """Newest first."""
    return newest_first(known.submitted_ns, known.id)


def task(
    state: Cluster, queue: Queue, known: Task, logs: list[str], names: int = NAMES_SHOWN
) -> TaskResponse:
    """A task and its progress."""
    spec = known.spec
    worker_ids = known.members + known.waiting or list(known.placements)
    return TaskResponse(
        id=known.id,
        name=spec.name,
        type=spec.type,
        status=known.state,
        worker_ids=worker_ids[:names],
        dataset_id=spec.dataset_id,
        started_at=milliseconds(known.started_ns) if known.started_ns else None,
        completed_at=milliseconds(known.ended_ns) if known.ended_ns else None,
        progress=progress(state, known),
        logs=logs,
        worker_ids_total=len(worker_ids),
        worker_count=spec.worker_count,
        spares=spec.spares,
        datasets=list(known.feeds),
        submitted_at=milliseconds(known.submitted_ns),
        reason=_reason(queue, known),
        exit_code=known.exit_code,
        generation=known.generation,
        phase=known.phase,
        committed_steps=known.committed,
        saved_step=next((saved.step for saved in committed_newest_first(known)), None),
        continuations=known.continuations,
        parent=known.parent,
        forked_at=known.forked_at,
        priority=spec.priority,
        queue_position=queue.positions.get(known.id),
        elastic=spec.elastic,
        min_workers=spec.min_workers,
    )


def _reason(queue: Queue, known: Task) -> str:
    """What a task waits for, or why it is in its state; both if it was queued again."""
    waits = queue.waiting_for(known)
    if known.state == "queued" and known.reason:
        return f"{known.reason}; {waits}"
    return waits or known.reason


def task_detail(state: Cluster, heartbeats: Heartbeats, known: Task, logs: list[str]) -> TaskDetail:
    """A task with its submitted parameters."""
    queue = Queue(state)
    shown = msgspec.structs.asdict(task(state, queue, known, logs))
    spec = known.spec
    return TaskDetail(
        **shown,
        entry=spec.entry,
        args=spec.args,
        env_names=spec.env_names,
        config=msgspec.json.decode(spec.config, type=dict[str, Any]),
        policy=spec.policy,
        model_state=spec.model_state,
        **msgspec.structs.asdict(known.retention),
        max_restarts=spec.max_restarts,
        external=spec.external,
        after=spec.after,
        preemptible=spec.preemptible,
        epochs=spec.epochs,
        max_steps=spec.max_steps,
        self_test=spec.self_test,
        waiting_for=queue.waiting_for(known),
        loss=_loss(heartbeats, known),
        workdir=_workdir(known),
    )


def _workdir(known: Task) -> TaskWorkdirResponse | None:
    found = known.workdir if known.spec.workdir else None
    return TaskWorkdirResponse(**msgspec.structs.asdict(found)) if found is not None else None


def _loss(heartbeats: Heartbeats, known: Task) -> float | None:
    last = (heartbeats.workers.get(member) for member in known.members)
    losses = [each.loss for each in last if each is not None and each.loss is not None]
    return shown_number(sum(losses) / len(losses)) if losses else None


def shown_number(value: float | None) -> float | None:
    """A number for JSON, which has neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None


def progress(state: Cluster, known: Task) -> float | None:
    """Percentage of a task that is done; None if the total is unknown."""
    if known.state == "completed":
        return 100.0
    parts = [part for feed in known.feeds.values() for part in _done(state, known, feed)]
    return round(100 * min(min(parts), 1.0), 2) if parts else None


def _done(state: Cluster, known: Task, feed: Feed) -> Iterator[float]:
    """The trained share of a dataset's epochs, if both are known."""
    if feed.epochs and feed.unit == "lane":
        spec = state.datasets[feed.dataset].spec
        trained = trained_steps(known.loops, feed.dataset, known.committed)
        if spec.has_length:
            yield trained * feed.global_batch / (feed.epochs * spec.total_samples)
    elif feed.epochs and feed.unit == "lease":
        yield (feed.epoch * feed.count + feed.consumed) / (feed.epochs * feed.count)


def agents(state: Cluster, heartbeats: Heartbeats, chosen: Iterable[Agent]) -> list[AgentResponse]:
    """Agents with the number of their used slots and the time of their last heartbeat."""
    taken = taken_slots(state)
    return [
        AgentResponse(
            id=agent.id,
            hostname=agent.hostname,
            slots=agent.slots,
            slots_used=min(taken[agent.id], agent.slots) if agent.up else 0,
            up=agent.up,
            reason=agent.reason,
            incarnation=agent.incarnation,
            registered_at=milliseconds(agent.registered_ns),
            last_heartbeat=heartbeats.agents.get(agent.id) or milliseconds(agent.registered_ns),
        )
        for agent in chosen
    ]


def fact(event: Event) -> FactResponse:
    """A fact as a JSON structure."""
    body = event.body
    fields = body.fields if isinstance(body, UnknownFact) else msgspec.to_builtins(body)
    fields.pop("kind", None)
    return FactResponse(
        position=event.seq,
        id=position_id(event.seq),
        kind=event.kind,
        time=milliseconds(event.wall_ns),
        cause=[ref_of_cause(cause) for cause in event.cause],
        op=event.op,
        fields=fields,
    )
