"""Queries on one timeline, for REST and the terminal. Every answer is bounded."""

import threading
import time
from collections.abc import Iterator
from itertools import islice

from strata.core.events import COORDINATOR
from strata.core.workers.worker_facts import MediaLogged
from strata.errors import InvalidArgument, LimitExceeded
from strata.timeline.answer_cache import Paced
from strata.timeline.answers import (
    AsOf,
    DensityAnswer,
    DiffAnswer,
    EventAnswer,
    EventDetail,
    LanesAnswer,
    MediaItem,
    MomentAnswer,
    QuestionAnswer,
    SeekAnswer,
    SpanAnswer,
    SpanNode,
    StoryAnswer,
    TaskMoment,
    WhyAnswer,
    event_answer,
    link_answer,
    story_entry,
)
from strata.timeline.curves.curve_reader import CurveReader
from strata.timeline.forward.logged_pages import LoggedPages
from strata.timeline.goodput.goodput_answers import GoodputAnswer
from strata.timeline.goodput.prices import Prices
from strata.timeline.goodput.task_goodput import goodput, newest_task
from strata.timeline.lanes import density, worker_lanes
from strata.timeline.read import causes, logged_items, node_activity, past_states
from strata.timeline.read.differences import changes
from strata.timeline.read.log_trust import Trust, examine
from strata.timeline.read.predicates import parse_predicate, seek
from strata.timeline.read.records import (
    SECOND_NS,
    Record,
    decode_cursor,
    encode_cursor,
    ms,
    ns,
)
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence
from strata.timeline.read.stories import parse_subject, story
from strata.timeline.stack_answers import StacksAnswer
from strata.timeline.why.collected_stacks import collected, newest
from strata.timeline.why.investigation import TRUST_FINDINGS, LogSearch
from strata.timeline.why.questions import QUESTIONS, ask, why_event

NODES = 200
LOOKED_AT = 200_000
TRUST_FRESH_S = 10.0
DIFF_CHANGES = 500
NEWEST_NS = 60 * SECOND_NS
GOODPUT_SHARE = 10
GOODPUT_MOST_S = 3_600.0
"""The ledger reads all events of a task: that may take a tenth of one thread's time."""


class TimelineQueries:
    """Answers queries about one timeline; may be called from any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.curves = CurveReader(timeline)
        self.logged = LoggedPages(timeline)
        self._lock = threading.Lock()
        self._trust: Trust | None = None
        self._examined_s = 0.0
        self._spans = Paced[SpanAnswer]()
        self._densities = Paced[DensityAnswer]()
        self._goodputs = Paced[GoodputAnswer](GOODPUT_SHARE, GOODPUT_MOST_S)

    def trust(self) -> Trust:
        """The result of the log check; up to 10 s old for a live log."""
        with self._lock:
            age_s = time.monotonic() - self._examined_s
            if self._trust is None or (self.timeline.live and age_s > TRUST_FRESH_S):
                self._trust = examine(self.timeline)
                self._examined_s = time.monotonic()
            return self._trust

    def span(self) -> SpanAnswer:
        """The extent of the timeline; a live one may be cached for a moment."""
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
        nodes = [SpanNode(id=COORDINATOR, role="coordinator", events=facts, gaps=0)]
        nodes += [
            SpanNode(id=node, role="worker", events=count, gaps=gaps[node])
            for node, count in events.items()
        ]
        return SpanAnswer(
            from_ms=ms(extent.from_ns),
            to_ms=ms(extent.to_ns),
            first_position=extent.first,
            last_position=extent.last,
            facts=facts,
            worker_events=sum(events.values()),
            nodes=nodes[:NODES],
            nodes_total=len(nodes),
            trust=self.trust().answer(TRUST_FINDINGS),
            live=timeline.live,
        )

    def window(self, from_ms: float | None, to_ms: float | None) -> tuple[int, int]:
        """A window in nanoseconds; a side that is not given is the end of the timeline."""
        extent = self.timeline.extent()
        from_ns = extent.from_ns if from_ms is None else ns(from_ms)
        to_ns = extent.to_ns + 1 if to_ms is None else ns(to_ms)
        if to_ns <= from_ns:
            raise InvalidArgument(
                "the window ends before it begins", hint="swap its start and its end"
            )
        return from_ns, to_ns

    def density(
        self, from_ms: float | None, to_ms: float | None, buckets: int = 200, task: str = ""
    ) -> DensityAnswer:
        """Event counts per slice; a window that reaches the present may be cached for a moment."""
        window = self.window(from_ms, to_ms)
        grows = self.timeline.live and window[1] > self.timeline.extent().to_ns - NEWEST_NS
        asked = (window[0], None if grows else window[1], buckets, task)

        def count() -> DensityAnswer:
            return density.density(self.timeline, *window, buckets, task)

        return self._densities.get(asked, count, grows)

    def lanes(
        self,
        from_ms: float | None,
        to_ms: float | None,
        task: str = "",
        limit: int = 200,
        cursor: str = "",
        node: str = "",
    ) -> LanesAnswer:
        """A page of worker lanes."""
        window = self.window(from_ms, to_ms)
        return worker_lanes.lanes(
            self.timeline, *window, task, min(limit, NODES), cursor, node=node
        )

    def goodput(self, task: str = "", prices: Prices | None = None) -> GoodputAnswer:
        """The goodput of a task, by default the newest; of a live log it may be cached."""
        asked = prices or Prices()
        task = task or newest_task(self.timeline)
        return self._goodputs.get(
            (task, asked.text), lambda: goodput(self.timeline, task, asked), self.timeline.live
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
        """A page of events in order, and the cursor of the next page."""
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
            if _is_about(record, task, subject):
                found.append(record)
                if len(found) == limit:
                    break
        else:
            # The end of the window, or of the records that one call reads.
            more = next(records, None) is not None
            return [event_answer(each) for each in found], encode_cursor(last) if more else ""
        return [event_answer(each) for each in found], encode_cursor(last)

    def newest_events(
        self,
        from_ms: float | None = None,
        to_ms: float | None = None,
        node: str = "",
        kind: str = "",
        task: str = "",
        subject: str = "",
        limit: int = 100,
    ) -> list[EventAnswer]:
        """The newest events of a window, newest first."""
        from_ns, to_ns = self.window(from_ms, to_ms)
        kinds = {each for each in kind.split(",") if each}
        records = self.timeline.backwards(to_ns, from_ns, node=node or None, kinds=kinds)
        found = (each for each in islice(records, LOOKED_AT) if _is_about(each, task, subject))
        return [event_answer(each) for each in islice(found, limit)]

    def facts_before(
        self, at_ns: int, kinds: frozenset[str], limit: int, since_ns: int | None = None
    ) -> list[Record]:
        """The coordinator's facts of some kinds up to a moment, newest first."""
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
            operation=operation.answer() if operation else None,
            causes=[link_answer(each) for each in causes.causes_of(self.timeline, record)],
            effects=[link_answer(each) for each in causes.effects_of(self.timeline, record)],
            wall_ms=ms(record.event.wall_ns),
        )

    def moment(
        self,
        time_ms: float | None = None,
        position: int | None = None,
        step: int | None = None,
        task: str = "",
    ) -> tuple[MomentAnswer, past_states.Past, node_activity.Recent]:
        """The state at a moment, what each worker was doing, and what both were derived from."""
        at_ns = None if time_ms is None else ns(time_ms)
        at_ns, position = past_states.resolve(self.timeline, at_ns, position, step, task)
        past = past_states.state_at(self.timeline, position)
        recent = node_activity.recent_before(self.timeline, at_ns, past.state)
        nodes = node_activity.nodes_at(past.state, at_ns, recent)
        answer = MomentAnswer(
            as_of=AsOf(time_ms=ms(at_ns), position=past.position, live=False, doubt=past.doubt),
            tasks=[
                TaskMoment(
                    id=each.id,
                    status=each.state,
                    reason=each.reason,
                    generation=each.generation,
                    phase=each.phase,
                    committed_steps=each.committed,
                )
                for each in list(past.state.tasks.values())[-NODES:]
            ],
            nodes=nodes[:NODES],
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
        """The state at a moment, and what each worker was doing."""
        return self.moment(time_ms, position, step, task)[0]

    def story(self, subject: str, limit: int = 100, cursor: str = "") -> StoryAnswer:
        """A page of the events about one subject."""
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
        """The next or previous moment at which a predicate holds, from a time or a position."""
        extent = self.timeline.extent()
        forward = direction == "next"
        if from_ms is None and position is None:
            from_ns = extent.from_ns - 1 if forward else extent.to_ns + 1
        else:
            at_ns = None if from_ms is None else ns(from_ms)
            from_ns, resolved = past_states.resolve(self.timeline, at_ns, position)
            position = None if position is None else resolved
        record = seek(self.timeline, parse_predicate(predicate), from_ns, forward, position)
        return SeekAnswer(ms(record.at_ns), record.ref, sentence(record))

    def diff(self, a_ms: float, b_ms: float) -> DiffAnswer:
        """The changes of the state between two moments."""
        before, after = (
            past_states.state_at(self.timeline, self.timeline.position_at(ns(moment))).state
            for moment in (a_ms, b_ms)
        )
        found = list(islice(changes(before, after), DIFF_CHANGES + 1))
        more = len(found) > DIFF_CHANGES
        return DiffAnswer(a_ms=a_ms, b_ms=b_ms, changes=found[:DIFF_CHANGES], truncated=more)

    def why(
        self, question: str = "", ref: str = "", params: dict[str, str] | None = None
    ) -> WhyAnswer:
        """The answer to a question, or to the question that fits an event."""
        if bool(question) == bool(ref):
            raise InvalidArgument(
                "why needs either a question or an event reference", hint="give one of the two"
            )
        if ref and params:
            raise InvalidArgument(
                f"why has no parameter {min(params)!r} for an event", hint="give `ref` alone"
            )
        search = LogSearch(self.timeline, self.trust())
        if ref:
            question, answer = why_event(search, self.timeline.record(ref))
        else:
            answer = ask(search, question, params or {})
        return answer.shown(question, search.trust)

    def media(
        self,
        wanted: logged_items.Wanted,
        limit: int = 100,
        cursor: str = "",
    ) -> tuple[list[MediaItem], str]:
        """A page of logged images, texts and histograms, and the cursor of the next page."""
        return logged_items.page(self.timeline, wanted, limit, cursor)

    def media_content(self, ref: str) -> MediaLogged:
        """A logged image, text or histogram."""
        return logged_items.content(self.timeline.record(ref))

    def stacks(self, task: str, time_ms: float | None = None) -> StacksAnswer | None:
        """The newest collection of stacks of a task, or the newest before a moment; None if none is
        recorded."""
        until_ns = self.timeline.extent().to_ns + 1 if time_ms is None else ns(time_ms)
        begun = newest(self.timeline, task, until_ns)
        return None if begun is None else collected(self.timeline, begun).answer()

    def questions(self) -> list[QuestionAnswer]:
        """The questions that `why` answers."""
        return [question.shown() for question in QUESTIONS.values()]

    def export(
        self, format: str, from_ms: float | None, to_ms: float | None, most: int | None = None
    ) -> Iterator[bytes]:
        """A window as a file, in pieces; raises for more than `most` events."""
        # Imported here: importing Arrow takes longer than most queries.
        from strata.timeline.export.event_files import json_lines, parquet_file
        from strata.timeline.export.perfetto import trace

        from_ns, to_ns = self.window(from_ms, to_ms)
        records = self.timeline.records(from_ns, to_ns)
        if most is not None:
            held = list(islice(records, most + 1))
            if len(held) > most:
                raise LimitExceeded(
                    f"the window holds more than {most:,} events",
                    hint="choose a shorter window, or use `strata export --data`",
                )
            records = iter(held)
        if format == "perfetto":
            return trace(self.timeline, from_ns, to_ns)
        if format == "jsonl":
            return json_lines(records)
        return iter([parquet_file(records)])


def _is_about(record: Record, task: str, subject: str) -> bool:
    """Whether a record belongs to a task and a subject; empty ones match anything."""
    if task and record.text("task") != task:
        return False
    return not subject or subject == record.node or subject in map(str, record.tags().values())
