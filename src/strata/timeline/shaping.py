"""From what the read side finds to what it answers with: pure functions, one structure each."""

from collections.abc import Iterable

from strata.errors import InvalidArgument
from strata.timeline import activity, lanes
from strata.timeline.answers import (
    ChangeAnswer,
    CostAnswer,
    EventAnswer,
    FindingAnswer,
    LaneAnswer,
    LaneMark,
    LaneSpan,
    LinkAnswer,
    NodeAnswer,
    OperationAnswer,
    StoryEntry,
    TrustAnswer,
    WhyAnswer,
    WhyLink,
)
from strata.timeline.comparing import Change
from strata.timeline.operations import Operation
from strata.timeline.records import MS_NS, Record
from strata.timeline.trust import Trust
from strata.timeline.why.case import Answer
from strata.timeline.words import sentence

LAST_MS = 8e12
FINDINGS = 50
FLOAT_NS = 300
SHORT_FINDINGS = 20


def ms(moment_ns: int) -> float:
    """Nanoseconds as milliseconds."""
    return moment_ns / MS_NS


def ns(moment_ms: float) -> int:
    """Milliseconds as nanoseconds, rounded up to what a float can tell: a quarter microsecond."""
    if not 0 <= moment_ms <= LAST_MS:
        raise InvalidArgument(f"{moment_ms} is not a moment", hint="use Unix milliseconds")
    return int(moment_ms * MS_NS) + FLOAT_NS


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
    return LaneAnswer(
        node=lane.node,
        label=label,
        task=lane.task,
        rank=lane.rank,
        spans=spans,
        marks=marks,
        seconds=lane.seconds,
    )


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


def story_entry(record: Record) -> StoryEntry:
    """One thing that happened to the subject of a story."""
    return StoryEntry(record.ref, ms(record.at_ns), record.node, record.kind, sentence(record))


def change_answer(change: Change) -> ChangeAnswer:
    """One field that is otherwise at another moment."""
    return ChangeAnswer(change.path, change.subject, change.before, change.after, change.text)


def why_answer(question: str, answer: Answer, trust: Trust) -> WhyAnswer:
    """An answer with its reasons, and whether the log it comes from can be trusted."""
    chain = [
        WhyLink(each.record.ref, ms(each.record.at_ns), each.record.node, each.text)
        for each in answer.chain
    ]
    cost = CostAnswer(round(answer.cost.seconds, 3), answer.cost.workers, answer.cost.text)
    findings = answer.findings[:FINDINGS]
    trusted = trust_answer(trust, SHORT_FINDINGS)
    return WhyAnswer(question, answer.verdict, answer.text, chain, cost, findings, trusted)
