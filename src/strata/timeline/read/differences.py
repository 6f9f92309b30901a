"""Differences between two moments of a run, or between two runs.

Two moments are compared by their states, field by field. Two runs are compared by their facts in
order, of the kinds in `COMPARED`. Times, counted ids and reasons are left out, and task names are
replaced by numbers, so that two runs that did the same compare equal.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import zip_longest
from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.state import Cluster
from strata.timeline.answers import ChangeAnswer
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import counted, sentence, shown

MAX_FIELDS = 3
IGNORED = frozenset(
    {"position", "nonce", "changed_ns", "registered_ns", "last_incarnation", "metadata", "last"}
)
SUBJECTS = {"workers": "worker", "tasks": "task", "datasets": "dataset", "agents": "agent"}
INCIDENTAL = frozenset(
    {"incarnation", "reason", "nonce", "hostname", "address", "port", "evidence", "path", "took_s"}
)
BY_CHANCE = {"CheckpointCommitted": ("worker",)}
"""Fields that differ in equal runs: the worker that was the first to begin a checkpoint."""

ENVIRONMENT_KEY = "env_key"
"""Key of a task's stored environment; it is new for every submitted task."""

COMPARED = frozenset(
    {
        "DatasetRegistered",
        "DatasetAttached",
        "TaskSubmitted",
        "TaskStateChanged",
        "GenerationChanged",
        "RecoveryChosen",
        "RolledBack",
        "WorkerLost",
        "BarrierFailed",
        "CheckpointCommitted",
        "CheckpointFailed",
        "EpochAdvanced",
    }
)

Tree: TypeAlias = object

Essence: TypeAlias = tuple[tuple[str, str], Record]
"""A fact's kind and compared fields, and its record."""


def changes(before: Cluster, after: Cluster) -> Iterator[ChangeAnswer]:
    """The fields that differ between two states."""
    yield from _compare(msgspec.to_builtins(before), msgspec.to_builtins(after), (), "cluster")


def _compare(a: Tree, b: Tree, path: tuple[str, ...], subject: str) -> Iterator[ChangeAnswer]:
    if a == b or (path and path[-1] in IGNORED):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = subject
            if len(path) == 1 and path[0] in SUBJECTS:
                inner = f"{SUBJECTS[path[0]]}:{key}"
            yield from _compare(a.get(key), b.get(key), (*path, str(key)), inner)
        return
    yield _change(".".join(path), subject, _brief(a), _brief(b))


def _change(path: str, subject: str, before: Tree, after: Tree) -> ChangeAnswer:
    field = path.rpartition(".")[2]
    text = f"{subject}: {field} was {shown(before)}, is {shown(after)}"
    if before is None:
        text = f"{subject}: {field} was added"
    elif after is None:
        text = f"{subject}: {field} was removed"
    return ChangeAnswer(path=path, subject=subject, before=before, after=after, text=text)


def _brief(value: Tree) -> Tree:
    """The main fields of a large structure that was added or removed; other values as they are."""
    if isinstance(value, dict) and len(value) > 8:
        main = ("state", "task", "step", "rank", "generation", "committed")
        return {name: value[name] for name in main if name in value}
    return value


class Difference(Struct, frozen=True):
    """The first difference of two runs: the last fact in common, and the next fact of each."""

    same: int
    shared: Record | None
    left: Record | None
    right: Record | None

    @property
    def text(self) -> str:
        """The difference as a sentence."""
        if self.left is None and self.right is None:
            return "the runs did the same"
        same = f"after {counted(self.same, 'compared fact')} in common"
        fields = self._fields()
        if self.left is not None and fields:
            return f"{same}, {sentence(self.left)} in both, with {fields}"
        first = sentence(self.left) if self.left else "the run ended"
        second = sentence(self.right) if self.right else "the run ended"
        return f"{same}: here {first}; there {second}"

    def _fields(self) -> str:
        """The fields that differ, if both facts have the same sentence."""
        if self.left is None or self.right is None or sentence(self.left) != sentence(self.right):
            return ""
        here, there = (dict(_flat("", each.fields())) for each in (self.left, self.right))
        named = [
            f"{name} {shown(here.get(name))} here and {shown(there.get(name))} there"
            for name in {**here, **there}
            if here.get(name) != there.get(name)
        ]
        return "; ".join(named[:MAX_FIELDS])


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """The fields of a fact by path, without those that differ in equal runs."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, each in value.items():
        incidental = name == ENVIRONMENT_KEY or (not path and name in INCIDENTAL)
        if not incidental:
            yield from _flat(f"{path}.{name}" if path else str(name), each)


def first_difference(left: Timeline, right: Timeline) -> Difference:
    """The first difference between two runs."""
    both = (each.records(node=COORDINATOR, kinds=COMPARED) for each in (left, right))
    return first_difference_of(*(essence(records) for records in both))


def first_difference_of(left: Iterator[Essence], right: Iterator[Essence]) -> Difference:
    """The first difference between two series of compared facts."""
    shared: Record | None = None
    same = 0
    for ours, theirs in zip_longest(left, right):
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return Difference(
                same=same,
                shared=shared,
                left=ours[1] if ours else None,
                right=theirs[1] if theirs else None,
            )
        shared = ours[1]
        same += 1
    return Difference(same=same, shared=shared, left=None, right=None)


def essence(records: Iterable[Record], but: Collection[str] = ()) -> Iterator[Essence]:
    """Facts with what is compared of them: without fields that differ in equal runs, and `but`."""
    tasks: dict[str, str] = {}
    for record in records:
        task = record.text("task")
        tasks.setdefault(task, f"task {len(tasks)}")
        unlike = (*but, *BY_CHANCE.get(record.kind, ()))
        fields = {name: value for name, value in record.fields().items() if name not in unlike}
        text = msgspec.json.encode(dict(_flat("", fields))).decode()
        yield (record.kind, text.replace(task, tasks[task]) if task else text), record
