"""One lane per worker: what its time went to, as spans, and what happened to it, as marks.

The spans of a lane follow each other without overlap (`worker_time`), so they add up to the time
for which the worker was there. The coordinator's facts give the coarse picture (idle, training,
recovering, lost). Where a window holds few enough of the workers' own events, those give the fine
one: the parts of each step and what the worker waited for; then `seconds` has the sum of each kind.

A lane never has more than about `MAX_SPANS` spans. If there are more, the window is cut into equal
slices, and in each slice the time of one kind is put together: the sums stay as they are, and
`count` says how many spans they were.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from strata.core.events import COORDINATOR
from strata.core.generations import GenerationChanged
from strata.core.state import Cluster
from strata.store.base import Window
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.timeline import Timeline
from strata.timeline.words import sentence
from strata.timeline.worker_lives import FACTS, Life, Lives, SpanKind
from strata.timeline.worker_time import EVENTS, Activity, activities

MAX_SPANS = 500
MAX_MARKS = 200
FINE_EVENTS = 100_000
AROUND_NS = 60 * SECOND_NS
"""How far around a window is looked for the ends of what began inside, and the other way round."""

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
    """One worker; `seconds` is how long it did what, where its own events were looked at."""

    node: str
    task: str = ""
    rank: int = -1
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    seconds: dict[SpanKind, float] | None = None


class Lanes(Struct, frozen=True):
    """Some lanes of a window; `fine` when the workers' own events are in them."""

    lanes: list[Lane]
    fine: bool
    truncated: bool
    next: str = ""


def lanes(
    timeline: Timeline,
    from_ns: int,
    to_ns: int,
    task: str = "",
    limit: int = 200,
    after: str = "",
    fine: bool = True,
) -> Lanes:
    """The lanes of a window, by task and rank; `after` is the last name of the page before."""
    low_ns, high_ns = from_ns - AROUND_NS, to_ns + AROUND_NS
    fine = fine and _events_within(timeline, low_ns, high_ns) <= FINE_EVENTS
    if not fine:
        low_ns, high_ns = from_ns, to_ns
    drawing = _Drawing(state_at(timeline, timeline.position_at(low_ns)).state, low_ns)
    facts = {*FACTS, *MARKS, GenerationChanged.__name__}
    for record in timeline.records(low_ns, high_ns, node=COORDINATOR, kinds=facts):
        drawing.fact(record, from_ns <= record.at_ns < to_ns)
    chosen = sorted(
        (lane for lane in drawing.present(from_ns, to_ns) if not task or lane.task == task),
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
        lane.spans = _spans(did, from_ns, to_ns, until_ns)
        lane.seconds = _seconds(lane.spans, min(to_ns, until_ns)) if fine else None
        lane.spans = merged(lane.spans, from_ns, min(to_ns, until_ns))
        for record in own[lane.node]:
            if record.kind in MARKS and from_ns <= record.at_ns < to_ns:
                drawing.mark(record, lane.node)
    more = len(chosen) > len(page)
    return Lanes(page, fine, more, page[-1].node if more else "")


def _events_within(timeline: Timeline, from_ns: int, to_ns: int) -> int:
    """About how many events a window holds, by headers; stops counting when it is enough."""
    found = 0
    for header in timeline.reader.headers(Window(from_ns, to_ns)):
        found += header.count
        if found > FINE_EVENTS:
            break
    return found


def _timed(records: Iterable[Record]) -> Iterator[Record]:
    return (record for record in records if record.kind in EVENTS)


class _Drawing:
    """What the facts say: each worker's lane, without spans, and its life."""

    def __init__(self, state: Cluster, at_ns: int) -> None:
        self.lives = Lives(state, at_ns)
        self._lanes: dict[str, Lane] = {
            worker.id: Lane(worker.id, worker.task, worker.rank)
            for worker in state.workers.values()
        }

    def fact(self, record: Record, shown: bool) -> None:
        """Takes in a fact; one that lies in the window may be a mark."""
        body = record.event.body
        if isinstance(body, GenerationChanged):
            for rank, worker in body.seats:
                lane = self._lanes.setdefault(worker, Lane(worker))
                lane.task, lane.rank = body.task or lane.task, rank
        self.lives.feed(record)
        if shown and record.kind in MARKS:
            worker = record.text("worker")
            self._lanes.setdefault(worker, Lane(worker))
            self.mark(record, worker)

    def mark(self, record: Record, node: str) -> None:
        """Notes what happened to a worker, and when."""
        lane = self._lanes[node]
        if len(lane.marks) < MAX_MARKS:
            lane.marks.append(Mark(record.at_ns, record.kind, sentence(record), record.ref))

    def present(self, from_ns: int, to_ns: int) -> Iterator[Lane]:
        """The lanes of workers that were there in a window."""
        for node, life in self.lives.of.items():
            if _is_present(life, from_ns, to_ns):
                lane = self._lanes.setdefault(node, Lane(node))
                lane.task = life.task or lane.task
                yield lane


def _is_present(life: Life, from_ns: int, to_ns: int) -> bool:
    """Whether a worker was there in a window, or lost in it."""
    before = [turn for turn in life.turns if turn.at_ns <= from_ns][-1:]
    within = [turn for turn in life.turns if from_ns < turn.at_ns < to_ns]
    return any(turn.kind is not None for turn in before + within)


def _spans(did: Iterable[Activity], from_ns: int, to_ns: int, until_ns: int) -> list[Span]:
    """Activities cut to a window; what goes on when the log ends has no end."""
    found: list[Span] = []
    for each in did:
        begin_ns, end_ns = max(each.from_ns, from_ns), min(each.to_ns, to_ns)
        if begin_ns < end_ns:
            open_ended = each.to_ns >= until_ns and until_ns <= to_ns
            end = None if open_ended else end_ns
            found.append(Span(begin_ns, end, each.kind, each.label, each.ref, each.ok))
    return found


def _seconds(spans: Iterable[Span], until_ns: int) -> dict[SpanKind, float]:
    """How long each kind took."""
    found = defaultdict[SpanKind, int](int)
    for span in spans:
        found[span.kind] += _end_ns(span, until_ns) - span.from_ns
    return {kind: spent_ns / SECOND_NS for kind, spent_ns in found.items()}


def _end_ns(span: Span, until_ns: int) -> int:
    return until_ns if span.to_ns is None else span.to_ns


def merged(spans: list[Span], from_ns: int, to_ns: int) -> list[Span]:
    """About `MAX_SPANS` spans at most; what is too fine to see is put together, kind by kind."""
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
    """Adds time of a span to that of its kind in a slice, for which the first span stands.

    A span that began in an earlier slice is not counted again.
    """
    before_ns, first = kinds.get(span.kind, (0, None))
    if first is None:
        first = replace(span, count=int(begins))
    elif begins:
        first = replace(first, count=first.count + span.count, ok=first.ok and span.ok)
    kinds[span.kind] = (before_ns + spent_ns, first)
