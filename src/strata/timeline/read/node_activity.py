"""What each worker was doing at a moment, from its own events.

The last seconds of all workers are read, as many as hold few enough events. Workers without an
event in them are looked up one by one, and long operations are searched up to `LOOK_BACK_NS` back.
An operation that started even earlier and still runs is not found.
"""

from collections.abc import Iterable

from strata.core.events import COORDINATOR
from strata.core.state import Cluster, Worker
from strata.core.workers.worker_facts import ResourceSnapshot
from strata.store.event_store import Window
from strata.timeline.answers import NodeAnswer
from strata.timeline.read.operations import LONG_KINDS, Operation, Pairing, newest_of
from strata.timeline.read.records import SECOND_NS, Record, ms
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import seconds

WINDOWS_NS = (SECOND_NS // 4, SECOND_NS, 5 * SECOND_NS, 20 * SECOND_NS, 60 * SECOND_NS)
ENOUGH_EVENTS = 4_000
SILENT_NODES = 32
SILENT_LOOK_BACK_NS = 120 * SECOND_NS
LOOK_BACK_NS = 300 * SECOND_NS
SILENT_NS = 15 * SECOND_NS


class Recent:
    """The newest events of every worker before a moment."""

    def __init__(self) -> None:
        self.pairing = Pairing()
        self.last: dict[str, Record] = {}
        self.steps: dict[str, int] = {}
        self.resources: dict[str, Record] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Add records, in order."""
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
    """The newest events before a moment; `state` is the cluster's state at that moment."""
    recent = Recent()
    border_ns = at_ns - _window_ns(timeline, at_ns)
    recorded = {kind for tally in timeline.tallies() for kind in tally.kinds}
    if LONG_KINDS & recorded:
        began = timeline.records(at_ns - LOOK_BACK_NS, border_ns, kinds=LONG_KINDS & recorded)
        recent.take(began)
    recent.take(timeline.records(border_ns, at_ns + 1))
    silent = [w.id for w in state.workers.values() if w.alive and w.id not in recent.last]
    for node in silent[:SILENT_NODES]:
        recent.take(timeline.records(at_ns - SILENT_LOOK_BACK_NS, border_ns, node=node))
    return recent


def _window_ns(timeline: Timeline, at_ns: int) -> int:
    """The longest of `WINDOWS_NS` with at most `ENOUGH_EVENTS` events, by batch headers."""
    longest_ns = WINDOWS_NS[0]
    for width_ns in WINDOWS_NS:
        headers = timeline.reader.headers(Window(since_ns=at_ns - width_ns, until_ns=at_ns))
        if sum(header.count for header in headers) > ENOUGH_EVENTS:
            break
        longest_ns = width_ns
    return longest_ns


def nodes_at(state: Cluster, at_ns: int, recent: Recent) -> list[NodeAnswer]:
    """What each worker was doing at a moment; those that left long before are left out."""
    return [
        _node(worker, at_ns, recent)
        for worker in state.workers.values()
        if worker.state != "left" or at_ns - worker.changed_ns < LOOK_BACK_NS
    ]


def _node(worker: Worker, at_ns: int, recent: Recent) -> NodeAnswer:
    last = recent.last.get(worker.id)
    if last is not None and last.incarnation != worker.incarnation:
        last = None
    open_now = [
        operation
        for (node, incarnation, _), operation in recent.pairing.open.items()
        if (node, incarnation) == (worker.id, worker.incarnation)
    ]
    step = recent.steps.get(worker.id, -1) if last is not None else -1
    return NodeAnswer(
        id=worker.id,
        incarnation=worker.incarnation,
        task=worker.task,
        rank=worker.rank,
        state=worker.state,
        doing=_doing(worker, at_ns, last, open_now, step),
        step=step,
        last_ms=ms(last.at_ns) if last is not None else None,
        open_operations=[operation.answer() for operation in open_now],
    )


def _doing(
    worker: Worker, at_ns: int, last: Record | None, open_now: list[Operation], step: int
) -> str:
    """A phrase for what a worker was doing: the operation that started last, or its state."""
    if not worker.alive:
        return f"{worker.state}: {worker.reason}" if worker.reason else worker.state
    silence_ns = at_ns - last.at_ns if last is not None else 0
    quiet = f", no event for {seconds(silence_ns)}" if silence_ns > SILENT_NS else ""
    newest = newest_of(open_now)
    if newest is not None:
        operation, start = newest
        return f"{operation.text}, for {seconds(at_ns - start.at_ns)}{quiet}"
    where = f" step {step}" if step >= 0 and worker.state == "training" else ""
    state = f"{worker.state.replace('_', ' ')}{where}"
    return f"{state}{quiet}" if last is not None else f"{state} (from heartbeats; no events)"
