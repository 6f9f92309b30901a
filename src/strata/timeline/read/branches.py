"""The tree of forked tasks, and the first difference of two tasks of one tree after their fork.

Two tasks of one tree have a history in common: that of the task both come from, up to the
checkpoint of the earlier fork. From there on each has a branch: the facts about the common task
that followed that checkpoint, if it went on, and those of the forks on the way to the task. The
start of a fork, up to its first recovery, is left out, because the other branch has none.
"""

from collections.abc import Container, Iterator

from msgspec import Struct

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.datasets.shard_leases import EpochAdvanced
from strata.core.events import COORDINATOR
from strata.core.generations.recovery import RecoveryChosen
from strata.core.task_state import ENDED
from strata.core.tasks.task_forks import TaskForked
from strata.core.tasks.task_lifecycle import TaskStateChanged, TaskSubmitted
from strata.errors import InvalidArgument, NotFound
from strata.timeline.answers import RunFork
from strata.timeline.read.differences import COMPARED, Difference, essence, first_difference_of
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

NUMBERED_ON = frozenset({"generation", "attempt", "checkpoint"})
"""Fields with numbers that a fork counts on from its parent's, or begins anew."""

BRANCH_KINDS = COMPARED - {TaskSubmitted.__name__, EpochAdvanced.__name__}
"""An epoch is recorded with the steps that are committed at a time, so it differs by chance."""


class Segment(Struct, frozen=True):
    """A task of a line: `fork` made it, and `left` is the next fork of the line, if any."""

    task: str
    fork: Record | None
    left: TaskForked | None


class Parting(Struct, frozen=True):
    """Where two tasks of one tree part: the last common task, and its checkpoint and step."""

    task: str
    checkpoint: str
    step: int
    left: list[Segment]
    right: list[Segment]


def forks(timeline: Timeline) -> dict[str, Record]:
    """The record of each fork by its task."""
    found = timeline.records(node=COORDINATOR, kinds={TaskForked.__name__})
    return {record.text("task"): record for record in found}


def forks_of(timeline: Timeline, tasks: Container[str] | None = None) -> list[RunFork]:
    """The forks in a run as rows of a list; with `tasks`, only those among them."""
    bodies = (record.event.body for record in forks(timeline).values())
    return [
        RunFork(task=body.task, parent=body.parent, step=body.step)
        for body in bodies
        if isinstance(body, TaskForked) and (tasks is None or body.task in tasks)
    ]


def line_of(timeline: Timeline, task: str) -> list[Segment]:
    """A task and the tasks it was forked from, the first one first."""
    submitted = timeline.records(node=COORDINATOR, kinds={TaskSubmitted.__name__})
    if task not in {record.text("task") for record in submitted}:
        raise NotFound(
            f"task {task!r} was not submitted in this log", hint="`strata tasks` lists the tasks"
        )
    made, line = forks(timeline), list[Segment]()
    left: TaskForked | None = None
    while True:
        fork = made.get(task)
        line.insert(0, Segment(task=task, fork=fork, left=left))
        if fork is None:
            return line
        assert isinstance(fork.event.body, TaskForked)
        left, task = fork.event.body, fork.event.body.parent


def parting(timeline: Timeline, task: str, other: str) -> Parting:
    """Where two tasks of one tree part; raises if they have no common ancestor."""
    left, right = line_of(timeline, task), line_of(timeline, other)
    if task == other:
        raise InvalidArgument(f"{task!r} is given twice", hint="name two tasks of one tree")
    if left[0].task != right[0].task:
        raise InvalidArgument(
            f"{task} and {other} are not forks of one task, so they have no fork point",
            hint="compare the folders of two runs: strata diff A B",
        )
    common = sum(a.task == b.task for a, b in zip(left, right, strict=False))
    left, right = left[common - 1 :], right[common - 1 :]
    ends = [line[0].left for line in (left, right) if line[0].left is not None]
    first = min(ends, key=lambda fork: fork.step)
    return Parting(
        task=left[0].task, checkpoint=first.checkpoint, step=first.step, left=left, right=right
    )


def difference_after(timeline: Timeline, parted: Parting) -> Difference:
    """The first difference of the two branches after a fork."""
    branches = (_branch(timeline, parted, line) for line in (parted.left, parted.right))
    left, right = (essence(records, NUMBERED_ON) for records in branches)
    return first_difference_of(left, right)


def _branch(timeline: Timeline, parted: Parting, line: list[Segment]) -> Iterator[Record]:
    """The compared facts of a line after the checkpoint at which it parts."""
    for segment in line:
        checkpoint = parted.checkpoint if segment.task == parted.task else ""
        since = _committed(timeline, segment, checkpoint) if checkpoint else None
        until = _committed(timeline, segment, segment.left.checkpoint) if segment.left else None
        yield from _facts(timeline, segment, since, until)


def _facts(
    timeline: Timeline, segment: Segment, since: int | None, until: int | None
) -> Iterator[Record]:
    """The compared facts about a task after position `since`, or after its start, up to `until`."""
    trains = since is not None or segment.fork is None
    for record in timeline.records(node=COORDINATOR, kinds=BRANCH_KINDS):
        if record.text("task") != segment.task or (since is not None and record.event.seq <= since):
            continue
        if until is not None and record.event.seq > until:
            return
        if trains and not _is_start(record):
            yield record
        trains = trains or record.kind == RecoveryChosen.__name__


def _is_start(record: Record) -> bool:
    """Whether a fact says that a task is on its way, as every fork does once more."""
    body = record.event.body
    return isinstance(body, TaskStateChanged) and body.after not in ENDED


def _committed(timeline: Timeline, segment: Segment, checkpoint: str) -> int:
    """The position at which a task had a checkpoint: committed, or inherited at its own fork."""
    for record in timeline.records(node=COORDINATOR, kinds={CheckpointCommitted.__name__}):
        named = (record.text("task"), record.text("checkpoint"))
        if named == (segment.task, checkpoint):
            return record.event.seq
    return segment.fork.event.seq if segment.fork is not None else -1
