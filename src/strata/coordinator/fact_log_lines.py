"""Log lines for facts.

`error`: something failed, including a crash of a worker or host, however it was detected.
`warning`: something was refused or undone. `info`: normal operation (a barrier reached, a
checkpoint saved). `debug`: everything else.
"""

import logging
from collections.abc import Sequence

from strata.core.alerts.alert_record import AlertDeliveryFailed, AlertRaised, AlertResolved
from strata.core.barriers.barrier_rules import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted, CheckpointFailed
from strata.core.checkpoints.checkpoint_retention import RetentionChanged
from strata.core.cluster import CoordinatorStarted
from strata.core.datasets.dataset_rules import AssignmentChanged, DatasetRegistered
from strata.core.events import Event, Fact
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.generations.storage_waits import StorageReached, StorageUnreachable
from strata.core.hosts.gpu_exclusion import GpuExcluded, GpuIncluded
from strata.core.hosts.host_exclusion import HostExcluded, HostIncluded
from strata.core.limits import LimitHit
from strata.core.tasks.continuation import TaskContinued
from strata.core.tasks.preemption import TaskPreempted
from strata.core.tasks.resizing import TaskResized
from strata.core.tasks.task_forks import TaskForked
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.fencing import WorkerFenced
from strata.core.workers.host_agents import (
    AgentLost,
    AgentRegistered,
    AgentSlotsChanged,
    WorkerExited,
    how_it_ended,
)
from strata.core.workers.worker_lifecycle import (
    WorkerLost,
    WorkerRegistered,
    WorkerRejected,
    WorkerReturned,
)
from strata.timeline.read.sentences import counted

log = logging.getLogger("strata.coordinator")

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


def log_facts(events: Sequence[Event]) -> None:
    """Log the facts of a turn that have a log line."""
    for event in events:
        # Arrivals are too many to look up.
        line = None if type(event.body) is BarrierArrived else log_line(event.body)
        if line is not None and log.isEnabledFor(line[0]):
            level, text = line
            about = {
                "task_id": getattr(event.body, "task", ""),
                "worker_id": getattr(event.body, "worker", ""),
            }
            log.log(level, "%s", text, extra=about)


def log_line(body: Fact) -> tuple[int, str] | None:
    """Level and text of the log line for a fact; None if it has none."""
    match body:
        case CoordinatorStarted():
            return INFO, f"coordinator {body.incarnation} of cluster {body.cluster} started"
        case WorkerRegistered():
            return INFO, f"worker {body.worker} joined as incarnation {body.incarnation}"
        case WorkerReturned():
            return INFO, f"worker {body.worker} reconnected: {body.reason}"
        case WorkerLost():
            return ERROR, f"worker {body.worker} is lost ({body.signal}): {body.reason}"
        case WorkerRejected() | WorkerFenced():
            return WARNING, f"worker {body.worker} was refused: {body.reason}"
        case WorkerExited():
            how = how_it_ended(body.code, body.signal)
            level = ERROR if body.signal or body.code else INFO
            return level, f"the process of worker {body.worker} ended with {how}"
        case AlertRaised():
            level = {"error": ERROR, "warning": WARNING, "info": INFO}[body.severity]
            return level, f"{body.alert} ({body.rule}): {body.text}"
        case AlertResolved():
            return INFO, f"{body.alert} ({body.rule}) is closed: {body.reason}"
        case AlertDeliveryFailed():
            return WARNING, f"{body.alert} was not sent to {body.channel}: {body.reason}"
        case AgentRegistered():
            return INFO, f"agent {body.agent} offers {body.slots} slots"
        case AgentSlotsChanged():
            return INFO, f"agent {body.agent} offers {body.after} slots instead of {body.before}"
        case AgentLost():
            return ERROR, f"agent {body.agent} is lost: {body.reason}"
        case HostExcluded():
            return WARNING, f"host {body.host} is excluded: {body.reason}"
        case HostIncluded():
            return INFO, f"host {body.host} is included again"
        case GpuExcluded():
            return WARNING, f"GPU {body.gpu} of host {body.host} is excluded: {body.reason}"
        case GpuIncluded():
            return INFO, f"GPU {body.gpu} of host {body.host} is included again"
        case GenerationChanged():
            size = f"{body.world_size} workers, {body.phase}"
            return INFO, f"generation {body.generation} of {body.task} ({size}): {body.reason}"
        case RecoveryChosen():
            where = body.checkpoint or body.worker or "a new model"
            return INFO, f"{body.task} continues from {where} at step {body.step}: {body.reason}"
        case RolledBack():
            return WARNING, f"{body.task} rolled back from step {body.origin} to {body.to}"
        case TaskForked():
            return INFO, f"task {body.task} is a fork of {body.parent} at step {body.step}"
        case TaskPreempted():
            return INFO, f"task {body.task} was preempted by {body.preemptor}: {body.reason}"
        case TaskResized():
            sizes = f"from {body.before} to {counted(body.after, 'worker')}"
            return INFO, f"task {body.task} was resized {sizes}: {body.reason}"
        case TaskContinued():
            return INFO, f"task {body.task} continues from step {body.step}: {body.reason}"
        case TaskStateChanged():
            level = ERROR if body.after == "failed" else INFO
            return level, f"task {body.task} is {body.after}: {body.reason}"
    return _words_on_data(body)


def committed(body: CheckpointCommitted) -> str:
    """The log line of a committed checkpoint: worker, path, size and duration."""
    others = f" and {body.parts - 1} more" if body.parts > 1 else ""
    who = f"worker {body.worker}{others}"
    kept = f", {body.kept_bytes / 1e6:.2f} MB unchanged" if body.kept_bytes else ""
    size = f"{body.size_bytes / 1e6:.2f} MB written{kept}"
    return (
        f"checkpoint {body.checkpoint} of step {body.step} saved by {who} to "
        f"{body.path}: {size}, in {body.took_s * 1000:.0f} ms"
    )


def _words_on_data(body: Fact) -> tuple[int, str] | None:
    match body:
        case BarrierReleased():
            return INFO, f"barrier {body.barrier} reached by {body.participants} workers"
        case BarrierFailed():
            missing = ", ".join(body.missing) or "none"
            return ERROR, f"barrier {body.barrier} failed: {body.reason}; missing: {missing}"
        case CheckpointCommitted():
            return INFO, committed(body)
        case StorageUnreachable():
            waits = f"{body.task} waits for checkpoint {body.checkpoint}"
            trouble = "a file is missing" if body.missing else "storage unreachable"
            return ERROR, f"{waits}: {trouble}: {body.reason}"
        case StorageReached():
            return INFO, f"{body.task} waited {body.waited_s:.1f} s for storage: {body.reason}"
        case RetentionChanged():
            return INFO, f"the script of {body.worker} chose what {body.task} keeps: {body.keeps}"
        case CheckpointFailed():
            return ERROR, f"checkpoint {body.checkpoint} failed: {body.reason}"
        case DatasetRegistered():
            return INFO, f"dataset {body.dataset}: {body.spec.total_samples} samples"
        case AssignmentChanged():
            return DEBUG, f"{body.moved} parts of {body.dataset} moved: {body.reason}"
        case LimitHit():
            return WARNING, f"limit {body.limit} ({body.value}) reached: {body.reason}"
    return None
