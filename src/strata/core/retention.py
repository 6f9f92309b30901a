"""Which checkpoints stay: the newest ones, and whatever somebody is reading."""

from typing import TYPE_CHECKING

from strata.core.checkpoints import (
    LIFECYCLE,
    Checkpoint,
    CheckpointDeleted,
    committed_newest_first,
    find,
)
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.generations import begin_again
from strata.errors import NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class CheckpointPinned(Fact, frozen=True):
    """Somebody reads the checkpoint; it stays until released."""

    task: str
    checkpoint: str
    holder: str


class CheckpointReleased(Fact, frozen=True):
    """A reader is done."""

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
def _pinned(state: "Cluster", fact: CheckpointPinned, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].pins.append(fact.holder)


@applies(CheckpointReleased)
def _released(state: "Cluster", fact: CheckpointReleased, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].pins.remove(fact.holder)


def retain(d: Decision, task: "Task", cause: str) -> None:
    """Deletes the oldest committed checkpoints beyond the task's `keep_count`."""
    spare = committed_newest_first(task)[max(task.spec.keep_count, 1) :]
    for checkpoint in reversed(spare):
        if not in_use(task, checkpoint):
            reason = f"{task.spec.keep_count} newer ones are kept"
            d.record(CheckpointDeleted(task.id, checkpoint.id, reason), cause)


def in_use(task: "Task", checkpoint: Checkpoint) -> bool:
    """Whether somebody reads it: a holder, or a generation that has not moved on from it."""
    source = task.recovery
    restoring = (
        source is not None
        and source.checkpoint == checkpoint.id
        and task.committed <= checkpoint.step
    )
    return bool(checkpoint.pins) or restoring


def _waited_for(task: "Task", checkpoint: Checkpoint) -> bool:
    """Whether members cannot read the checkpoint and wait until they can."""
    waiting = task.storage_wait is not None and bool(task.storage_wait.workers)
    chosen = task.recovery is not None and task.recovery.checkpoint == checkpoint.id
    return waiting and chosen and task.phase == "running" and not task.ended


@decides(DeleteCheckpoint)
def delete(d: Decision, c: DeleteCheckpoint) -> None:
    """Delete a committed checkpoint, unless it is the newest or in use.

    One whose storage the task waits for is given up: the members choose another source.
    """
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    LIFECYCLE.require(c.checkpoint, checkpoint.state, "deleted")
    if _waited_for(task, checkpoint):
        deleted = d.record(CheckpointDeleted(task.id, c.checkpoint, c.reason), c.cause)
        begin_again(d, task, f"checkpoint {c.checkpoint} was given up: {c.reason}", deleted)
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
    d.record(CheckpointDeleted(task.id, c.checkpoint, c.reason), c.cause)


@decides(PinCheckpoint)
def pin(d: Decision, c: PinCheckpoint) -> Checkpoint:
    """Protects a committed checkpoint while somebody reads it."""
    checkpoint = find(d.state.task(c.task), c.checkpoint)
    if checkpoint.state != "committed":
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {checkpoint.state}", hint="choose a committed one"
        )
    if c.holder not in checkpoint.pins:
        d.record(CheckpointPinned(c.task, c.checkpoint, c.holder), c.cause)
    return checkpoint


def release_all(d: Decision, task: "Task", holder: str, cause: str) -> None:
    """A reader is gone, and with it its protection."""
    for checkpoint in list(task.checkpoints.values()):
        if holder in checkpoint.pins:
            d.record(CheckpointReleased(task.id, checkpoint.id, holder), cause)


@decides(ReleaseCheckpoint)
def release(d: Decision, c: ReleaseCheckpoint) -> None:
    """Ends a reader's protection; harmless when there is none."""
    checkpoint = d.state.task(c.task).checkpoints.get(c.checkpoint)
    if checkpoint is not None and c.holder in checkpoint.pins:
        d.record(CheckpointReleased(c.task, c.checkpoint, c.holder), c.cause)
