"""Rules of a checkpoint in progress: begin, acknowledge each part, commit or fail."""

from msgspec import field

from strata.core.checkpoints.checkpoint_lifecycle import (
    LIFECYCLE,
    CheckpointCommitted,
    CheckpointCopied,
    CheckpointPartAcked,
    CheckpointSealed,
    CheckpointStarted,
    committed_newest_first,
    find,
    record_failure,
)
from strata.core.checkpoints.checkpoint_retention import record_excess, retain
from strata.core.checkpoints.save_schedule import require_unscheduled
from strata.core.decision import Decision, decides
from strata.core.events import Command
from strata.core.generations.recovery import commit_steps, recover_if_ready
from strata.core.limits import (
    require_entries,
    require_metrics,
    require_name,
    require_text,
    shortened,
)
from strata.core.task_state import Checkpoint, CheckpointType, Task
from strata.core.workers.fencing import SharedCommand, WorkerCommand
from strata.errors import InvalidArgument, NotAllowedNow


class BeginCheckpoint(WorkerCommand, frozen=True):
    generation: int
    step: int
    epoch: int = 0
    path: str = ""
    checkpoint: str = ""
    type: CheckpointType = "full"
    manifest: bool = True
    metadata: dict[str, str] = field(default_factory=dict)
    final: bool = False


class AckPart(WorkerCommand, frozen=True):
    checkpoint: str
    path: str
    size_bytes: int
    checksum: str = ""
    kept_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class ConfirmCheckpoint(Command, frozen=True):
    task: str
    checkpoint: str
    path: str


class NoteCopy(Command, frozen=True):
    task: str
    checkpoint: str
    path: str


class FailCheckpoint(SharedCommand, frozen=True):
    """`damaged`: the bytes of a committed checkpoint were read and did not match their
    checksums."""

    task: str
    checkpoint: str
    reason: str
    damaged: bool = False


@decides(BeginCheckpoint)
def begin(d: Decision, c: BeginCheckpoint) -> Checkpoint:
    """Open a checkpoint, or join the one that another rank opened at the same step."""
    worker = d.state.workers[c.worker]
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
    if task.syncs and c.manifest:
        _require_completable(task, c)
    checkpoint = c.checkpoint or _new_id(task, c.step)
    if checkpoint in task.checkpoints:
        raise InvalidArgument(
            f"checkpoint {checkpoint!r} of task {task.id!r} exists already",
            hint="choose another id, or leave it out to get a new one",
        )
    started = CheckpointStarted(
        task=task.id,
        checkpoint=checkpoint,
        step=c.step,
        epoch=c.epoch,
        attempt=task.attempt,
        generation=task.generation,
        expected=len(task.members),
        worker=c.worker,
        path=c.path,
        type=c.type,
        manifest=c.manifest,
        metadata=c.metadata,
        final=c.final,
    )
    cause = d.record(started, c.cause)
    opened = task.checkpoints[checkpoint]
    if c.final:
        _fail_uneven(d, task, opened, cause)
    return opened


def _trains(task: Task) -> bool:
    """Whether the state that is saved now belongs to an agreed lineage."""
    return not task.syncs or task.phase == "running"


def _require_completable(task: Task, c: BeginCheckpoint) -> None:
    """Refuse a checkpoint that can only fail, because a member will not save this step."""
    gone = [member for member in task.members if member in task.finished]
    if gone:
        raise NotAllowedNow(
            f"step {c.step} of task {task.id!r} cannot be saved: worker {gone[0]!r} has finished "
            "and writes no part",
            hint="end every worker at the same step",
        )
    if not c.final:
        require_unscheduled(task, c.step)


def _fail_uneven(d: Decision, task: Task, opened: Checkpoint, cause: str) -> None:
    """Fail the final checkpoints of workers that ended at different steps: none can complete."""
    rank = d.state.workers[opened.author].rank
    others = [
        each
        for each in task.checkpoints.values()
        if (each.state, each.generation, each.final) == ("in_progress", task.generation, True)
        and each.step != opened.step
        and rank not in each.parts
    ]
    for other in others:
        reason = (
            f"the workers ended at different steps: {other.author} at step {other.step}, "
            f"{opened.author} at step {opened.step}"
        )
        record_failure(d, task, other, reason, cause)
        if opened.state == "in_progress":
            record_failure(d, task, opened, reason, cause)


def _new_id(task: Task, step: int) -> str:
    number = task.last_checkpoint + 1
    while f"step-{step:08d}-{number}" in task.checkpoints:
        number += 1
    return f"step-{step:08d}-{number}"


def _open_at(task: Task, c: BeginCheckpoint) -> Checkpoint | None:
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
    """Record one rank's part; the last one seals or commits. Repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    require_text(path=c.path, checksum=c.checksum)
    require_metrics(c.metrics)
    checkpoint = find(task, c.checkpoint)
    if worker.rank < 0:
        raise NotAllowedNow(
            f"worker {c.worker!r} is not a member of generation {task.generation} of task "
            f"{task.id!r} and writes no part of checkpoint {c.checkpoint!r}",
            hint="drop this part; a spare saves once it has a rank",
        )
    part = checkpoint.parts.get(worker.rank)
    if part is not None and part.worker == c.worker:
        return checkpoint
    if checkpoint.state != "in_progress" or checkpoint.generation != task.generation:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is {checkpoint.state} and takes no more parts"
            + (f": {checkpoint.reason}" if checkpoint.reason else ""),
            hint="drop this part and save at a later step",
        )
    if c.size_bytes < 0 or c.kept_bytes < 0:
        raise InvalidArgument(
            f"a part of {c.size_bytes} bytes with {c.kept_bytes} kept", hint="give 0 or more"
        )
    acked = CheckpointPartAcked(
        task=task.id,
        checkpoint=c.checkpoint,
        worker=c.worker,
        rank=worker.rank,
        path=c.path,
        size_bytes=c.size_bytes,
        checksum=c.checksum,
        kept_bytes=c.kept_bytes,
        metrics=c.metrics if worker.rank == 0 else {},
    )
    cause = d.record(acked, c.cause)
    if len(checkpoint.parts) == checkpoint.expected:
        if checkpoint.manifest:
            d.record(
                CheckpointSealed(
                    task=task.id, checkpoint=checkpoint.id, size_bytes=checkpoint.size_bytes
                ),
                cause,
            )
        else:
            commit(d, task, checkpoint, checkpoint.path or c.path, cause)
    return checkpoint


@decides(ConfirmCheckpoint)
def confirm(d: Decision, c: ConfirmCheckpoint) -> Checkpoint:
    """Commit a checkpoint whose manifest is written."""
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
    d: Decision, task: Task, checkpoint: Checkpoint, path: str, cause: str | tuple[str, ...]
) -> None:
    """Commit a complete checkpoint, and apply retention to the older ones."""
    kept_before = len(committed_newest_first(task))
    committed = d.record(
        CheckpointCommitted(
            task=task.id,
            checkpoint=checkpoint.id,
            step=checkpoint.step,
            path=path,
            size_bytes=checkpoint.size_bytes,
            worker=checkpoint.author,
            parts=len(checkpoint.parts),
            kept_bytes=checkpoint.kept_bytes,
            took_s=max(d.now.wall_ns - checkpoint.created_ns, 0) / 1e9,
            metrics=checkpoint.metrics,
        ),
        cause,
    )
    if checkpoint.attempt == task.attempt:
        commit_steps(d, task, checkpoint.step, "every rank saved at this step", committed)
    retain(d, task, committed)
    record_excess(d, task, kept_before, committed)
    recover_if_ready(d, task, committed)


@decides(NoteCopy)
def note_copy(d: Decision, c: NoteCopy) -> Checkpoint:
    """Record that a committed checkpoint was copied elsewhere; repeating changes nothing."""
    checkpoint = find(d.state.task(c.task), c.checkpoint)
    if checkpoint.state == "committed" and c.path not in checkpoint.copies:
        d.record(CheckpointCopied(task=c.task, checkpoint=c.checkpoint, path=c.path), c.cause)
    return checkpoint


@decides(FailCheckpoint)
def fail(d: Decision, c: FailCheckpoint) -> None:
    """Fail a checkpoint; a committed one only if it was found to be damaged."""
    task = d.state.task(c.task)
    checkpoint = find(task, c.checkpoint)
    if checkpoint.state == "committed" and not c.damaged:
        raise NotAllowedNow(
            f"checkpoint {c.checkpoint!r} is committed",
            hint="it fails only if its bytes were read and do not match their checksums",
        )
    if checkpoint.state != "failed":
        LIFECYCLE.require(c.checkpoint, checkpoint.state, "failed")
        recover_if_ready(d, task, record_failure(d, task, checkpoint, shortened(c.reason), c.cause))
