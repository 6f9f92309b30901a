"""The front desk: every question that REST and the terminal ask, with bounded answers."""

import threading
import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from strata.core.events import COORDINATOR
from strata.errors import InvalidArgument, LimitExceeded
from strata.timeline import activity, causes, density, lanes, states
from strata.timeline.answers import (
    AsOf,
    BucketAnswer,
    DensityAnswer,
    DiffAnswer,
    EventAnswer,
    EventDetail,
    LanesAnswer,
    MomentAnswer,
    ParamAnswer,
    QuestionAnswer,
    SeekAnswer,
    SpanAnswer,
    SpanNode,
    StoryAnswer,
    TaskMoment,
    WhyAnswer,
)
from strata.timeline.comparing import changes
from strata.timeline.pacing import Paced
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.seeking import parse_predicate, seek
from strata.timeline.shaping import (
    SHORT_FINDINGS,
    change_answer,
    concerns,
    decode_cursor,
    encode_cursor,
    event_answer,
    lane_answer,
    links,
    ms,
    node_answer,
    ns,
    operation_answer,
    story_entry,
    trust_answer,
    why_answer,
)
from strata.timeline.story import parse_subject, story
from strata.timeline.timeline import Timeline
from strata.timeline.trust import Trust, examine
from strata.timeline.why.case import Case
from strata.timeline.why.questions import QUESTIONS, ask, why_event
from strata.timeline.words import sentence

NODES = 200
LOOKED_AT = 200_000
TRUST_FRESH_S = 10.0
DIFF_CHANGES = 500
NEWEST_NS = 60 * SECOND_NS


class Desk:
    """Answers questions about one timeline, from any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._lock = threading.Lock()
        self._trust: Trust | None = None
        self._examined_s = 0.0
        self._spans = Paced[SpanAnswer]()
        self._densities = Paced[DensityAnswer]()

    def trust(self) -> Trust:
        """Whether the log can be trusted; of a live log as it was moments ago."""
        with self._lock:
            age_s = time.monotonic() - self._examined_s
            if self._trust is None or (self.timeline.live and age_s > TRUST_FRESH_S):
                self._trust = examine(self.timeline)
                self._examined_s = time.monotonic()
            return self._trust

    def span(self) -> SpanAnswer:
        """The whole timeline; of a live one as it was moments ago."""
        return self._spans.get("", self._counted, self.timeline.live)

    def _counted(self) -> SpanAnswer:
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
        """How much happened when; of a window up to the present as it was moments ago."""
        window = self.window(from_ms, to_ms)
        grows = self.timeline.live and window[1] > self.timeline.extent().to_ns - NEWEST_NS
        asked = (window[0], None if grows else window[1], buckets, task)

        def count() -> DensityAnswer:
            found = density.density(self.timeline, *window, buckets, task)
            shown = [BucketAnswer(**msgspec.structs.asdict(bucket)) for bucket in found.buckets]
            return DensityAnswer(ms(found.from_ns), ms(found.to_ns), shown)

        return self._densities.get(asked, count, grows)

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

    def facts_before(
        self, at_ns: int, kinds: frozenset[str], limit: int, since_ns: int | None = None
    ) -> list[Record]:
        """The coordinator's newest facts of some kinds, as of a moment, newest first."""
        found = self.timeline.backwards(at_ns + 1, since_ns, node=COORDINATOR, kinds=kinds)
        return list(islice(found, limit))

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
        recent = activity.recent_before(self.timeline, at_ns, past.state)
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

    def at(
        self,
        time_ms: float | None = None,
        position: int | None = None,
        step: int | None = None,
        task: str = "",
    ) -> MomentAnswer:
        """The same, without what it was made of."""
        return self.moment(time_ms, position, step, task)[0]

    def story(self, subject: str, limit: int = 100, cursor: str = "") -> StoryAnswer:
        """Everything about one thing, across nodes, a page at a time."""
        about = parse_subject(subject)
        after = decode_cursor(cursor)
        found: list[Record] = []
        for record in story(self.timeline, about, after[0] if after else None):
            if after and record.key <= after:
                continue
            if len(found) == limit:
                return StoryAnswer(
                    subject, [story_entry(each) for each in found], encode_cursor(found[-1])
                )
            found.append(record)
        return StoryAnswer(subject, [story_entry(each) for each in found])

    def seek(
        self,
        predicate: str,
        from_ms: float | None,
        direction: str = "next",
        position: int | None = None,
    ) -> SeekAnswer:
        """The next or previous moment where something holds, from a time or a position on."""
        extent = self.timeline.extent()
        forward = direction == "next"
        if from_ms is None and position is None:
            from_ns = extent.from_ns - 1 if forward else extent.to_ns + 1
        else:
            at_ns = None if from_ms is None else ns(from_ms)
            from_ns, resolved = states.resolve(self.timeline, at_ns, position)
            position = None if position is None else resolved
        record = seek(self.timeline, parse_predicate(predicate), from_ns, forward, position)
        return SeekAnswer(ms(record.at_ns), record.ref, sentence(record))

    def diff(self, a_ms: float, b_ms: float) -> DiffAnswer:
        """What is otherwise at one moment than at another."""
        before, after = (
            states.state_at(self.timeline, self.timeline.position_at(ns(moment))).state
            for moment in (a_ms, b_ms)
        )
        found = list(islice(changes(before, after), DIFF_CHANGES + 1))
        shown = [change_answer(change) for change in found[:DIFF_CHANGES]]
        return DiffAnswer(a_ms, b_ms, shown, len(found) > DIFF_CHANGES)

    def why(
        self, question: str = "", ref: str = "", params: dict[str, str] | None = None
    ) -> WhyAnswer:
        """Why: one of the sixteen questions, or of an event."""
        if bool(question) == bool(ref):
            raise InvalidArgument("ask a question, or about an event", hint="give one of the two")
        if ref and params:
            raise InvalidArgument(
                f"why of an event has no parameter {min(params)!r}", hint="give `ref` alone"
            )
        case = Case(self.timeline, self.trust())
        if ref:
            question, answer = why_event(case, self.timeline.record(ref))
        else:
            answer = ask(case, question, params or {})
        return why_answer(question, answer, case.trust)

    def questions(self) -> list[QuestionAnswer]:
        """What can be asked."""
        return [
            QuestionAnswer(
                question.name,
                question.text,
                [ParamAnswer(each.name, each.kind, each.required) for each in question.params],
            )
            for question in QUESTIONS.values()
        ]

    def export(
        self, format: str, from_ms: float | None, to_ms: float | None, most: int | None = None
    ) -> Iterator[bytes]:
        """A window as a file, in pieces; more than `most` events are refused."""
        # Imported here: Arrow takes longer to import than most questions to answer.
        from strata.timeline.exporting import json_lines, parquet_file
        from strata.timeline.perfetto import trace

        from_ns, to_ns = self.window(from_ms, to_ms)
        records = self.timeline.records(from_ns, to_ns)
        if most is not None:
            held = list(islice(records, most + 1))
            if len(held) > most:
                raise LimitExceeded(
                    f"more than {most:,} events are in that window",
                    hint="choose a shorter one, or use strata export --data",
                )
            records = iter(held)
        if format == "perfetto":
            return trace(self.timeline, from_ns, to_ns)
        if format == "jsonl":
            return json_lines(records)
        return iter([parquet_file(records)])
