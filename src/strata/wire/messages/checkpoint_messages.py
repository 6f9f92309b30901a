"""Conversion of messages about checkpoints and recovery."""

from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, FailCheckpoint
from strata.core.checkpoints.save_schedule import PostponeCheckpoint, RequestCheckpoint
from strata.core.generations.recovery_failures import RefuseRecovery
from strata.core.generations.storage_waits import ReportStorage
from strata.core.task_state import Checkpoint, CheckpointType
from strata.core.workers.heartbeats import Saving
from strata.errors import InvalidArgument
from strata.wire.v1 import coordinator_pb2 as pb

TYPES: dict[int, CheckpointType] = {
    pb.CHECKPOINT_TYPE_UNSPECIFIED: "full",
    pb.CHECKPOINT_TYPE_FULL: "full",
    pb.CHECKPOINT_TYPE_INCREMENTAL: "incremental",
    pb.CHECKPOINT_TYPE_OPTIMIZER_ONLY: "optimizer_only",
    pb.CHECKPOINT_TYPE_MODEL_ONLY: "model_only",
}
BODIES = (
    "begin_checkpoint",
    "ack_part",
    "fail_part",
    "request_save",
    "postpone_save",
    "refuse_recovery",
    "report_storage",
)
"""The messages that `command` converts."""

STATUSES = {"committed": "completed", "failed": "failed", "deleted": "deleted"}


def message(checkpoint: Checkpoint) -> pb.Checkpoint:
    """A checkpoint as a message."""
    return pb.Checkpoint(
        checkpoint_id=checkpoint.id,
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        storage_path=checkpoint.path,
        size_bytes=checkpoint.size_bytes + checkpoint.kept_bytes,
        created_at_ms=checkpoint.created_ns // 1_000_000,
        worker_id=checkpoint.author,
        status=status(checkpoint),
        reason=checkpoint.reason,
    )


def status(checkpoint: Checkpoint) -> str:
    """The status of a checkpoint, as in the REST API."""
    return STATUSES.get(checkpoint.state, "in_progress")


def type_of(number: int) -> CheckpointType:
    """The type of a checkpoint; raises if the number is unknown."""
    if number not in TYPES:
        raise InvalidArgument(f"unknown checkpoint type {number}", hint="omit the type for full")
    return TYPES[number]


def command(
    task: str, worker: str, incarnation: int, message: pb.WorkerMessage
) -> (
    BeginCheckpoint
    | AckPart
    | FailCheckpoint
    | RequestCheckpoint
    | PostponeCheckpoint
    | RefuseRecovery
    | ReportStorage
):
    """The command of a session message."""
    kind = message.WhichOneof("body")
    if kind == "begin_checkpoint":
        return _begin(worker, incarnation, message.begin_checkpoint)
    if kind == "ack_part":
        return _part(worker, incarnation, message.ack_part)
    if kind == "fail_part":
        failed = message.fail_part
        reason = f"worker {worker}: {failed.reason}"
        return FailCheckpoint(
            worker=worker,
            incarnation=incarnation,
            task=task,
            checkpoint=failed.checkpoint_id,
            reason=reason,
        )
    if kind == "request_save":
        reason = f"worker {worker}: {message.request_save.reason}"
        return RequestCheckpoint(worker=worker, incarnation=incarnation, task=task, reason=reason)
    if kind == "postpone_save":
        return _postponed(worker, incarnation, message.postpone_save)
    if kind == "report_storage":
        return ReportStorage(
            worker=worker,
            incarnation=incarnation,
            generation=message.report_storage.generation,
            reachable=message.report_storage.reachable,
            reason=message.report_storage.reason,
            missing=message.report_storage.missing,
        )
    assert kind == "refuse_recovery", kind
    return RefuseRecovery(
        worker=worker,
        incarnation=incarnation,
        generation=message.refuse_recovery.generation,
        reason=message.refuse_recovery.reason,
        damaged=message.refuse_recovery.damaged,
    )


def _begin(worker: str, incarnation: int, message: pb.BeginCheckpoint) -> BeginCheckpoint:
    return BeginCheckpoint(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        step=message.step,
        epoch=message.epoch,
        path=message.path,
        type=type_of(message.type),
        metadata=dict(message.metadata),
        final=message.final,
    )


def _postponed(worker: str, incarnation: int, message: pb.PostponeSave) -> PostponeCheckpoint:
    return PostponeCheckpoint(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        step=message.step,
        reason=message.reason,
        busy_s=message.busy_s,
        missed=message.missed,
    )


def _part(worker: str, incarnation: int, message: pb.AckPart) -> AckPart:
    return AckPart(
        worker=worker,
        incarnation=incarnation,
        checkpoint=message.checkpoint_id,
        path=message.path,
        size_bytes=message.size_bytes,
        checksum=message.checksum,
        kept_bytes=message.kept_bytes,
        metrics=dict(message.metrics),
    )


def saving(message: pb.Beat) -> Saving | None:
    """The progress of a checkpoint part in a heartbeat, or None."""
    if not message.HasField("saving"):
        return None
    part = message.saving
    return Saving(part.checkpoint_id, part.written_bytes, part.total_bytes)
