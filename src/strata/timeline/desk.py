"""The front desk: every question that REST and the terminal ask, with bounded answers."""

import threading
import time
from collections.abc import Iterable
from itertools import islice

import msgspec

from strata.core.events import COORDINATOR
from strata.errors import InvalidArgument
from strata.timeline import activity, causes, density, lanes, states
from strata.timeline.answers import (
    AsOf,
    BucketAnswer,
    DensityAnswer,
    EventAnswer,
    EventDetail,
    FindingAnswer,
    LaneAnswer,
    LaneMark,
    LanesAnswer,
    LaneSpan,
    LinkAnswer,
    MomentAnswer,
    NodeAnswer,
    OperationAnswer,
    SpanAnswer,
    SpanNode,
    TaskMoment,
    TrustAnswer,
)
from strata.timeline.operations import Operation
from strata.timeline.records import MS_NS, Record
from strata.timeline.timeline import Timeline
from strata.timeline.trust import Trust, examine
from strata.timeline.words import sentence

NODES = 200
LOOKED_AT = 200_000
TRUST_FRESH_S = 10.0
SHORT_FINDINGS = 20
LAST_MS = 8e12


class Desk:
    """Answers questions about one timeline, from any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._lock = threading.Lock()
        self._trust: Trust | None = None
        self._examined_s = 0.0

    def trust(self) -> Trust:
        """Whether the log can be trusted; of a live log as it was moments ago."""
        with self._lock:
            age_s = time.monotonic() - self._examined_s
            if self._trust is None or (self.timeline.live and age_s > TRUST_FRESH_S):
                self._trust = examine(self.timeline)
                self._examined_s = time.monotonic()
            return self._trust

    def span(self) -> SpanAnswer:
        """The whole timeline."""
        timeline, extent = self.timeline, self.timeline.extent()
        events: dict[str, int] = {}
        gaps: dict[str, int] = {}
        for tally in timeline.tallies():
            holes = timeline.reader.gaps(tally.node, tally.incarnation)
            events[tally.node] = events.get(tally.node, 0) + tally.events
            gaps[tally.node] = gaps.get(tally.node, 0) + sum(b - a for a, b in holes)
        facts = extent.last - extent.first
        nodes = [SpanNode(COORDINATOR, "coordinator", facts, 0)]
        nodes += [SpanNode(node, "worker", count, gaps[node]) for node, count in events.items()]
        return SpanAnswer(
            from_ms=ms(extent.from_ns),
            to_ms=ms(extent.to_ns),
            first_position=extent.first,
            last_position=extent.last,
            facts=facts,
            worker_events=sum(events.values()),
            nodes=nodes[:NODES],
            nodes_total=len(nodes),
            trust=trust_answer(self.trust(), SHORT_FINDINGS),
            live=timeline.live,
        )

    def window(self, from_ms: float | None, to_ms: float | None) -> tuple[int, int]:
        """A span of time in nanoseconds; the whole timeline where nothing is said."""
        extent = self.timeline.extent()
        from_ns = extent.from_ns if from_ms is None else ns(from_ms)
        to_ns = extent.to_ns + 1 if to_ms is None else ns(to_ms)
        if to_ns <= from_ns:
            raise InvalidArgument("the window ends before it begins", hint="swap from and to")
        return from_ns, to_ns

    def density(
        self, from_ms: float | None, to_ms: float | None, buckets: int = 200, task: str = ""
    ) -> DensityAnswer:
        """How much happened when."""
        found = density.density(self.timeline, *self.window(from_ms, to_ms), buckets, task)
        shown = [BucketAnswer(**msgspec.structs.asdict(bucket)) for bucket in found.buckets]
        return DensityAnswer(ms(found.from_ns), ms(found.to_ns), shown)

    def lanes(
        self,
        from_ms: float | None,
        to_ms: float | None,
        task: str = "",
        limit: int = 200,
        cursor: str = "",
    ) -> LanesAnswer:
        """What each worker did, as spans and marks."""
        window = self.window(from_ms, to_ms)
        found = lanes.lanes(self.timeline, *window, task, min(limit, NODES), cursor)
        return LanesAnswer(
            [lane_answer(lane) for lane in found.lanes], found.truncated, found.next, found.fine
        )

    def events(
        self,
        from_ms: float | None = None,
        to_ms: float | None = None,
        node: str = "",
        kind: str = "",
        task: str = "",
        subject: str = "",
        limit: int = 100,
        cursor: str = "",
    ) -> tuple[list[EventAnswer], str]:
        """A page of events in their order, and the cursor of the next."""
        from_ns, to_ns = self.window(from_ms, to_ms)
        after = decode_cursor(cursor)
        from_ns = max(from_ns, after[0]) if after else from_ns
        kinds = {each for each in kind.split(",") if each}
        found: list[Record] = []
        records = self.timeline.records(from_ns, to_ns, node=node or None, kinds=kinds)
        last: Record | None = None
        for record in islice(records, LOOKED_AT):
            if after and record.key <= after:
                continue
            last = record
            if concerns(record, task, subject):
                found.append(record)
                if len(found) == limit:
                    break
        else:
            # The end of the window, unless it was too far to look through at once.
            more = next(records, None) is not None
            return [event_answer(each) for each in found], encode_cursor(last) if more else ""
        return [event_answer(each) for each in found], encode_cursor(last)

    def event(self, ref: str) -> EventDetail:
        """One event with its operation, causes and effects."""
        record = self.timeline.record(ref)
        operation = causes.operation_of(self.timeline, record)
        fact = record.node == COORDINATOR
        return EventDetail(
            ref=record.ref,
            at_ms=ms(record.at_ns),
            node=record.node,
            incarnation=record.incarnation,
            seq=record.event.seq,
            position=record.event.seq if fact else None,
            kind=record.kind,
            version=record.version,
            body=record.fields(),
            tags=record.tags(),
            summary=sentence(record),
            operation=operation_answer(operation) if operation else None,
            causes=links(causes.causes_of(self.timeline, record)),
            effects=links(causes.effects_of(self.timeline, record)),
            wall_ms=ms(record.event.wall_ns),
        )

    def moment(
        self,
        time_ms: float | None = None,
        position: int | None = None,
        step: int | None = None,
        task: str = "",
    ) -> tuple[MomentAnswer, states.Past, activity.Recent]:
        """The state of everything at a moment, and what each node was doing."""
        at_ns = None if time_ms is None else ns(time_ms)
        at_ns, position = states.resolve(self.timeline, at_ns, position, step, task)
        past = states.state_at(self.timeline, position)
        recent = activity.recent_before(self.timeline, at_ns)
        nodes = activity.nodes_at(self.timeline, past.state, at_ns, recent)
        answer = MomentAnswer(
            as_of=AsOf(ms(at_ns), past.position, False, past.doubt),
            tasks=[
                TaskMoment(
                    each.id,
                    each.state,
                    each.reason,
                    each.generation,
                    each.phase,
                    each.committed,
                )
                for each in list(past.state.tasks.values())[-NODES:]
            ],
            nodes=[node_answer(node) for node in nodes[:NODES]],
            nodes_total=len(nodes),
        )
        return answer, past, recent


def ms(moment_ns: int) -> float:
    """Nanoseconds as milliseconds."""
    return moment_ns / MS_NS


def ns(moment_ms: float) -> int:
    """Milliseconds as nanoseconds."""
    if not 0 <= moment_ms <= LAST_MS:
        raise InvalidArgument(f"{moment_ms} is not a moment", hint="use Unix milliseconds")
    return int(moment_ms * MS_NS)


def concerns(record: Record, task: str, subject: str) -> bool:
    """Whether a record is about a task and a subject, each given as text that a tag has."""
    if task and record.text("task") != task:
        return False
    return not subject or subject == record.node or subject in map(str, record.tags().values())


def decode_cursor(cursor: str) -> tuple[int, str, int, int] | None:
    """The place that a page ended at."""
    if not cursor:
        return None
    try:
        at_ns, incarnation, seq, node = cursor.split(":", 3)
        return int(at_ns), node, int(incarnation), int(seq)
    except ValueError as error:
        raise InvalidArgument(
            f"cursor {cursor[:40]!r} is not one that was handed out", hint="begin anew without it"
        ) from error


def encode_cursor(record: Record | None) -> str:
    """The place of a record, for the next page."""
    if record is None:
        return ""
    at_ns, node, incarnation, seq = record.key
    return f"{at_ns}:{incarnation}:{seq}:{node}"


def trust_answer(trust: Trust, limit: int = 100) -> TrustAnswer:
    """What was found about the log."""
    shown = [
        FindingAnswer(finding.kind, finding.text, finding.node, finding.grave)
        for finding in trust.findings[:limit]
    ]
    return TrustAnswer(trust.verdict, shown)


def lane_answer(lane: lanes.Lane) -> LaneAnswer:
    """A lane with its times in milliseconds."""
    label = f"rank {lane.rank}" if lane.rank >= 0 else lane.node
    spans = [
        LaneSpan(
            ms(span.from_ns),
            None if span.to_ns is None else ms(span.to_ns),
            span.kind,
            span.label,
            span.ref,
            span.ok,
            span.count,
        )
        for span in lane.spans
    ]
    marks = [LaneMark(ms(mark.at_ns), mark.kind, mark.label, mark.ref) for mark in lane.marks]
    return LaneAnswer(lane.node, label, lane.task, lane.rank, spans, marks)


def event_answer(record: Record) -> EventAnswer:
    """A record in a list."""
    step = record.get("step")
    return EventAnswer(
        record.ref,
        ms(record.at_ns),
        record.node,
        record.kind,
        sentence(record),
        record.tags(),
        step if isinstance(step, int) and step >= 0 else None,
    )


def operation_answer(operation: Operation) -> OperationAnswer:
    """An operation with its times in milliseconds."""
    start, end, took = operation.start, operation.end, operation.duration_ns
    return OperationAnswer(
        operation.key,
        operation.text,
        start.ref if start else None,
        end.ref if end else None,
        ms(start.at_ns) if start else None,
        None if took is None else ms(took),
        operation.ok,
    )


def node_answer(node: activity.Node) -> NodeAnswer:
    """What a worker was doing."""
    return NodeAnswer(
        node.id,
        node.incarnation,
        node.task,
        node.rank,
        node.state,
        node.doing,
        node.step,
        ms(node.last.at_ns) if node.last else None,
        [operation_answer(operation) for operation in node.open],
    )


def links(records: Iterable[Record]) -> list[LinkAnswer]:
    """Events that led to another, or came of it."""
    return [
        LinkAnswer(each.ref, each.kind, each.node, ms(each.at_ns), sentence(each))
        for each in records
    ]
