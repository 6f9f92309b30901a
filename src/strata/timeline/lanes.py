"""One lane per worker: what it did, as spans, and what happened to it, as marks.

The coordinator's facts give the coarse picture (idle, training, recovering, lost, at a barrier).
Where a window holds few enough of the workers' own events, those give the fine one: the parts of
each step and every operation. A lane never has more than `MAX_SPANS` spans: denser ones of one kind
are merged, and `count` says how many they were.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.events import COORDINATOR
from strata.core.generations import GenerationChanged
from strata.core.state import Cluster
from strata.core.worker_facts import StepFinished
from strata.core.workers import WorkerLost, WorkerRegistered, WorkerState, WorkerStateChanged
from strata.store.base import Window
from strata.timeline.operations import PHASES, Operation, Pairing
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.timeline import Timeline
from strata.timeline.words import sentence

SpanKind: TypeAlias = Literal[
    "train", "data", "barrier", "checkpoint", "recover", "wait", "idle", "lost"
]

MAX_SPANS = 500
MAX_MARKS = 200
FINE_EVENTS = 100_000

STATES: dict[WorkerState, SpanKind] = {
    "initializing": "idle",
    "idle": "idle",
    "loading_data": "data",
    "training": "train",
    "checkpointing": "checkpoint",
    "recovering": "recover",
    "error": "lost",
    "lost": "lost",
}
OPERATIONS: dict[str, SpanKind] = {
    "DatasetOpen": "data",
    "BatchDownload": "data",
    "BlobUpload": "wait",
    "BlobDownload": "recover",
    "ResultDeserialize": "wait",
    "CheckpointDownload": "recover",
    "ModelLoad": "recover",
    "ModelSerialization": "checkpoint",
    "CheckpointWrite": "checkpoint",
    "CheckpointUpload": "checkpoint",
    "Request": "barrier",
}
MARKS = frozenset(
    {
        "WorkerRegistered",
        "WorkerLost",
        "WorkerReturned",
        "WorkerFenced",
        "WorkerExited",
        "WorkerRejected",
        "MessageRejected",
        "ConnectionChanged",
        "EventsDropped",
        "RunEnded",
    }
)
COARSE = (WorkerStateChanged, WorkerRegistered, WorkerLost, GenerationChanged)
BARRIERS = (BarrierArrived, BarrierReleased, BarrierFailed)


class Span(Struct):
    """What a worker did for a while; `to_ns` is None while it goes on."""

    from_ns: int
    to_ns: int | None
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None = None
    count: int = 1


class Mark(Struct, frozen=True):
    """Something that happened to a worker at one moment."""

    at_ns: int
    kind: str
    label: str
    ref: str


class Lane(Struct):
    """One worker."""

    node: str
    task: str = ""
    rank: int = -1
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


class Lanes(Struct, frozen=True):
    """Some lanes of a window; `fine` when the workers' own events are in them."""

    lanes: list[Lane]
    fine: bool
    truncated: bool
    next: str = ""


def lanes(
    timeline: Timeline, from_ns: int, to_ns: int, task: str = "", limit: int = 200, after: str = ""
) -> Lanes:
    """The lanes of a window, by task and rank; `after` is the last name of the page before."""
    drawing = _Drawing(state_at(timeline, timeline.position_at(from_ns)).state, from_ns)
    for record in timeline.records(from_ns, to_ns, node=COORDINATOR, kinds=_names(COARSE)):
        drawing.coarse(record)
    chosen = sorted(
        (lane for lane in drawing.lanes.values() if not task or lane.task == task),
        key=lambda lane: (lane.task, len(lane.node), lane.node),
    )
    if after:
        names = [lane.node for lane in chosen]
        chosen = chosen[names.index(after) + 1 :] if after in names else []
    page = chosen[:limit]
    fine = _events_within(timeline, from_ns, to_ns) <= FINE_EVENTS
    wanted = {lane.node for lane in page}
    if fine:
        drawing.refine(
            record
            for record in timeline.records(from_ns, to_ns)
            if record.node in wanted or record.node == COORDINATOR
        )
    for lane in page:
        lane.spans = merged(lane.spans, from_ns, to_ns)
        lane.marks = lane.marks[:MAX_MARKS]
    more = len(chosen) > len(page)
    return Lanes(page, fine, more, page[-1].node if more else "")


def _names(kinds: Iterable[type]) -> set[str]:
    return {kind.__name__ for kind in kinds}


def _events_within(timeline: Timeline, from_ns: int, to_ns: int) -> int:
    """About how many events a window holds, by headers; stops counting when it is enough."""
    found = 0
    for header in timeline.reader.headers(Window(from_ns, to_ns)):
        found += header.count
        if found > FINE_EVENTS:
            break
    return found


class _Drawing:
    def __init__(self, state: Cluster, from_ns: int) -> None:
        self.lanes: dict[str, Lane] = {}
        self._from_ns = from_ns
        self._pairing = Pairing()
        self._at_barrier: dict[tuple[str, str], dict[str, Record]] = {}
        for worker in state.workers.values():
            if worker.state in STATES:
                lane = self._lane(worker.id, worker.task)
                lane.rank = worker.rank
                lane.spans.append(
                    Span(from_ns, None, STATES[worker.state], worker.state, "", worker.alive)
                )

    def _lane(self, node: str, task: str) -> Lane:
        lane = self.lanes.setdefault(node, Lane(node))
        lane.task = task or lane.task
        return lane

    def coarse(self, record: Record) -> None:
        """A fact that changes what a worker is."""
        body = record.event.body
        if isinstance(body, GenerationChanged):
            for rank, worker in body.seats:
                self._lane(worker, body.task).rank = rank
        elif isinstance(body, WorkerRegistered):
            self._turn(record, body.worker, body.task, "idle", "joined")
        elif isinstance(body, WorkerLost):
            self._turn(record, body.worker, body.task, "lost", body.reason, ok=False)
        elif isinstance(body, WorkerStateChanged):
            kind = STATES.get(body.after)
            self._turn(record, body.worker, body.task, kind, body.after)
        if record.kind in MARKS:
            self._mark(record, record.text("worker"))

    def _turn(
        self,
        record: Record,
        node: str,
        task: str,
        kind: SpanKind | None,
        label: str,
        ok: bool = True,
    ) -> None:
        """Ends what a worker was, and begins what it is now."""
        lane = self._lane(node, task)
        if lane.spans and lane.spans[-1].to_ns is None:
            lane.spans[-1].to_ns = record.at_ns
        if kind is not None:
            lane.spans.append(Span(record.at_ns, None, kind, label, record.ref, ok))

    def _mark(self, record: Record, node: str) -> None:
        if node in self.lanes and len(self.lanes[node].marks) < MAX_MARKS:
            mark = Mark(record.at_ns, record.kind, sentence(record), record.ref)
            self.lanes[node].marks.append(mark)

    def refine(self, records: Iterator[Record]) -> None:
        """Adds the workers' own events, and who waited at which barrier."""
        for record in records:
            if record.node == COORDINATOR:
                self._barrier(record)
                continue
            if record.kind in MARKS:
                self._mark(record, record.node)
            body = record.event.body
            if isinstance(body, StepFinished):
                self._step(record, body)
            elif record.kind in PHASES:
                ended = self._pairing.feed(record)
                if ended is not None:
                    self._operation(ended)
        for operation in self._pairing.open.values():
            self._operation(operation)
        for lane in self.lanes.values():
            lane.spans = _without_covered(lane.spans)

    def _operation(self, operation: Operation) -> None:
        kind = OPERATIONS.get(operation.name)
        lane = self.lanes.get(operation.node)
        first = operation.start or operation.end
        if kind is None or lane is None or first is None:
            return
        from_ns = operation.start.at_ns if operation.start else self._from_ns
        to_ns = operation.end.at_ns if operation.end else None
        lane.spans.append(Span(from_ns, to_ns, kind, operation.text, first.ref, operation.ok))

    def _step(self, record: Record, body: StepFinished) -> None:
        """A step's parts, laid before its end in the order in which they usually come."""
        lane = self.lanes.get(record.node)
        if lane is None:
            return
        parts: tuple[tuple[SpanKind, str, float], ...] = (
            ("data", "data", body.data_s),
            ("train", "compute", body.compute_s),
            ("wait", "communication", body.communication_s),
            ("wait", "wait", body.wait_s),
        )
        at_ns = record.at_ns - int(sum(part[2] for part in parts) * SECOND_NS)
        for kind, word, part_s in parts:
            to_ns = at_ns + int(part_s * SECOND_NS)
            if part_s > 0:
                label = f"step {body.step}: {word}"
                lane.spans.append(Span(at_ns, to_ns, kind, label, record.ref, True))
            at_ns = to_ns

    def _barrier(self, record: Record) -> None:
        body = record.event.body
        if isinstance(body, BarrierArrived):
            arrived = self._at_barrier.setdefault((body.task, body.barrier), {})
            arrived[body.worker] = record
        elif isinstance(body, BarrierReleased | BarrierFailed):
            ok = isinstance(body, BarrierReleased)
            for worker, arrival in self._at_barrier.pop((body.task, body.barrier), {}).items():
                if worker in self.lanes:
                    label = f"barrier {body.barrier}"
                    span = Span(arrival.at_ns, record.at_ns, "barrier", label, arrival.ref, ok)
                    self.lanes[worker].spans.append(span)


def _without_covered(spans: list[Span]) -> list[Span]:
    """Training in general gives way to the steps that it was made of; what is after them stays."""
    ends = [span.to_ns for span in spans if span.label.startswith("step ") and span.to_ns]
    if not ends:
        return spans
    kept = []
    for span in spans:
        if span.label == "training" and span.from_ns < max(ends):
            if span.to_ns is not None and span.to_ns <= max(ends):
                continue
            span.from_ns = max(ends)
        kept.append(span)
    return kept


def merged(spans: list[Span], from_ns: int, to_ns: int) -> list[Span]:
    """At most `MAX_SPANS` spans, by their start; what is too fine to see is put together."""
    ordered = sorted(spans, key=lambda span: (span.from_ns, span.kind))
    resolution_ns = (to_ns - from_ns) // MAX_SPANS // 4
    while len(ordered) > MAX_SPANS:
        ordered = _joined(ordered, resolution_ns)
        resolution_ns = resolution_ns * 2 + 1
    return ordered


def _joined(spans: list[Span], resolution_ns: int) -> list[Span]:
    """Joins spans of one kind that are no farther apart than can be told."""
    kept: list[Span] = []
    newest: dict[SpanKind, Span] = {}
    for span in spans:
        before = newest.get(span.kind)
        near = (
            before is not None
            and before.to_ns is not None
            and span.to_ns is not None
            and span.from_ns - before.to_ns <= resolution_ns
        )
        if before is not None and before.to_ns is not None and span.to_ns is not None and near:
            before.to_ns = max(before.to_ns, span.to_ns)
            before.count += span.count
            before.ok = before.ok and span.ok
        else:
            newest[span.kind] = msgspec.structs.replace(span)
            kept.append(newest[span.kind])
    return kept
