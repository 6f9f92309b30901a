"""Retention: which checkpoints are kept: the newest ones, and those that are being read."""

from strata.core.checkpoints.checkpoint_lifecycle import (
    LIFECYCLE,
    CheckpointDeleted,
    committed_newest_first,
    find,
)
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.generation_members import restart_generation
from strata.core.state import Cluster
from strata.core.task_state import Checkpoint, Task
from strata.errors import NotAllowedNow


class CheckpointPinned(Fact, frozen=True, kw_only=True):
    """A reader protects the checkpoint until it releases it."""

    sentence = "{holder} started to read checkpoint {checkpoint}"

    task: str
    checkpoint: str
    holder: str


class CheckpointReleased(Fact, frozen=True, kw_only=True):
    """A reader released the checkpoint."""

    sentence = "{holder} no longer needs checkpoint {checkpoint}"

    task: str
    checkpoint: str
    holder: str


class DeleteCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    reason: str = "asked for"


class PinCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    holder: str


class ReleaseCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    holder: str


@applies(CheckpointPinned)
def _pinned(state: Cluster, fact: CheckpointPinned, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].pins.append(fact.holder)


@applies(CheckpointReleased)
def _released(state: Cluster, fact: CheckpointReleased, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].pins.remove(fact.holder)


def retain(d: Decision, task: Task, cause: str) -> None:
    """Delete the oldest committed checkpoints beyond the task's `keep_count`."""
    spare = committed_newest_first(task)[max(task.spec.keep_count, 1) :]
    for checkpoint in reversed(spare):
        if not in_use(task, checkpoint):
            reason = f"{task.spec.keep_count} newer ones are kept"
            record_deletion(d, task, checkpoint, reason, cause)


def record_deletion(
    d: Decision, task: Task, checkpoint: Checkpoint, reason: str, cause: str | tuple[str, ...]
) -> str:
    """Record that a checkpoint was deleted; an inherited one is released in its owner's task."""
    deleted = d.record(
        CheckpointDeleted(task=task.id, checkpoint=checkpoint.id, reason=reason), cause
    )
    if checkpoint.owner in d.state.tasks:
        held = ReleaseCheckpoint(
            task=checkpoint.owner, checkpoint=checkpoint.id, holder=task.id, cause=(deleted,)
        )
        release(d, held)
    return deleted


def in_use(task: Task, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is being read: by a holder, or by a generation that restores it."""
    source = task.recovery
    restoring = (
        source is not None
        and source.checkpoint == checkpoint.id
        and task.committed <= checkpoint.step
    )
    return bool(checkpoint.pins) or restoring


def _waited_for(task: Task, checkpoint: Checkpoint) -> bool:
    """Whether members wait for the storage of the checkpoint."""
    waiting = task.storage_wait is not None and bool(task.storage_wait.workers)
    chosen = task.recovery is not None and task.recovery.checkpoint == checkpoint.id
    return waiting and chosen and task.phase == "running" and not task.ended


@decides(DeleteCheckpoint)
def delete(d: Decision, c: DeleteCheckpoint) -> None:
    """Delete a committed checkpoint, unless it is the newest or in use.

    If members wait for its storage, they choose another source.
    """
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    LIFECYCLE.require(c.checkpoint, checkpoint.state, "deleted")
    if _waited_for(task, checkpoint):
        deleted = record_deletion(d, task, checkpoint, c.reason, c.cause)
        restart_generation(d, task, f"checkpoint {c.checkpoint} was deleted: {c.reason}", deleted)
        return
    if checkpoint is committed_newest_first(task)[0]:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is the newest of task {task.id!r}",
            hint="save another first; a task never loses its newest checkpoint",
        )
    if in_use(task, checkpoint):
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is being read by {', '.join(checkpoint.pins) or task.id}",
            hint="wait until the reader is done",
        )
    record_deletion(d, task, checkpoint, c.reason, c.cause)


@decides(PinCheckpoint)
def pin(d: Decision, c: PinCheckpoint) -> Checkpoint:
    """Protect a committed checkpoint while it is read."""
    checkpoint = find(d.state.task(c.task), c.checkpoint)
    if checkpoint.state != "committed":
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {checkpoint.state}", hint="choose a committed one"
        )
    if c.holder not in checkpoint.pins:
        d.record(CheckpointPinned(task=c.task, checkpoint=c.checkpoint, holder=c.holder), c.cause)
    return checkpoint


def release_all(d: Decision, task: Task, holder: str, cause: str) -> None:
    """Release the checkpoints of a reader that is gone."""
    for checkpoint in list(task.checkpoints.values()):
        if holder in checkpoint.pins:
            d.record(
                CheckpointReleased(task=task.id, checkpoint=checkpoint.id, holder=holder), cause
            )


@decides(ReleaseCheckpoint)
def release(d: Decision, c: ReleaseCheckpoint) -> None:
    """Release a checkpoint; harmless if the holder has not pinned it."""
    checkpoint = d.state.task(c.task).checkpoints.get(c.checkpoint)
    if checkpoint is not None and c.holder in checkpoint.pins:
        d.record(CheckpointReleased(task=c.task, checkpoint=c.checkpoint, holder=c.holder), c.cause)
