"""Checkpoints: parts written by ranks, committed by one manifest.

A checkpoint belongs to a task and has an id of its own; two checkpoints of the same step are two.
It is committed only when every rank of the generation that began it has acknowledged its part. If a
rank is lost before that, the checkpoint fails and the previous one stays the latest. A committed
checkpoint is deleted only by retention or by request, never while it is the newest or in use.

With a manifest, the last acknowledgement makes the checkpoint `sealing`; the coordinator then
writes the manifest and confirms, which commits it. After a restart, checkpoints that are `sealing`
are tried again: writing the manifest is idempotent. A checkpoint without a manifest (written by the
workers themselves) is committed by the last acknowledgement.
"""

from msgspec import field

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.lifecycle import Lifecycle
from strata.core.state import Cluster
from strata.core.task_state import Checkpoint, CheckpointState, CheckpointType, Part, Task
from strata.errors import NotFound

LIFECYCLE = Lifecycle(
    name="checkpoint",
    initial="in_progress",
    moves=(
        ("in_progress", "sealing", "CheckpointSealed"),
        ("in_progress", "committed", "CheckpointCommitted"),
        ("in_progress", "failed", "CheckpointFailed"),
        ("sealing", "committed", "CheckpointCommitted"),
        ("sealing", "failed", "CheckpointFailed"),
        ("committed", "failed", "CheckpointFailed (found corrupt)"),
        ("committed", "deleted", "CheckpointDeleted"),
    ),
)

MAX_ENDED = 64
"""Failed and deleted checkpoints that stay in the state of a task; the log keeps them all."""


class CheckpointRequested(Fact, frozen=True, kw_only=True):
    """A checkpoint was requested; the workers save at a step that is scheduled next."""

    sentence = "a checkpoint of {task} was requested[: {reason}]"

    task: str
    request: int
    reason: str


class CheckpointStarted(Fact, frozen=True, kw_only=True):
    """The first rank began to save; `expected` ranks must acknowledge."""

    sentence = "{worker} started checkpoint {checkpoint} of step {step}"

    task: str
    checkpoint: str
    step: int
    epoch: int
    attempt: int
    generation: int
    expected: int
    worker: str
    path: str
    type: CheckpointType = "full"
    manifest: bool = True
    metadata: dict[str, str] = field(default_factory=dict)
    final: bool = False


class CheckpointPartAcked(Fact, frozen=True, kw_only=True):
    """A rank's part is durable: `size_bytes` were written, `kept_bytes` were in storage already.

    Rank 0's has the `metrics` that the script had logged last.
    """

    sentence = "rank {rank} ({worker}) stored its part of checkpoint {checkpoint}[, {size_bytes}]"

    task: str
    checkpoint: str
    worker: str
    rank: int
    path: str
    size_bytes: int
    checksum: str
    kept_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class CheckpointSealed(Fact, frozen=True, kw_only=True):
    """Every part is durable; the manifest comes next."""

    sentence = "every part of checkpoint {checkpoint} is stored[, {size_bytes}]"

    task: str
    checkpoint: str
    size_bytes: int


class CheckpointCommitted(Fact, frozen=True, kw_only=True):
    """The checkpoint was committed: it can be restored, and it is the latest.

    `worker` began it, and `parts` workers wrote `size_bytes`; `kept_bytes` had not changed since an
    earlier checkpoint. It took `took_s` from its start. `metrics` are those of rank 0.
    """

    sentence = (
        "checkpoint {checkpoint} of step {step} was committed[ in {path}][: {size_bytes} "
        "written][, {kept_bytes} unchanged][, {took_s}]"
    )

    task: str
    checkpoint: str
    step: int
    path: str
    size_bytes: int
    worker: str = ""
    parts: int = 0
    kept_bytes: int = 0
    took_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


class CheckpointCopied(Fact, frozen=True, kw_only=True):
    """A committed checkpoint was copied to another storage."""

    sentence = "checkpoint {checkpoint} was copied to {path}"

    task: str
    checkpoint: str
    path: str


class CheckpointFailed(Fact, frozen=True, kw_only=True):
    """The checkpoint failed, or was found to be damaged after it was committed."""

    sentence = "checkpoint {checkpoint} failed[ (missing ranks: {missing})][: {reason}]"

    task: str
    checkpoint: str
    step: int
    reason: str
    missing: list[int] = field(default_factory=list)
    damaged: bool = False


class CheckpointDeleted(Fact, frozen=True, kw_only=True):
    """The checkpoint was deleted; its files are removed next."""

    sentence = "checkpoint {checkpoint} was deleted[: {reason}]"

    task: str
    checkpoint: str
    reason: str


@applies(CheckpointRequested)
def _requested(state: Cluster, fact: CheckpointRequested, event: Event) -> None:
    state.tasks[fact.task].checkpoint_requests = fact.request


@applies(CheckpointStarted)
def _started(state: Cluster, fact: CheckpointStarted, event: Event) -> None:
    task = state.tasks[fact.task]
    task.last_checkpoint += 1
    task.checkpoints[fact.checkpoint] = Checkpoint(
        id=fact.checkpoint,
        step=fact.step,
        epoch=fact.epoch,
        attempt=fact.attempt,
        generation=fact.generation,
        expected=fact.expected,
        author=fact.worker,
        path=fact.path,
        type=fact.type,
        manifest=fact.manifest,
        created_ns=event.wall_ns,
        metadata=fact.metadata,
        final=fact.final,
    )


@applies(CheckpointPartAcked)
def _part_acked(state: Cluster, fact: CheckpointPartAcked, event: Event) -> None:
    checkpoint = state.tasks[fact.task].checkpoints[fact.checkpoint]
    checkpoint.parts[fact.rank] = Part(
        worker=fact.worker,
        path=fact.path,
        size_bytes=fact.size_bytes,
        checksum=fact.checksum,
        kept_bytes=fact.kept_bytes,
    )
    if fact.rank == 0:
        checkpoint.metrics = fact.metrics


@applies(CheckpointSealed)
def _sealed(state: Cluster, fact: CheckpointSealed, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].state = "sealing"


@applies(CheckpointCommitted)
def _committed(state: Cluster, fact: CheckpointCommitted, event: Event) -> None:
    task = state.tasks[fact.task]
    checkpoint = task.checkpoints[fact.checkpoint]
    checkpoint.state = "committed"
    checkpoint.path = fact.path
    task.missed_saves = 0
    task.save_failure = ""
    task.saved += 1
    if task.save_at and fact.step >= task.save_at:
        task.fulfilled_request = task.scheduled_request


@applies(CheckpointCopied)
def _copied(state: Cluster, fact: CheckpointCopied, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].copies.append(fact.path)


@applies(CheckpointFailed)
def _failed(state: Cluster, fact: CheckpointFailed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.checkpoints[fact.checkpoint].damaged = fact.damaged
    _end(task, fact.checkpoint, "failed", fact.reason)


@applies(CheckpointDeleted)
def _deleted(state: Cluster, fact: CheckpointDeleted, event: Event) -> None:
    task = state.tasks[fact.task]
    # Parts of deleted checkpoints are not needed any more, and would be most of the state.
    task.checkpoints[fact.checkpoint].parts = {}
    _end(task, fact.checkpoint, "deleted", fact.reason)


def _end(task: Task, checkpoint_id: str, state: CheckpointState, reason: str) -> None:
    checkpoint = task.checkpoints[checkpoint_id]
    checkpoint.state = state
    checkpoint.reason = reason
    ended = [c.id for c in task.checkpoints.values() if c.state in ("failed", "deleted")]
    for oldest in ended[: max(len(ended) - MAX_ENDED, 0)]:
        del task.checkpoints[oldest]


def fail_unfinished(d: Decision, task: Task, reason: str, cause: str) -> None:
    """Fail the checkpoints in progress after a rank was lost."""
    for checkpoint in list(task.checkpoints.values()):
        if checkpoint.state == "in_progress" and checkpoint.generation < task.generation:
            record_failure(d, task, checkpoint, reason, cause)


def fail_without(d: Decision, task: Task, rank: int, reason: str, cause: str) -> None:
    """Fail the checkpoints in progress that lack the part of a rank that has finished."""
    for checkpoint in list(task.checkpoints.values()):
        if checkpoint.state == "in_progress" and rank not in checkpoint.parts:
            record_failure(d, task, checkpoint, reason, cause)


def record_failure(
    d: Decision,
    task: Task,
    checkpoint: Checkpoint,
    reason: str,
    cause: str | tuple[str, ...],
) -> str:
    """Record that a checkpoint failed, and which ranks' parts were missing."""
    missing = [rank for rank in range(checkpoint.expected) if rank not in checkpoint.parts]
    damaged = checkpoint.state == "committed"
    failed = CheckpointFailed(
        task=task.id,
        checkpoint=checkpoint.id,
        step=checkpoint.step,
        reason=reason,
        missing=missing,
        damaged=damaged,
    )
    return d.record(failed, cause)


def find(task: Task, checkpoint: str) -> Checkpoint:
    """The checkpoint of that id."""
    found = task.checkpoints.get(checkpoint)
    if found is None:
        raise NotFound(
            f"task {task.id!r} has no checkpoint {checkpoint!r}",
            hint="strata checkpoints ls shows those that exist",
        )
    return found


def committed_newest_first(task: Task) -> list[Checkpoint]:
    """The committed checkpoints, highest step first; of one step, the one begun last first."""
    real = [c for c in reversed(task.checkpoints.values()) if c.state == "committed"]
    return sorted(real, key=lambda c: c.step, reverse=True)
