"""What each node was doing at a moment, by its own events.

The last seconds of all nodes are looked at, as many as hold few enough events; nodes that were
silent in them are looked up one by one, and operations that take long are looked for further back.
What began before that, and is still under way, is not found: `looked_back_s` says how far it went.
"""

from collections.abc import Iterable

from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.state import Cluster
from strata.core.worker_facts import ResourceSnapshot
from strata.core.workers import Worker
from strata.store.base import Window
from strata.timeline.operations import LONG_KINDS, Operation, Pairing
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.timeline import Timeline
from strata.timeline.words import seconds

WINDOWS_NS = (SECOND_NS // 4, SECOND_NS, 5 * SECOND_NS, 20 * SECOND_NS, 60 * SECOND_NS)
ENOUGH_EVENTS = 4_000
SILENT_NODES = 32
SILENCE_NS = 120 * SECOND_NS
LOOK_BACK_NS = 300 * SECOND_NS
SILENT_NS = 15 * SECOND_NS


class Node(Struct, frozen=True):
    """One worker at a moment. `last` is its newest event, None when none was found."""

    id: str
    incarnation: int
    task: str
    rank: int
    state: str
    doing: str
    step: int
    last: Record | None
    open: list[Operation]
    looked_back_s: float = LOOK_BACK_NS / SECOND_NS


class Recent:
    """The newest events of every node before a moment."""

    def __init__(self) -> None:
        self.pairing = Pairing()
        self.last: dict[str, Record] = {}
        self.steps: dict[str, int] = {}
        self.resources: dict[str, Record] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Takes records in, in order."""
        for record in records:
            if record.node == COORDINATOR:
                continue
            self.pairing.feed(record)
            self.last[record.node] = record
            step = record.get("step")
            if isinstance(step, int) and step >= 0:
                self.steps[record.node] = step
            if isinstance(record.event.body, ResourceSnapshot):
                self.resources[record.node] = record


def recent_before(timeline: Timeline, at_ns: int, state: Cluster) -> Recent:
    """What the nodes recorded lately, as of a moment in which the cluster was in this state."""
    recent = Recent()
    border_ns = at_ns - _window_ns(timeline, at_ns)
    recorded = {kind for tally in timeline.tallies() for kind in tally.kinds}
    if LONG_KINDS & recorded:
        began = timeline.records(at_ns - LOOK_BACK_NS, border_ns, kinds=LONG_KINDS & recorded)
        recent.take(began)
    recent.take(timeline.records(border_ns, at_ns + 1))
    silent = [w.id for w in state.workers.values() if w.alive and w.id not in recent.last]
    for node in silent[:SILENT_NODES]:
        recent.take(timeline.records(at_ns - SILENCE_NS, border_ns, node=node))
    return recent


def _window_ns(timeline: Timeline, at_ns: int) -> int:
    """The longest of some windows that holds few enough events; headers tell, without decoding."""
    longest_ns = WINDOWS_NS[0]
    for width_ns in WINDOWS_NS:
        headers = timeline.reader.headers(Window(at_ns - width_ns, at_ns))
        if sum(header.count for header in headers) > ENOUGH_EVENTS:
            break
        longest_ns = width_ns
    return longest_ns


def nodes_at(timeline: Timeline, state: Cluster, at_ns: int, recent: Recent) -> list[Node]:
    """Every worker that counted at a moment or was just lost, and what it was doing."""
    return [
        _node(worker, at_ns, recent)
        for worker in state.workers.values()
        if worker.state != "left" or at_ns - worker.changed_ns < LOOK_BACK_NS
    ]


def _node(worker: Worker, at_ns: int, recent: Recent) -> Node:
    last = recent.last.get(worker.id)
    mine = last is not None and last.incarnation == worker.incarnation
    open_now = [
        operation
        for (node, incarnation, _), operation in recent.pairing.open.items()
        if (node, incarnation) == (worker.id, worker.incarnation)
    ]
    step = recent.steps.get(worker.id, -1) if mine else -1
    return Node(
        worker.id,
        worker.incarnation,
        worker.task,
        worker.rank,
        worker.state,
        _doing(worker, at_ns, last if mine else None, open_now, step),
        step,
        last if mine else None,
        open_now,
    )


def _doing(
    worker: Worker, at_ns: int, last: Record | None, open_now: list[Operation], step: int
) -> str:
    """In words; the operation begun last says most."""
    if not worker.alive:
        return f"{worker.state}: {worker.reason}" if worker.reason else worker.state
    silence_ns = at_ns - last.at_ns if last is not None else None
    silent = silence_ns is not None and silence_ns > SILENT_NS
    quiet = f", silent for {seconds(silence_ns)}" if silent and silence_ns is not None else ""
    begun = [operation for operation in open_now if operation.start is not None]
    if begun:
        newest = max(begun, key=lambda operation: operation.start.at_ns if operation.start else 0)
        assert newest.start is not None
        return f"{newest.text}, for {seconds(at_ns - newest.start.at_ns)}{quiet}"
    where = f" step {step}" if step >= 0 and worker.state == "training" else ""
    told = f"{worker.state.replace('_', ' ')}{where}"
    return f"{told}{quiet}" if last is not None else f"{told}, by its beats; it sent no events"
