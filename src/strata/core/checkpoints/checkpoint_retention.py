"""Retention: delete the checkpoints that have no reason to be kept (`keep_reasons`).

It runs after each commit, after a pin was released, and after the script chose another retention.
A user may delete any checkpoint except the newest, one that is being restored and a pinned one.
"""

from strata.core.checkpoints.checkpoint_lifecycle import (
    LIFECYCLE,
    CheckpointDeleted,
    committed_newest_first,
    find,
)
from strata.core.checkpoints.keep_reasons import (
    is_restored,
    keep_reasons,
    pin_reasons,
    summary,
)
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.generation_members import restart_generation
from strata.core.limits import LimitHit, require_name
from strata.core.state import Cluster
from strata.core.task_spec import Retention, RetentionRequest
from strata.core.task_state import Checkpoint, Task
from strata.errors import NotAllowedNow


class CheckpointPinned(Fact, frozen=True, kw_only=True):
    """A checkpoint is protected from deletion until its holder releases it.

    The holder is `user`, or the id of a task that needs the checkpoint.
    """

    sentence = "{holder} pinned checkpoint {checkpoint}[: {note}]"

    task: str
    checkpoint: str
    holder: str
    note: str = ""


class CheckpointReleased(Fact, frozen=True, kw_only=True):
    """A holder released the checkpoint: it is deleted unless another rule keeps it."""

    sentence = "{holder} released checkpoint {checkpoint}"

    task: str
    checkpoint: str
    holder: str


class RetentionChanged(Fact, frozen=True, kw_only=True):
    """The script of a worker chose which checkpoints are kept; this overrides the task's spec."""

    sentence = "the script of {worker} chose which checkpoints of {task} are kept: {keeps}"

    task: str
    worker: str
    retention: Retention
    keeps: str


class DeleteCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    reason: str = "asked for"


class PinCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    holder: str
    note: str = ""


class ReleaseCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    holder: str


@applies(CheckpointPinned)
def _pinned(state: Cluster, fact: CheckpointPinned, event: Event) -> None:
    checkpoint = state.tasks[fact.task].checkpoints[fact.checkpoint]
    if fact.holder not in checkpoint.pins:
        checkpoint.pins.append(fact.holder)
    checkpoint.pin_notes.pop(fact.holder, None)
    if fact.note:
        checkpoint.pin_notes[fact.holder] = fact.note


@applies(CheckpointReleased)
def _released(state: Cluster, fact: CheckpointReleased, event: Event) -> None:
    checkpoint = state.tasks[fact.task].checkpoints[fact.checkpoint]
    checkpoint.pins.remove(fact.holder)
    checkpoint.pin_notes.pop(fact.holder, None)


@applies(RetentionChanged)
def _changed(state: Cluster, fact: RetentionChanged, event: Event) -> None:
    state.tasks[fact.task].script_retention = fact.retention


def retain(d: Decision, task: Task, cause: str) -> None:
    """Delete the committed checkpoints that have no reason to be kept, the oldest first."""
    for checkpoint, reasons in reversed(keep_reasons(task).items()):
        if not reasons:
            reason = f"the task keeps {summary(task.retention)}"
            record_deletion(d, task, find(task, checkpoint), reason, cause)


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


def record_excess(d: Decision, task: Task, before: int, cause: str) -> None:
    """Record that a task has begun to keep more checkpoints than the limit."""
    limit, kept = d.state.rules.max_checkpoints, len(committed_newest_first(task))
    if before <= limit < kept:
        reason = (
            f"task {task.id} keeps {kept:,} checkpoints, and more with every save: use a larger "
            "keep_every, or delete some with `strata checkpoints rm`"
        )
        d.record(LimitHit(limit="max_checkpoints", value=limit, reason=reason), cause)


def follow_script(
    d: Decision, task: Task, worker: str, asked: RetentionRequest, cause: str
) -> None:
    """Change the task's retention to what the script of a worker asks for."""
    chosen = asked.over(task.retention)
    if chosen != task.retention:
        changed = RetentionChanged(
            task=task.id, worker=worker, retention=chosen, keeps=summary(chosen)
        )
        retain(d, task, d.record(changed, cause))


def _waited_for(task: Task, checkpoint: Checkpoint) -> bool:
    """Whether members wait for the storage of the checkpoint."""
    waiting = task.storage_wait is not None and bool(task.storage_wait.workers)
    chosen = task.recovery is not None and task.recovery.checkpoint == checkpoint.id
    return waiting and chosen and task.phase == "running" and not task.ended


@decides(DeleteCheckpoint)
def delete(d: Decision, c: DeleteCheckpoint) -> None:
    """Delete a committed checkpoint, unless it is the newest, pinned or being restored.

    If members wait for its storage, they choose another source.
    """
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    LIFECYCLE.require(c.checkpoint, checkpoint.state, "deleted")
    if checkpoint.pins:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {', '.join(pin_reasons(checkpoint))}",
            hint=f"release it first: strata checkpoints unpin {c.checkpoint}",
        )
    if _waited_for(task, checkpoint):
        deleted = record_deletion(d, task, checkpoint, c.reason, c.cause)
        restart_generation(d, task, f"checkpoint {c.checkpoint} was deleted: {c.reason}", deleted)
        return
    if checkpoint is committed_newest_first(task)[0]:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is the newest of task {task.id!r}",
            hint="save another first; a task never loses its newest checkpoint",
        )
    if is_restored(task, checkpoint):
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is being restored by task {task.id!r}",
            hint="wait until the task has trained a step more",
        )
    record_deletion(d, task, checkpoint, c.reason, c.cause)


@decides(PinCheckpoint)
def pin(d: Decision, c: PinCheckpoint) -> Checkpoint:
    """Protect a committed checkpoint until its holder releases it; a new note replaces the old."""
    require_name("holder", c.holder)
    if c.note:
        require_name("note", c.note)
    checkpoint = find(d.state.task(c.task), c.checkpoint)
    if checkpoint.state != "committed":
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {checkpoint.state}", hint="choose a committed one"
        )
    held = c.holder in checkpoint.pins
    if not held or checkpoint.pin_notes.get(c.holder, "") != c.note:
        pinned = CheckpointPinned(
            task=c.task, checkpoint=c.checkpoint, holder=c.holder, note=c.note
        )
        d.record(pinned, c.cause)
    return checkpoint


@decides(ReleaseCheckpoint)
def release(d: Decision, c: ReleaseCheckpoint) -> None:
    """Release a checkpoint and apply retention; harmless if the holder has not pinned it."""
    task = d.state.task(c.task)
    checkpoint = task.checkpoints.get(c.checkpoint)
    if checkpoint is not None and c.holder in checkpoint.pins:
        released = CheckpointReleased(task=c.task, checkpoint=c.checkpoint, holder=c.holder)
        retain(d, task, d.record(released, c.cause))
