"""How a checkpoint comes to be: begun, acknowledged by every rank, committed; or failed."""

from typing import TYPE_CHECKING

from msgspec import field

from strata.core.checkpoints import (
    LIFECYCLE,
    Checkpoint,
    CheckpointCommitted,
    CheckpointCopied,
    CheckpointPartAcked,
    CheckpointSealed,
    CheckpointStarted,
    CheckpointType,
    find,
    record_failure,
)
from strata.core.decision import Decision
from strata.core.events import Command, decides
from strata.core.fencing import living
from strata.core.limits import require_entries, require_name, require_text, shortened
from strata.core.recovery import commit_steps, recover_if_ready
from strata.core.retention import retain
from strata.errors import InvalidArgument, NotAllowedNow

if TYPE_CHECKING:
    from strata.core.tasks import Task


class BeginCheckpoint(Command, frozen=True):
    worker: str
    incarnation: int
    generation: int
    step: int
    epoch: int = 0
    path: str = ""
    checkpoint: str = ""
    type: CheckpointType = "full"
    manifest: bool = True
    metadata: dict[str, str] = field(default_factory=dict)


class AckPart(Command, frozen=True):
    worker: str
    incarnation: int
    checkpoint: str
    path: str
    size_bytes: int
    checksum: str = ""


class ConfirmCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    path: str


class NoteCopy(Command, frozen=True):
    task: str
    checkpoint: str
    path: str


class FailCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    reason: str


@decides(BeginCheckpoint)
def begin(d: Decision, c: BeginCheckpoint) -> Checkpoint:
    """Opens a checkpoint, or joins the one that another rank opened at the same step."""
    worker = living(d, c.worker, c.incarnation, c.cause)
    task = d.state.tasks[worker.task]
    if c.checkpoint:
        require_name("checkpoint_id", c.checkpoint)
    require_text(path=c.path)
    require_entries("metadata", c.metadata)
    if c.step < 0:
        raise InvalidArgument(f"step is {c.step}", hint="count the applied steps, from 0")
    if worker.rank < 0 or c.generation != task.generation or not _trains(task):
        raise NotAllowedNow(
            f"worker {c.worker!r} saves for generation {c.generation} of task {task.id!r}, "
            f"which is at generation {task.generation} and {task.phase}",
            hint="enter the present generation, then save",
        )
    found = _open_at(task, c)
    if found is not None:
        return found
    checkpoint = c.checkpoint or _new_id(task, c.step)
    if checkpoint in task.checkpoints:
        raise InvalidArgument(
            f"checkpoint {checkpoint!r} of task {task.id!r} exists already",
            hint="choose another id, or none: one is then made",
        )
    started = CheckpointStarted(
        task.id,
        checkpoint,
        c.step,
        c.epoch,
        task.attempt,
        task.generation,
        len(task.members),
        c.worker,
        c.path,
        c.type,
        c.manifest,
        c.metadata,
    )
    d.record(started, c.cause)
    return task.checkpoints[checkpoint]


def _trains(task: "Task") -> bool:
    """Whether what is saved now belongs to a lineage that has been agreed upon."""
    return not task.spec.syncs or task.phase == "running"


def _new_id(task: "Task", step: int) -> str:
    number = task.last_checkpoint + 1
    while f"step-{step:08d}-{number}" in task.checkpoints:
        number += 1
    return f"step-{step:08d}-{number}"


def _open_at(task: "Task", c: BeginCheckpoint) -> Checkpoint | None:
    for checkpoint in reversed(task.checkpoints.values()):
        if (
            checkpoint.state == "in_progress"
            and checkpoint.generation == c.generation
            and checkpoint.step == c.step
            and c.checkpoint in ("", checkpoint.id)
        ):
            return checkpoint
    return None


@decides(AckPart)
def acknowledge(d: Decision, c: AckPart) -> Checkpoint:
    """Takes in one rank's part; the last one seals or commits. Repeating changes nothing."""
    worker = living(d, c.worker, c.incarnation, c.cause)
    task = d.state.tasks[worker.task]
    require_text(path=c.path, checksum=c.checksum)
    checkpoint = find(task, c.checkpoint)
    part = checkpoint.parts.get(worker.rank)
    if part is not None and part.worker == c.worker:
        return checkpoint
    if checkpoint.state != "in_progress" or checkpoint.generation != task.generation:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {checkpoint.state} and takes no more parts"
            + (f": {checkpoint.reason}" if checkpoint.reason else ""),
            hint="drop this part and save at a later step",
        )
    acked = CheckpointPartAcked(
        task.id, c.checkpoint, c.worker, worker.rank, c.path, c.size_bytes, c.checksum
    )
    cause = d.record(acked, c.cause)
    if len(checkpoint.parts) == checkpoint.expected:
        if checkpoint.manifest:
            d.record(CheckpointSealed(task.id, checkpoint.id, checkpoint.size_bytes), cause)
        else:
            commit(d, task, checkpoint, checkpoint.path or c.path, cause)
    return checkpoint


@decides(ConfirmCheckpoint)
def confirm(d: Decision, c: ConfirmCheckpoint) -> Checkpoint:
    """The manifest is written: the checkpoint is real."""
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    if checkpoint.state == "committed":
        return checkpoint
    if checkpoint.state != "sealing":
        LIFECYCLE.require(c.checkpoint, checkpoint.state, "sealing")
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} lacks parts of {checkpoint.expected} ranks",
            hint="wait for every rank to acknowledge",
        )
    commit(d, task, checkpoint, c.path, c.cause)
    return checkpoint


def commit(
    d: Decision, task: "Task", checkpoint: Checkpoint, path: str, cause: str | tuple[str, ...]
) -> None:
    """Makes a complete checkpoint real, and lets retention look at the older ones."""
    committed = d.record(
        CheckpointCommitted(task.id, checkpoint.id, checkpoint.step, path, checkpoint.size_bytes),
        cause,
    )
    if checkpoint.attempt == task.attempt:
        commit_steps(d, task, checkpoint.step, "every rank saved at this step", committed)
    retain(d, task, committed)
    recover_if_ready(d, task, committed)


@decides(NoteCopy)
def note_copy(d: Decision, c: NoteCopy) -> Checkpoint:
    """A committed checkpoint lies elsewhere, too; saying it again changes nothing."""
    checkpoint = find(d.state.task(c.task), c.checkpoint)
    if checkpoint.state == "committed" and c.path not in checkpoint.copies:
        d.record(CheckpointCopied(c.task, c.checkpoint, c.path), c.cause)
    return checkpoint


@decides(FailCheckpoint)
def fail(d: Decision, c: FailCheckpoint) -> None:
    """Gives a checkpoint up; also a committed one that turned out to be damaged."""
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    if checkpoint.state != "failed":
        LIFECYCLE.require(c.checkpoint, checkpoint.state, "failed")
        recover_if_ready(d, task, record_failure(d, task, checkpoint, shortened(c.reason), c.cause))
