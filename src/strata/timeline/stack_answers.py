"""Answers about the stacks of a task's workers: over REST, in the terminal and as JSON."""

from msgspec import Struct

from strata.core.workers.stack_collection import Trigger
from strata.core.workers.stack_reports import PendingExchange, ProcessStacks, StackSource


class WorkerStacks(Struct, frozen=True, kw_only=True):
    """Where one worker was; `place` is empty if that is not recorded, and `notes` say why.

    `source` is how the stacks were read. `step` is -1 if the worker itself did not report.
    """

    worker_id: str
    rank: int
    place: str
    source: StackSource
    exchange: PendingExchange | None
    waits_for: list[str]
    step: int
    notes: list[str]
    processes: list[ProcessStacks]


class StacksAnswer(Struct, frozen=True, kw_only=True):
    """A collection of stacks; `ended` is false while reports are awaited."""

    task_id: str
    collection: int
    trigger: Trigger
    reason: str
    at_ms: float
    ended: bool
    left_out: int
    workers: list[WorkerStacks]
