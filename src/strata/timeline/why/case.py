"""What every answer is made of, and what every question needs.

A verdict has four values. `yes` and `no` answer the question's own yes-or-no. `open` means that it
is not decided yet where the log ends. `unknown` means that the log has a hole just there: absence
of a record is never taken for absence of the act.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from strata.core.events import COORDINATOR
from strata.core.liveness import Patience
from strata.core.tasks import TaskPlaced
from strata.errors import NotFound
from strata.timeline.causes import causes_of
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.timeline import Timeline
from strata.timeline.trust import Trust, Verdict
from strata.timeline.words import sentence

CHAIN = 12
FAR_NS = 3_600 * SECOND_NS


class Link(Struct, frozen=True):
    """One link of a chain: an event, and what it has to do with the answer."""

    record: Record
    text: str


class Cost(Struct, frozen=True):
    """Seconds that so many workers lost, in words."""

    seconds: float = 0.0
    workers: int = 0
    text: str = "nothing measurable"


class Answer(Struct, frozen=True):
    """An answer in plain words, with its reasons; `findings` is what was noticed on the way."""

    verdict: Verdict
    text: str
    chain: list[Link] = field(default_factory=list)
    cost: Cost = Cost()
    findings: list[str] = field(default_factory=list)


class Case:
    """A timeline under examination. Times that are not given are the end of the log."""

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
        """The first record of some kinds whose fields have these values."""
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
        """The last record of some kinds whose fields have these values."""
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
        """All of them."""
        found = self.timeline.records(since_ns, until_ns, node=node, kinds=kinds)
        return [record for record in found if matches(record, fields)]

    def until(self, time_ms: float | None) -> int:
        """Up to and including a moment; a millisecond as a float is exact to a microsecond."""
        return self.extent.to_ns + 1 if time_ms is None else int(time_ms * 1e6) + 1_000

    def require(self, found: Record | None, what: str) -> Record:
        """What a question is about; one about nothing is refused."""
        if found is None:
            raise NotFound(
                f"the log has no {what}",
                hint="check the name and the time; strata timeline shows what there was",
            )
        return found

    def holes(self, node: str, from_ns: int, to_ns: int) -> list[str]:
        """Why a node's silence in a span proves nothing; empty when it does."""
        return [hole.reason for hole in self.trust.holes_of(node, from_ns, to_ns)]

    def ancestry(self, record: Record) -> list[Link]:
        """What led to a record, oldest first, itself last; one cause at each step."""
        chain = [Link(record, sentence(record))]
        while len(chain) < CHAIN:
            causes = causes_of(self.timeline, chain[0].record)
            if not causes:
                break
            chain.insert(0, Link(causes[0], sentence(causes[0])))
        return chain

    def exit_of(self, worker: str, incarnation: int) -> Record | None:
        """The end of the process that ran this incarnation, as its agent saw it.

        A registration is accepted from the newest start of a worker only, so an incarnation belongs
        to the start that was ordered last before it registered, and an exit names its start.
        """
        joined = self.last({"WorkerRegistered"}, worker=worker, incarnation=incarnation)
        start = self._start_at(worker, joined) if joined is not None else 0
        if joined is None or not start:
            return None
        return self.first({"WorkerExited"}, joined.at_ns, worker=worker, start=start)

    def _start_at(self, worker: str, joined: Record) -> int:
        """The start of a worker that was ordered last before a registration; 0 if none was."""
        for record in self.timeline.backwards(
            joined.at_ns + 1, node=COORDINATOR, kinds={TaskPlaced.__name__}
        ):
            body = record.event.body
            if isinstance(body, TaskPlaced) and record.event.seq < joined.event.seq:
                placement = body.placements.get(worker)
                if placement is not None:
                    return placement.start
        return 0

    def timeouts_at(self, at_ns: int) -> Patience | None:
        """The timeouts in force at a moment; None where the log does not say."""
        state = state_at(self.timeline, self.timeline.position_at(at_ns)).state
        return msgspec.convert(state.timeouts, Patience) if state.timeouts else None

    def host_of(self, worker: str, before_ns: int) -> str:
        """The host that a worker ran on."""
        joined = self.last({"WorkerRegistered"}, before_ns + 1, worker=worker)
        return joined.text("hostname") if joined is not None else ""


def matches(record: Record, fields: dict[str, object]) -> bool:
    """Whether a record's fields have these values; an empty one is not asked for."""
    return all(
        wanted in ("", None) or str(record.get(name)) == str(wanted)
        for name, wanted in fields.items()
    )


def link(record: Record, text: str = "") -> Link:
    """A link that says what the record says, or more."""
    return Link(record, text or sentence(record))


def lost_s(from_ns: int, to_ns: int) -> float:
    """A span in seconds, never negative."""
    return max(to_ns - from_ns, 0) / SECOND_NS
