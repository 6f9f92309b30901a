"""What is different: between two moments of a run, or between two runs.

Two moments are compared by their states, field by field. Two runs are compared by what they were
asked to do, then by their facts in order: times, ids that are counted up and reasons in words are
left out, and names of tasks are replaced by their number, so that what remains is what happened.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.state import Cluster
from strata.timeline.records import Record
from strata.timeline.timeline import Timeline
from strata.timeline.words import counted, sentence, shown

MAX_CHANGES = 500
MAX_FIELDS = 3
UNTOLD = frozenset(
    {"position", "nonce", "changed_ns", "registered_ns", "last_incarnation", "metadata", "last"}
)
SUBJECTS = {"workers": "worker", "tasks": "task", "datasets": "dataset", "agents": "agent"}
INCIDENTAL = frozenset(
    {"incarnation", "reason", "nonce", "hostname", "address", "port", "evidence", "path"}
)
ENVIRONMENT_KEY = "env_key"
"""Names a task's environment in the vault; it is another one each time a task is submitted."""

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


class Change(Struct, frozen=True):
    """One field that is otherwise; None where it is absent."""

    path: str
    subject: str
    before: Tree
    after: Tree

    @property
    def text(self) -> str:
        """In words."""
        field = self.path.rpartition(".")[2]
        if self.before is None:
            return f"{self.subject}: {field} appeared"
        if self.after is None:
            return f"{self.subject}: {field} is gone"
        return f"{self.subject}: {field} was {shown(self.before)}, is {shown(self.after)}"


def changes(before: Cluster, after: Cluster) -> Iterator[Change]:
    """What differs between two states."""
    yield from _compare(msgspec.to_builtins(before), msgspec.to_builtins(after), (), "cluster")


def _compare(a: Tree, b: Tree, path: tuple[str, ...], subject: str) -> Iterator[Change]:
    if a == b or (path and path[-1] in UNTOLD):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = subject
            if len(path) == 1 and path[0] in SUBJECTS:
                inner = f"{SUBJECTS[path[0]]}:{key}"
            yield from _compare(a.get(key), b.get(key), (*path, str(key)), inner)
        return
    yield Change(".".join(path), subject, _brief(a), _brief(b))


def _brief(value: Tree) -> Tree:
    """A whole structure that came or went is told by its main fields."""
    if isinstance(value, dict) and len(value) > 8:
        told = ("state", "task", "step", "rank", "generation", "committed")
        return {name: value[name] for name in told if name in value}
    return value


class Difference(Struct, frozen=True):
    """Where two runs part: the last thing they share, and what each did next."""

    same: int
    shared: Record | None
    left: Record | None
    right: Record | None

    @property
    def text(self) -> str:
        """In words."""
        if self.left is None and self.right is None:
            return "the runs did the same"
        same = f"after {counted(self.same, 'turning point')} in common"
        fields = self._fields()
        if self.left is not None and fields:
            return f"{same}, {sentence(self.left)} in both, with {fields}"
        first = sentence(self.left) if self.left else "nothing more happened"
        second = sentence(self.right) if self.right else "nothing more happened"
        return f"{same}: here {first}; there {second}"

    def _fields(self) -> str:
        """The fields in which two facts of one sentence differ."""
        if self.left is None or self.right is None or sentence(self.left) != sentence(self.right):
            return ""
        here, there = (dict(_flat("", each.fields())) for each in (self.left, self.right))
        told = [
            f"{name} {shown(here.get(name))} here and {shown(there.get(name))} there"
            for name in {**here, **there}
            if here.get(name) != there.get(name)
        ]
        return "; ".join(told[:MAX_FIELDS])


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """The fields of a fact by their paths, without those that two equal runs need not share."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, each in value.items():
        incidental = name == ENVIRONMENT_KEY or (not path and name in INCIDENTAL)
        if not incidental:
            yield from _flat(f"{path}.{name}" if path else str(name), each)


def first_difference(left: Timeline, right: Timeline) -> Difference:
    """Where this run first differs from that one."""
    shared: Record | None = None
    same = 0
    for ours, theirs in zip_longest(_essence(left), _essence(right)):
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return Difference(
                same, shared, ours[1] if ours else None, theirs[1] if theirs else None
            )
        shared = ours[1]
        same += 1
    return Difference(same, shared, None, None)


def _essence(timeline: Timeline) -> Iterator[tuple[object, Record]]:
    """The turning points of a run, without what two equal runs need not share."""
    tasks: dict[str, str] = {}
    for record in timeline.records(node=COORDINATOR, kinds=COMPARED):
        task = record.text("task")
        tasks.setdefault(task, f"task {len(tasks)}")
        text = msgspec.json.encode(dict(_flat("", record.fields()))).decode()
        yield (record.kind, text.replace(task, tasks[task]) if task else text), record
