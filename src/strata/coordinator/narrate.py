"""Says in the log, in words, what the facts say: for those who read logs first.

The facts stay the record; a line here is a view of one. `error` is for what ended badly: also a
crash of a worker or a host, however it was noticed. `warning` is for what was refused or undone,
`info` for the course of things (a barrier reached, a checkpoint saved), `debug` for the rest.
"""

import logging
from collections.abc import Sequence

from strata.core.agents import (
    AgentLost,
    AgentRegistered,
    AgentSlotsChanged,
    WorkerExited,
    how_it_ended,
)
from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.checkpoints import CheckpointCommitted, CheckpointFailed
from strata.core.cluster import CoordinatorStarted
from strata.core.datasets import AssignmentChanged, DatasetRegistered
from strata.core.events import Event, Fact
from strata.core.fencing import WorkerFenced
from strata.core.generations import GenerationChanged
from strata.core.limits import LimitHit
from strata.core.recovery import RecoveryChosen, RolledBack
from strata.core.storage_waits import StorageReached, StorageUnreachable
from strata.core.tasks import TaskStateChanged
from strata.core.workers import WorkerLost, WorkerRegistered, WorkerRejected, WorkerReturned

log = logging.getLogger("strata.coordinator")

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


def narrate(events: Sequence[Event]) -> None:
    """Logs the facts of a turn that a reader of logs wants to see; arrivals are too many to ask."""
    for event in events:
        told = None if type(event.body) is BarrierArrived else words(event.body)
        if told is not None and log.isEnabledFor(told[0]):
            level, text = told
            about = {
                "task_id": getattr(event.body, "task", ""),
                "worker_id": getattr(event.body, "worker", ""),
            }
            log.log(level, "%s", text, extra=about)


def words(body: Fact) -> tuple[int, str] | None:
    """The level and the words for a fact; None for one that is only in the record."""
    match body:
        case CoordinatorStarted():
            return INFO, f"coordinator {body.incarnation} of cluster {body.cluster} has started"
        case WorkerRegistered():
            return INFO, f"worker {body.worker} joined as incarnation {body.incarnation}"
        case WorkerReturned():
            return INFO, f"worker {body.worker} is back: {body.reason}"
        case WorkerLost():
            return ERROR, f"worker {body.worker} is lost ({body.signal}): {body.reason}"
        case WorkerRejected() | WorkerFenced():
            return WARNING, f"worker {body.worker} was refused: {body.reason}"
        case WorkerExited():
            how = how_it_ended(body.code, body.signal)
            level = ERROR if body.signal or body.code else INFO
            return level, f"the process of worker {body.worker} ended with {how}"
        case AgentRegistered():
            return INFO, f"agent {body.agent} offers {body.slots} slots"
        case AgentSlotsChanged():
            return INFO, f"agent {body.agent} offers {body.after} slots instead of {body.before}"
        case AgentLost():
            return ERROR, f"agent {body.agent} is lost: {body.reason}"
        case GenerationChanged():
            size = f"{body.world_size} workers, {body.phase}"
            return INFO, f"generation {body.generation} of {body.task} ({size}): {body.reason}"
        case RecoveryChosen():
            where = body.checkpoint or body.worker or "nothing"
            return INFO, f"{body.task} goes on from {where} at step {body.step}: {body.reason}"
        case RolledBack():
            return WARNING, f"{body.task} rolled back from step {body.origin} to {body.to}"
        case TaskStateChanged():
            level = ERROR if body.after == "failed" else INFO
            return level, f"task {body.task} is {body.after}: {body.reason}"
    return _words_on_data(body)


def _words_on_data(body: Fact) -> tuple[int, str] | None:
    match body:
        case BarrierReleased():
            return INFO, f"barrier {body.barrier} reached by {body.participants} workers"
        case BarrierFailed():
            missing = ", ".join(body.missing) or "nobody"
            return ERROR, f"barrier {body.barrier} failed: {body.reason}; missing: {missing}"
        case CheckpointCommitted():
            size = f"{body.size_bytes / 1e6:.1f} MB"
            return INFO, f"checkpoint {body.checkpoint} at step {body.step} is complete ({size})"
        case StorageUnreachable():
            waits = f"{body.task} waits for checkpoint {body.checkpoint}"
            trouble = "a file is missing" if body.missing else "storage unreachable"
            return ERROR, f"{waits}: {trouble}: {body.reason}"
        case StorageReached():
            return INFO, f"{body.task} waited {body.waited_s:.1f} s for storage: {body.reason}"
        case CheckpointFailed():
            return ERROR, f"checkpoint {body.checkpoint} failed: {body.reason}"
        case DatasetRegistered():
            return INFO, f"dataset {body.dataset}: {body.spec.total_samples} samples"
        case AssignmentChanged():
            return DEBUG, f"{body.moved} parts of {body.dataset} moved: {body.reason}"
        case LimitHit():
            return WARNING, f"limit {body.limit} ({body.value}) reached: {body.reason}"
    return None
