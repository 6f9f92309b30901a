"""One lane per worker: its activities as spans, its events as marks.

The spans of a lane follow each other without overlap (`worker_time`), so they add up to the time
that the worker was present. The coordinator's facts give the coarse picture (idle, training,
recovering, lost). If a window holds few enough events of the workers, those give the fine one: the
parts of each step and what the worker waited for; then `seconds` has the sum of each kind.

A lane never has more than about `MAX_SPANS` spans. If there are more, the window is divided into
equal slices, and in each slice the spans of one kind are merged: the sums do not change, and
`count` is the number of merged spans.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from strata.core.events import COORDINATOR
from strata.core.generations.generation_members import GenerationChanged
from strata.core.record.event_codec import CODEC
from strata.core.state import Cluster
from strata.store.event_store import Window
from strata.timeline.answers import LaneAnswer, LaneMark, LanesAnswer, LaneSpan, SpanKind
from strata.timeline.lanes.worker_periods import FACTS, Life, Lives
from strata.timeline.lanes.worker_time import EVENTS, Activity, activities, leave_out_lost_time
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record, ms
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence

MAX_SPANS = 500
MAX_MARKS = 200
FINE_EVENTS = 100_000
AROUND_NS = 60 * SECOND_NS
"""Margin read on both sides of a window, to find the other end of what starts or ends inside."""

MARKS = frozenset(kind.__name__ for kind in CODEC.kinds.values() if kind.lane_mark)


class Span(Struct):
    """A span in nanoseconds, before it is rounded for the answer; `to_ns` is None if still open."""

    from_ns: int
    to_ns: int | None
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None = None
    count: int = 1


def lanes(
    timeline: Timeline,
    from_ns: int,
    to_ns: int,
    task: str = "",
    limit: int = 200,
    after: str = "",
    fine: bool = True,
    node: str = "",
) -> LanesAnswer:
    """The lanes of a window, by task and rank; `after` is the last node of the previous page."""
    low_ns, high_ns = from_ns - AROUND_NS, to_ns + AROUND_NS
    fine = fine and _events_within(timeline, low_ns, high_ns) <= FINE_EVENTS
    if not fine:
        low_ns, high_ns = from_ns, to_ns
    drawing = _Drawing(state_at(timeline, timeline.position_at(low_ns)).state, low_ns)
    facts = {*FACTS, *MARKS, GenerationChanged.__name__}
    for record in timeline.records(low_ns, high_ns, node=COORDINATOR, kinds=facts):
        drawing.fact(record, from_ns <= record.at_ns < to_ns)
    leave_out_lost_time(timeline, drawing.lives)
    chosen = sorted(
        (
            lane
            for lane in drawing.present(from_ns, to_ns)
            if (not task or lane.task == task) and (not node or lane.node == node)
        ),
        key=lambda lane: (lane.task, len(lane.node), lane.node),
    )
    if after:
        names = [lane.node for lane in chosen]
        chosen = chosen[names.index(after) + 1 :] if after in names else []
    page = chosen[:limit]
    own = defaultdict[str, list[Record]](list)
    if fine:
        wanted = {lane.node for lane in page}
        for record in timeline.records(low_ns, high_ns):
            if record.node in wanted:
                own[record.node].append(record)
    until_ns = min(high_ns, timeline.extent().to_ns + 1)
    for lane in page:
        did = activities(drawing.lives.of[lane.node], _timed(own[lane.node]), until_ns)
        spans = _spans(did, from_ns, to_ns, until_ns)
        lane.seconds = _seconds(spans, min(to_ns, until_ns)) if fine else None
        lane.spans = [_shown(each) for each in merged(spans, from_ns, min(to_ns, until_ns))]
        lane.label = f"rank {lane.rank}" if lane.rank >= 0 else lane.node
        for record in own[lane.node]:
            if record.kind in MARKS and from_ns <= record.at_ns < to_ns:
                drawing.mark(record, lane.node)
    more = len(chosen) > len(page)
    return LanesAnswer(lanes=page, truncated=more, next=page[-1].node if more else "", fine=fine)


def _shown(span: Span) -> LaneSpan:
    return LaneSpan(
        from_ms=ms(span.from_ns),
        to_ms=None if span.to_ns is None else ms(span.to_ns),
        kind=span.kind,
        label=span.label,
        ref=span.ref,
        ok=span.ok,
        count=span.count,
    )


def _events_within(timeline: Timeline, from_ns: int, to_ns: int) -> int:
    """About how many events a window holds, by batch headers; counts only to `FINE_EVENTS`."""
    found = 0
    for header in timeline.reader.headers(Window(since_ns=from_ns, until_ns=to_ns)):
        found += header.count
        if found > FINE_EVENTS:
            break
    return found


def _timed(records: Iterable[Record]) -> Iterator[Record]:
    return (record for record in records if record.kind in EVENTS)


class _Drawing:
    """Each worker's lane without spans, and its life, from the coordinator's facts."""

    def __init__(self, state: Cluster, at_ns: int) -> None:
        self.lives = Lives(state, at_ns)
        self._lanes: dict[str, LaneAnswer] = {
            worker.id: LaneAnswer(node=worker.id, task=worker.task, rank=worker.rank)
            for worker in state.workers.values()
        }

    def _lane(self, node: str) -> LaneAnswer:
        return self._lanes.setdefault(node, LaneAnswer(node=node))

    def fact(self, record: Record, shown: bool) -> None:
        """Apply a fact; `shown` if it lies in the window and may be a mark."""
        body = record.event.body
        if isinstance(body, GenerationChanged):
            for rank, worker in body.seats:
                lane = self._lane(worker)
                lane.task, lane.rank = body.task or lane.task, rank
        self.lives.feed(record)
        if shown and record.kind in MARKS:
            self.mark(record, record.text("worker"))

    def mark(self, record: Record, node: str) -> None:
        """Add a mark to a worker's lane."""
        marks = self._lane(node).marks
        if len(marks) < MAX_MARKS:
            marks.append(
                LaneMark(
                    at_ms=ms(record.at_ns),
                    kind=record.kind,
                    label=sentence(record),
                    ref=record.ref,
                )
            )

    def present(self, from_ns: int, to_ns: int) -> Iterator[LaneAnswer]:
        """The lanes of workers that were present in a window."""
        for node, life in self.lives.of.items():
            if _is_present(life, from_ns, to_ns):
                lane = self._lane(node)
                lane.task = life.task or lane.task
                yield lane


def _is_present(life: Life, from_ns: int, to_ns: int) -> bool:
    """Whether a worker was present in a window, or lost in it."""
    before = [turn for turn in life.turns if turn.at_ns <= from_ns][-1:]
    within = [turn for turn in life.turns if from_ns < turn.at_ns < to_ns]
    return any(turn.kind is not None for turn in before + within)


def _spans(did: Iterable[Activity], from_ns: int, to_ns: int, until_ns: int) -> list[Span]:
    """Activities cut to a window; an activity that reaches the end of the log has no end."""
    found: list[Span] = []
    for each in did:
        begin_ns, end_ns = max(each.from_ns, from_ns), min(each.to_ns, to_ns)
        if begin_ns < end_ns:
            open_ended = each.to_ns >= until_ns and until_ns <= to_ns
            end = None if open_ended else end_ns
            found.append(
                Span(
                    from_ns=begin_ns,
                    to_ns=end,
                    kind=each.kind,
                    label=each.label,
                    ref=each.ref,
                    ok=each.ok,
                )
            )
    return found


def _seconds(spans: Iterable[Span], until_ns: int) -> dict[SpanKind, float]:
    """The total time of each kind."""
    found = defaultdict[SpanKind, int](int)
    for span in spans:
        found[span.kind] += _end_ns(span, until_ns) - span.from_ns
    return {kind: spent_ns / SECOND_NS for kind, spent_ns in found.items()}


def _end_ns(span: Span, until_ns: int) -> int:
    return until_ns if span.to_ns is None else span.to_ns


def merged(spans: list[Span], from_ns: int, to_ns: int) -> list[Span]:
    """At most about `MAX_SPANS` spans; more are merged by kind in each slice of the window."""
    if len(spans) <= MAX_SPANS:
        return spans
    slices = max(MAX_SPANS // len({span.kind for span in spans}), 1)
    width_ns = max(-(-(to_ns - from_ns) // slices), 1)
    pooled: dict[int, dict[SpanKind, tuple[int, Span]]] = defaultdict(dict)
    for span in spans:
        at_ns, end_ns = span.from_ns, _end_ns(span, to_ns)
        while at_ns < end_ns:
            number = (at_ns - from_ns) // width_ns
            stop_ns = min(end_ns, from_ns + (number + 1) * width_ns)
            _pool(pooled[number], span, stop_ns - at_ns, at_ns == span.from_ns)
            at_ns = stop_ns
    found: list[Span] = []
    for number, kinds in sorted(pooled.items()):
        at_ns = max(from_ns + number * width_ns, spans[0].from_ns)
        for spent_ns, span in kinds.values():
            before = found[-1] if found else None
            if not span.count and before and (before.kind, before.to_ns) == (span.kind, at_ns):
                before.to_ns = at_ns + spent_ns
            else:
                count = max(span.count, 1)
                found.append(replace(span, from_ns=at_ns, to_ns=at_ns + spent_ns, count=count))
            at_ns += spent_ns
    if spans[-1].to_ns is None and found[-1].kind == spans[-1].kind:
        found[-1].to_ns = None
    return found


def _pool(kinds: dict[SpanKind, tuple[int, Span]], span: Span, spent_ns: int, begins: bool) -> None:
    """Add time of a span to its kind in a slice; the label and ref are the first span's.

    A span that began in an earlier slice is not counted again.
    """
    before_ns, first = kinds.get(span.kind, (0, None))
    if first is None:
        first = replace(span, count=int(begins))
    elif begins:
        first = replace(first, count=first.count + span.count, ok=first.ok and span.ok)
    kinds[span.kind] = (before_ns + spent_ns, first)
