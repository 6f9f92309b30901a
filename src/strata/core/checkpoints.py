"""Checkpoints: parts written by ranks, made real by one manifest.

The promise. A checkpoint belongs to a task and has an id of its own; two at the same step are
two. It is committed only when every rank of the generation that began it has acknowledged its
part; if one of them is lost before, it fails, and the one before stays the latest. A committed
checkpoint is deleted only by retention or by request, never while it is the newest or in use.

How it ends. With a manifest, the last acknowledgement makes the checkpoint `sealing`; the shell
writes the manifest and confirms, which commits it. After a restart whatever is `sealing` is tried
again: writing the manifest is idempotent. A checkpoint without a manifest (authored by the
workers themselves) is committed by the last acknowledgement.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.core.lifecycle import Lifecycle
from strata.errors import NotFound

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

CheckpointState: TypeAlias = Literal["in_progress", "sealing", "committed", "failed", "deleted"]
CheckpointType: TypeAlias = Literal["full", "incremental", "optimizer_only", "model_only"]

LIFECYCLE = Lifecycle(
    "checkpoint",
    "in_progress",
    (
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
"""Failed and deleted checkpoints that a task remembers; the log keeps them all."""


class Part(Struct, gc=False):
    """What one rank wrote; `kept_bytes` of its share lay in an earlier checkpoint already."""

    worker: str
    path: str
    size_bytes: int
    checksum: str
    kept_bytes: int = 0


class Checkpoint(Struct, gc=False):
    """A checkpoint of a task; `parts` by rank. `copies` is where else it lies.

    A `final` one is of the state in which training ended.
    """

    id: str
    step: int
    epoch: int
    attempt: int
    generation: int
    expected: int
    author: str
    path: str
    type: CheckpointType
    manifest: bool
    created_ns: int
    state: CheckpointState = "in_progress"
    reason: str = ""
    parts: dict[int, Part] = field(default_factory=dict)
    pins: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    damaged: bool = False
    copies: list[str] = field(default_factory=list)
    final: bool = False

    @property
    def size_bytes(self) -> int:
        """What was written and has been acknowledged so far."""
        return sum(part.size_bytes for part in self.parts.values())

    @property
    def kept_bytes(self) -> int:
        """What had not changed since an earlier checkpoint, so was not written again."""
        return sum(part.kept_bytes for part in self.parts.values())


class CheckpointRequested(Fact, frozen=True):
    """Somebody wants a checkpoint; the workers save at their next step."""

    task: str
    request: int
    reason: str


class CheckpointStarted(Fact, frozen=True):
    """The first rank began to save; `expected` ranks must acknowledge."""

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


class CheckpointPartAcked(Fact, frozen=True):
    """A rank's part is durable: `size_bytes` were written, `kept_bytes` were in storage already."""

    task: str
    checkpoint: str
    worker: str
    rank: int
    path: str
    size_bytes: int
    checksum: str
    kept_bytes: int = 0


class CheckpointSealed(Fact, frozen=True):
    """Every part is durable; the manifest comes next."""

    task: str
    checkpoint: str
    size_bytes: int


class CheckpointCommitted(Fact, frozen=True):
    """The checkpoint is real: it may be restored, and it is the latest.

    `worker` began it, and `parts` workers wrote `size_bytes`; `kept_bytes` had not changed since an
    earlier checkpoint. It took `took_s` from its begin.
    """

    task: str
    checkpoint: str
    step: int
    path: str
    size_bytes: int
    worker: str = ""
    parts: int = 0
    kept_bytes: int = 0
    took_s: float = 0.0


class CheckpointCopied(Fact, frozen=True):
    """A committed checkpoint lies in another storage as well."""

    task: str
    checkpoint: str
    path: str


class CheckpointFailed(Fact, frozen=True):
    """The checkpoint will never be real, or was found to be damaged after it had been."""

    task: str
    checkpoint: str
    step: int
    reason: str
    missing: list[int] = field(default_factory=list)
    damaged: bool = False


class CheckpointDeleted(Fact, frozen=True):
    """The checkpoint is no longer real; its files may go."""

    task: str
    checkpoint: str
    reason: str


@applies(CheckpointRequested)
def _requested(state: "Cluster", fact: CheckpointRequested, event: Event) -> None:
    state.tasks[fact.task].checkpoint_requests = fact.request


@applies(CheckpointStarted)
def _started(state: "Cluster", fact: CheckpointStarted, event: Event) -> None:
    task = state.tasks[fact.task]
    task.last_checkpoint += 1
    task.checkpoints[fact.checkpoint] = Checkpoint(
        fact.checkpoint,
        fact.step,
        fact.epoch,
        fact.attempt,
        fact.generation,
        fact.expected,
        fact.worker,
        fact.path,
        fact.type,
        fact.manifest,
        event.wall_ns,
        metadata=fact.metadata,
        final=fact.final,
    )


@applies(CheckpointPartAcked)
def _part_acked(state: "Cluster", fact: CheckpointPartAcked, event: Event) -> None:
    checkpoint = state.tasks[fact.task].checkpoints[fact.checkpoint]
    checkpoint.parts[fact.rank] = Part(
        worker=fact.worker,
        path=fact.path,
        size_bytes=fact.size_bytes,
        checksum=fact.checksum,
        kept_bytes=fact.kept_bytes,
    )


@applies(CheckpointSealed)
def _sealed(state: "Cluster", fact: CheckpointSealed, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].state = "sealing"


@applies(CheckpointCommitted)
def _committed(state: "Cluster", fact: CheckpointCommitted, event: Event) -> None:
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
def _copied(state: "Cluster", fact: CheckpointCopied, event: Event) -> None:
    state.tasks[fact.task].checkpoints[fact.checkpoint].copies.append(fact.path)


@applies(CheckpointFailed)
def _failed(state: "Cluster", fact: CheckpointFailed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.checkpoints[fact.checkpoint].damaged = fact.damaged
    _end(task, fact.checkpoint, "failed", fact.reason)


@applies(CheckpointDeleted)
def _deleted(state: "Cluster", fact: CheckpointDeleted, event: Event) -> None:
    task = state.tasks[fact.task]
    # Nobody asks for them any more, and of all deleted ones they would be most of the state.
    task.checkpoints[fact.checkpoint].parts = {}
    _end(task, fact.checkpoint, "deleted", fact.reason)


def _end(task: "Task", checkpoint_id: str, state: CheckpointState, reason: str) -> None:
    checkpoint = task.checkpoints[checkpoint_id]
    checkpoint.state = state
    checkpoint.reason = reason
    ended = [c.id for c in task.checkpoints.values() if c.state in ("failed", "deleted")]
    for oldest in ended[: max(len(ended) - MAX_ENDED, 0)]:
        del task.checkpoints[oldest]


def fail_unfinished(d: Decision, task: "Task", reason: str, cause: str) -> None:
    """After a rank is lost: what waits for its part never completes."""
    for checkpoint in list(task.checkpoints.values()):
        if checkpoint.state == "in_progress" and checkpoint.generation < task.generation:
            record_failure(d, task, checkpoint, reason, cause)


def fail_without(d: Decision, task: "Task", rank: int, reason: str, cause: str) -> None:
    """After a rank has finished: what still waits for its part never completes."""
    for checkpoint in list(task.checkpoints.values()):
        if checkpoint.state == "in_progress" and rank not in checkpoint.parts:
            record_failure(d, task, checkpoint, reason, cause)


def record_failure(
    d: Decision,
    task: "Task",
    checkpoint: Checkpoint,
    reason: str,
    cause: str | tuple[str, ...],
) -> str:
    """Says that a checkpoint failed, and which ranks' parts were missing."""
    missing = [rank for rank in range(checkpoint.expected) if rank not in checkpoint.parts]
    damaged = checkpoint.state == "committed"
    failed = CheckpointFailed(task.id, checkpoint.id, checkpoint.step, reason, missing, damaged)
    return d.record(failed, cause)


def find(task: "Task", checkpoint: str) -> Checkpoint:
    """The checkpoint of that id."""
    found = task.checkpoints.get(checkpoint)
    if found is None:
        raise NotFound(
            f"task {task.id!r} has no checkpoint {checkpoint!r}",
            hint="strata checkpoints ls shows those that exist",
        )
    return found


def committed_newest_first(task: "Task") -> list[Checkpoint]:
    """What can be restored, best first: the highest step; of one step, the one begun last."""
    real = [c for c in reversed(task.checkpoints.values()) if c.state == "committed"]
    return sorted(real, key=lambda c: c.step, reverse=True)
