"""Parts of an answer, log searches that all questions share, and the meaning of missing events.

A verdict has four values. `yes` and `no` answer the question's own yes-or-no. `open`: not decided
yet at the end of the log. `unknown`: the log has a hole there, so a missing record proves nothing.
A missing event can also mean that the worker was down, or that it does not record that kind.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from strata.core.events import COORDINATOR
from strata.core.rule_settings import Timeouts
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.errors import NotFound
from strata.timeline.answers import Cost, Verdict, WhyAnswer, WhyLink
from strata.timeline.read.causes import causes_of
from strata.timeline.read.log_trust import Trust
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record, ms
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence

CHAIN = 12
FINDINGS = 50
TRUST_FINDINGS = 20


class Link(Struct, frozen=True):
    """An event of a chain, with a sentence on its role in the answer."""

    record: Record
    text: str


class Answer(Struct, frozen=True):
    """An answer with its chain of causes and its cost; `findings` are further observations."""

    verdict: Verdict
    text: str
    chain: list[Link] = field(default_factory=list)
    cost: Cost = Cost()
    findings: list[str] = field(default_factory=list)

    def shown(self, question: str, trust: Trust) -> WhyAnswer:
        """The answer as the API shows it: events by reference, lists cut."""
        chain = [
            WhyLink(
                ref=each.record.ref,
                at_ms=ms(each.record.at_ns),
                node=each.record.node,
                text=each.text,
            )
            for each in self.chain
        ]
        return WhyAnswer(
            question=question,
            verdict=self.verdict,
            answer=self.text,
            chain=chain,
            cost=msgspec.structs.replace(self.cost, seconds=round(self.cost.seconds, 3)),
            findings=self.findings[:FINDINGS],
            trust=trust.answer(TRUST_FINDINGS),
        )


class LogSearch:
    """A timeline and its log check, with searches. A time that is not given is the log's end."""

    def __init__(self, timeline: Timeline, trust: Trust) -> None:
        self.timeline = timeline
        self.trust = trust
        self.extent = timeline.extent()

    def first(
        self,
        kinds: Iterable[str],
        since_ns: int,
        until_ns: int | None = None,
        node: str | None = COORDINATOR,
        **fields: object,
    ) -> Record | None:
        """The first record of some kinds with these field values."""
        found = self.timeline.records(since_ns, until_ns, node=node, kinds=kinds)
        return next((record for record in found if matches(record, fields)), None)

    def last(
        self,
        kinds: Iterable[str],
        until_ns: int | None = None,
        since_ns: int | None = None,
        node: str | None = COORDINATOR,
        **fields: object,
    ) -> Record | None:
        """The last record of some kinds with these field values."""
        until_ns = self.extent.to_ns + 1 if until_ns is None else until_ns
        found = self.timeline.backwards(until_ns, since_ns, node=node, kinds=kinds)
        return next((record for record in found if matches(record, fields)), None)

    def all(
        self,
        kinds: Iterable[str],
        since_ns: int | None = None,
        until_ns: int | None = None,
        node: str | None = COORDINATOR,
        **fields: object,
    ) -> list[Record]:
        """All records of some kinds with these field values."""
        found = self.timeline.records(since_ns, until_ns, node=node, kinds=kinds)
        return [record for record in found if matches(record, fields)]

    def until(self, time_ms: float | None) -> int:
        """The end (exclusive) of a search that includes a moment, given in Unix milliseconds.

        A float in milliseconds is exact to a microsecond.
        """
        return self.extent.to_ns + 1 if time_ms is None else int(time_ms * 1e6) + 1_000

    def require(self, found: Record | None, what: str) -> Record:
        """The record that a question is about; raises if the search found none."""
        if found is None:
            raise NotFound(
                f"the log has no {what}",
                hint="check the name and the time; `strata timeline` shows the run",
            )
        return found

    def holes(self, node: str, from_ns: int, to_ns: int) -> list[str]:
        """Why missing records of a node in a span prove nothing; empty if they do."""
        return [hole.reason for hole in self.trust.holes_of(node, from_ns, to_ns)]

    def ancestry(self, record: Record) -> list[Link]:
        """The chain of causes of a record, oldest first, itself last; one cause per event."""
        chain = [Link(record, sentence(record))]
        while len(chain) < CHAIN:
            causes = causes_of(self.timeline, chain[0].record)
            if not causes:
                break
            chain.insert(0, Link(causes[0], sentence(causes[0])))
        return chain

    def exit_of(self, worker: str, incarnation: int) -> Record | None:
        """The exit of the process that ran an incarnation, as its agent recorded it.

        A registration is accepted only from the newest start of a worker, so an incarnation belongs
        to the last start that was ordered before it registered. An exit names its start.
        """
        joined = self.last({"WorkerRegistered"}, worker=worker, incarnation=incarnation)
        start = self._start_at(worker, joined) if joined is not None else 0
        if joined is None or not start:
            return None
        return self.first({"WorkerExited"}, joined.at_ns, worker=worker, start=start)

    def _start_at(self, worker: str, joined: Record) -> int:
        """The number of the last start ordered before a registration; 0 if there was none."""
        for record in self.timeline.backwards(
            joined.at_ns + 1, node=COORDINATOR, kinds={TaskPlaced.__name__}
        ):
            body = record.event.body
            if isinstance(body, TaskPlaced) and record.event.seq < joined.event.seq:
                placement = body.placements.get(worker)
                if placement is not None:
                    return placement.start
        return 0

    def timeouts_at(self, at_ns: int) -> Timeouts | None:
        """The timeouts at a moment; None if the log does not have them."""
        state = state_at(self.timeline, self.timeline.position_at(at_ns)).state
        return msgspec.convert(state.timeouts, Timeouts) if state.timeouts else None

    def host_of(self, worker: str, before_ns: int) -> str:
        """The host that a worker ran on."""
        joined = self.last({"WorkerRegistered"}, before_ns + 1, worker=worker)
        return joined.text("hostname") if joined is not None else ""


def matches(record: Record, fields: dict[str, object]) -> bool:
    """Whether a record has these field values; empty values match anything."""
    return all(
        wanted in ("", None) or str(record.get(name)) == str(wanted)
        for name, wanted in fields.items()
    )


def in_order(chain: Iterable[Link]) -> list[Link]:
    """A chain by time, each event once; of two texts for one event the later one."""
    found = {each.record.key: each for each in chain}
    return sorted(found.values(), key=lambda each: each.record.key)


def link(record: Record, text: str = "") -> Link:
    """A link with a text, by default the record's sentence."""
    return Link(record, text or sentence(record))


def lost_s(from_ns: int, to_ns: int) -> float:
    """The length of a span in seconds, never negative."""
    return max(to_ns - from_ns, 0) / SECOND_NS


SLACK_NS = SECOND_NS // 10
"""How much the aligned clocks of two workers may differ."""

ABSENT = "unknown: not recorded"
"""The start of an answer that would need events that the run does not record."""


def records_kind(search: LogSearch, node: str, kinds: set[str]) -> bool:
    """Whether a node records some kinds at all, so that a missing event means something."""
    tallies = search.timeline.tallies()
    return any(tally.node == node and not kinds.isdisjoint(tally.kinds) for tally in tallies)


def down(search: LogSearch, worker: str, from_ns: int, until_ns: int) -> Record | None:
    """The end of a worker that was down at a moment, or ended before `until_ns`; else None."""
    ends = {"WorkerLost", "WorkerExited"}
    before = search.last({*ends, "WorkerRegistered"}, from_ns, worker=worker)
    if before is not None and before.kind in ends:
        return before
    after = search.first(ends, from_ns, until_ns, worker=worker)
    if after is not None:
        return after
    ended = search.last({"RunEnded", "RunStarted"}, until_ns, node=worker)
    return ended if ended is not None and ended.kind == "RunEnded" else None


def alive_between(search: LogSearch, worker: str, from_ns: int, to_ns: int) -> bool:
    """Whether a process recorded an event between two moments.

    If so, a connection that broke at the first moment did not break because the process ended.
    """
    before = next(search.timeline.backwards(from_ns, node=worker), None)
    after = search.timeline.records(from_ns + SLACK_NS, to_ns, node=worker)
    return before is not None and any(r.incarnation == before.incarnation for r in after)


def connection_before(
    search: LogSearch, node: str, peer: str, until_ns: int, purpose: str = "messages"
) -> Record | None:
    """The last event about a connection, recorded by the worker or else by the peer."""
    for one, other in ((node, peer), (peer, node)):
        for record in search.timeline.backwards(until_ns, node=one, kinds={"ConnectionChanged"}):
            if record.text("peer") == other and record.get("purpose") in ("", purpose):
                return record
    return None
