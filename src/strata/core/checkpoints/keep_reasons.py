"""Why each checkpoint of a task is kept. Retention deletes those without a reason.

The rules see only the committed checkpoints that exist, so a checkpoint takes the place of one that
was found damaged or was deleted by request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.limits import require_name
from strata.core.task_spec import Retention
from strata.core.task_state import Checkpoint, Task
from strata.errors import InvalidArgument

USER = "user"
"""The holder of a pin that a user set."""

HIGHEST = "max:"


class Measured(Protocol):
    """A saved state with its step and metrics."""

    @property
    def step(self) -> int: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


Saved = TypeVar("Saved", bound=Measured)


def metric_name(keep_best: str) -> str:
    """The metric of a `keep_best`, such as `accuracy` of `max:accuracy`."""
    return keep_best.removeprefix(HIGHEST)


def require_retention(asked: Retention) -> None:
    """Refuse a retention that cannot be followed."""
    for name, least in (("keep_count", 1), ("keep_every", 0), ("keep_best_count", 1)):
        if getattr(asked, name) < least:
            raise InvalidArgument(
                f"{name} is {getattr(asked, name)}", hint=f"it must be at least {least}"
            )
    if asked.keep_best:
        require_name("metric of keep_best", metric_name(asked.keep_best))


def summary(kept: Retention) -> str:
    """What a retention keeps, in words."""
    return ", ".join(_parts(kept))


def _parts(kept: Retention) -> Iterator[str]:
    yield "the newest" if kept.keep_count == 1 else f"the {kept.keep_count:,} newest"
    if kept.keep_best:
        best = "best" if kept.keep_best_count == 1 else f"{kept.keep_best_count:,} best"
        yield f"the {best} by {kept.keep_best}"
    if kept.keep_every:
        yield f"one every {kept.keep_every:,} steps"


def kept_because(task: Task, checkpoint: Checkpoint) -> list[str]:
    """Why a checkpoint is kept; empty if it is not committed, or if retention may delete it."""
    return keep_reasons(task).get(checkpoint.id, [])


def keep_reasons(task: Task) -> dict[str, list[str]]:
    """Why each committed checkpoint is kept, newest first."""
    kept, newest = task.retention, committed_newest_first(task)
    reasons: dict[str, list[str]] = {checkpoint.id: [] for checkpoint in newest}
    for place, checkpoint in enumerate(newest[: max(kept.keep_count, 1)], 1):
        ordinal = f"{place} of {kept.keep_count:,} newest"
        reasons[checkpoint.id].append("newest" if place == 1 else ordinal)
    metric = metric_name(kept.keep_best)
    for place, checkpoint in enumerate(best(newest, kept), 1):
        ordinal = "best" if kept.keep_best_count == 1 else f"{place} of {kept.keep_best_count} best"
        reasons[checkpoint.id].append(f"{ordinal} {metric} {checkpoint.metrics[metric]:.6g}")
    for checkpoint in first_of_each(newest, kept.keep_every):
        reasons[checkpoint.id].append(f"every {kept.keep_every:,} steps")
    for checkpoint in newest:
        reasons[checkpoint.id] += pin_reasons(checkpoint)
        if is_restored(task, checkpoint):
            reasons[checkpoint.id].append("being restored")
    return reasons


def best(newest: Sequence[Saved], kept: Retention) -> list[Saved]:
    """The best checkpoints of a list with the newest first; of equal ones the lowest step.

    A value may have been logged some steps before the save. So of the checkpoints with the same
    value, the first is the closest to the state that the value describes.
    """
    metric = metric_name(kept.keep_best)
    sign = -1 if kept.keep_best.startswith(HIGHEST) else 1
    measured = [saved for saved in newest if metric in saved.metrics] if metric else []
    measured.sort(key=lambda saved: (sign * saved.metrics[metric], saved.step))
    return measured[: kept.keep_best_count]


def first_of_each(newest: Sequence[Saved], every: int) -> list[Saved]:
    """The first checkpoint at or after each multiple of a number of steps; none for 0."""
    first: dict[int, Saved] = {}
    for checkpoint in newest:
        multiple = checkpoint.step // every if every else 0
        if multiple and (multiple not in first or checkpoint.step < first[multiple].step):
            first[multiple] = checkpoint
    return list(first.values())


def pin_reasons(checkpoint: Checkpoint) -> list[str]:
    """Who protects a checkpoint from deletion, and why."""
    reasons = []
    for holder in checkpoint.pins:
        note = checkpoint.pin_notes.get(holder, "")
        pinned = "pinned" if holder == USER else f"pinned by {holder}"
        reasons.append(f"{pinned}: {note}" if note else pinned)
    return reasons


def is_restored(task: Task, checkpoint: Checkpoint) -> bool:
    """Whether a generation restores the checkpoint."""
    source = task.recovery
    return (
        source is not None
        and source.checkpoint == checkpoint.id
        and task.committed <= checkpoint.step
    )
