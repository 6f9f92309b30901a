"""Predicates on events and states, and the search for the next or previous match.

    kind=WorkerLost                     an event of a kind
    kind=StepFinished step>100          several conditions, all of which must hold
    worker train-1-w3 not training      a worker's state; also `is`, `is not`, `was`, `was not`
    task train-1 is running             a task's state

A condition on a state matches the moment at which it becomes true.
"""

import operator
import re
from collections.abc import Callable

from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered, WorkerStateChanged
from strata.errors import InvalidArgument, NotFound
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

STATE = re.compile(
    r"^(worker|task)\s+(\S+)\s+(?:(is not|was not|not|is|was)\s+)?([a-z_]+)$", re.IGNORECASE
)
CONDITION = re.compile(r"^([A-Za-z_]+)(!=|>=|<=|=|>|<)(.+)$")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
HINT = 'try "kind=WorkerLost", "step>100" or "worker NAME not training"'


class Predicate(Struct, frozen=True):
    """A test on records, with the kinds and the node that can match."""

    text: str
    holds: Callable[[Record], bool]
    kinds: frozenset[str] = frozenset()
    node: str | None = None


def parse_predicate(text: str) -> Predicate:
    """Parse a predicate; an empty one matches every event."""
    state = STATE.match(text.strip())
    if state is not None:
        what, name, link, wanted = state.groups()
        negated = link is not None and "not" in link.lower()
        return _state(text, what.lower(), name, negated, wanted.lower())
    conditions = [_condition(word) for word in text.split()]
    kinds = frozenset(
        value for name, sign, value, _ in conditions if name == "kind" and sign == "="
    )
    nodes = [value for name, sign, value, _ in conditions if name == "node" and sign == "="]
    tests = [test for _, _, _, test in conditions]
    return Predicate(
        text=text,
        holds=lambda record: all(test(record) for test in tests),
        kinds=kinds if len(kinds) == 1 else frozenset(),
        node=nodes[0] if nodes else None,
    )


def _condition(word: str) -> tuple[str, str, str, Callable[[Record], bool]]:
    match = CONDITION.match(word)
    if match is None:
        raise InvalidArgument(f"{word[:80]!r} is not a valid condition", hint=HINT)
    name, sign, value = match.groups()

    def test(record: Record) -> bool:
        found = _value(record, name)
        if sign in ("=", "!="):
            return (str(found) == value) == (sign == "=")
        try:
            return found is not None and COMPARE[sign](float(str(found)), float(value))
        except ValueError:
            return False

    return name, sign, value, test


def _value(record: Record, name: str) -> object:
    if name == "kind":
        return record.kind
    return record.node if name == "node" else record.get(name)


def _state(text: str, what: str, name: str, negated: bool, wanted: str) -> Predicate:
    def came_true(record: Record) -> bool:
        subject, before, after = _transition(record)
        if subject != name:
            return False
        return (after == wanted) != negated and (before == wanted) == negated

    changes = (WorkerRegistered, WorkerStateChanged, WorkerLost)
    kinds = changes if what == "worker" else (TaskStateChanged,)
    return Predicate(
        text=text,
        holds=came_true,
        kinds=frozenset(kind.__name__ for kind in kinds),
        node=COORDINATOR,
    )


def _transition(record: Record) -> tuple[str, str, str]:
    """The worker or task whose state a fact changes, with the states before and after."""
    body = record.event.body
    if isinstance(body, WorkerStateChanged):
        return body.worker, body.before, body.after
    if isinstance(body, TaskStateChanged):
        return body.task, body.before, body.after
    if isinstance(body, WorkerLost):
        return body.worker, "training", "lost"
    return record.text("worker"), "", "initializing"


def seek(
    timeline: Timeline,
    predicate: Predicate,
    from_ns: int,
    forward: bool,
    position: int | None = None,
) -> Record:
    """The next or previous record that matches, excluding the start itself.

    Facts of one decision have the same time. With `position`, facts are compared by position: the
    search starts right after the fact before `position`.
    """
    if forward:
        edge_ns = from_ns + 1 if position is None else from_ns
        found = timeline.records(edge_ns, node=predicate.node, kinds=predicate.kinds)
    else:
        edge_ns = from_ns if position is None else from_ns + 1
        found = timeline.backwards(edge_ns, node=predicate.node, kinds=predicate.kinds)
    for record in found:
        if position is not None and not _lies(record, forward, position, from_ns):
            continue
        if predicate.holds(record):
            return record
    where = "later" if forward else "earlier"
    raise NotFound(
        f"no {where} match for {predicate.text or 'any event'}",
        hint="search in the other direction",
    )


def _lies(record: Record, forward: bool, position: int, from_ns: int) -> bool:
    """Whether a record is after (or before) a position."""
    if record.node == COORDINATOR:
        seq = record.event.seq
        return seq >= position if forward else seq < position - 1
    return record.at_ns > from_ns if forward else record.at_ns < from_ns
