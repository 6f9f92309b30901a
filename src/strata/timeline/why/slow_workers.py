"""Why was this worker slow?

Its steps are compared with those of its peers (same task, generation and time) and with its own
earlier steps. Only data and compute are compared with peers (see `step_times`); communication is
compared with the worker's earlier steps.
"""

from msgspec import Struct

from strata.timeline.answers import Cost
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting
from strata.timeline.why.investigation import Answer, LogSearch, link
from strata.timeline.why.step_times import (
    OWN,
    PARTS,
    PEERS,
    Group,
    Split,
    group_of,
    newest_steps,
    split_of,
)

WINDOW_NS = 300 * SECOND_NS
RECENT_NS = 30 * SECOND_NS
RECENT, LEAST = 20, 5
"""The steps to compare: up to 20 of the last 30 s, but at least the newest 5."""

EARLIER_NS = 3_600 * SECOND_NS
SLOWER = 1.3
NOTABLE = 0.05
"""A smaller share of a step is not called slow."""

DOMINANT = 0.5


class _Steps(Struct, frozen=True):
    """Median step times of a worker, of its peers, and of the worker before."""

    own: Split
    peers: Split | None
    before: Split | None
    others: int
    slowest: str
    slowest_own: float

    def excess(self, part: str, than: Split | None) -> float:
        """How many more seconds a step spends on a part."""
        spent: float = getattr(self.own, part)
        return spent - getattr(than, part) if than is not None else 0.0

    def is_slower(self, part: str, than: Split | None) -> bool:
        """Whether a part takes notably longer."""
        more = self.excess(part, than)
        return more > self.own.whole * NOTABLE and self.times(part, than) > SLOWER

    @property
    def waits_for(self) -> str:
        """The peer that this worker waits for, if the peer's own time explains most of the wait."""
        waited = self.own.communication + self.own.wait
        more = self.slowest_own - self.own.own
        return self.slowest if waited and more * 2 > waited else ""

    def times(self, part: str, than: Split | None) -> float:
        """The factor by which a part takes longer."""
        other = getattr(than, part) if than is not None else 0.0
        return getattr(self.own, part) / other if other else float("inf")


def slow(search: LogSearch, worker: str, time_ms: float | None = None) -> Answer:
    """Was it slower than its peers, or than before, and in which part of a step?"""
    at_ns = search.until(time_ms)
    records = newest_steps(search, worker, at_ns - WINDOW_NS, at_ns)
    if not records:
        holes = search.holes(worker, at_ns - WINDOW_NS, at_ns)
        why = holes[0] if holes else "it finished no step in the last 5 minutes"
        return Answer(verdict="unknown", text=f"unknown: {worker} has no steps to compare: {why}")
    group = group_of(search, worker, records[-1].at_ns)
    records = _recent(records, group)
    steps = _compared(search, worker, group, (records[0].at_ns, at_ns))
    worst = max(records, key=lambda each: sum(_seconds(each.get(f"{p}_s")) for p in PARTS))
    findings = _findings(search, worker, steps, group, (records[0].at_ns, at_ns))
    against_peers = [part for part in OWN if steps.is_slower(part, steps.peers)]
    compared = OWN if steps.waits_for else (*OWN, "communication")
    against_itself = [part for part in compared if steps.is_slower(part, steps.before)]
    if not against_peers and not against_itself:
        return Answer(
            verdict="no",
            text=f"no: {_measures(steps)}",
            chain=[link(records[-1])],
            cost=Cost(),
            findings=findings,
        )
    than = steps.peers if against_peers else steps.before
    part = max(against_peers or against_itself, key=lambda each: steps.excess(each, than))
    excess_s = steps.excess(part, than)
    text = f"yes, in {part} ({lasting(excess_s)} more per step): {_measures(steps)}"
    lost_s, workers = excess_s * len(records), 1 + steps.others
    cost = f"about {lasting(lost_s)} of each of {counted(workers, 'worker')}"
    return Answer(
        verdict="yes",
        text=text,
        chain=[link(worst)],
        cost=Cost(lost_s * workers, workers, cost),
        findings=findings,
    )


def _recent(records: list[Record], group: Group | None) -> list[Record]:
    """The newest steps, of the current generation if it has any."""
    if group is not None:
        records = [each for each in records if each.at_ns >= group.since_ns] or records
    since_ns = records[-1].at_ns - RECENT_NS
    recent = [each for each in records[-RECENT:] if each.at_ns >= since_ns]
    return recent if len(recent) >= LEAST else records[-LEAST:]


def _compared(search: LogSearch, worker: str, group: Group | None, span: tuple[int, int]) -> _Steps:
    """The step times of a worker and its peers in a span, and of the worker before."""
    since_ns, at_ns = span
    own = split_of(newest_steps(search, worker, since_ns, at_ns))
    assert own is not None, "the caller has seen steps in this span"
    members = [each for each in group.members if each != worker] if group is not None else []
    theirs = {name: newest_steps(search, name, *span) for name in members[:PEERS]}
    splits = {name: split_of(found) for name, found in theirs.items()}
    own_s = {name: split.own for name, split in splits.items() if split is not None}
    slowest = max(own_s, key=lambda name: own_s[name], default="")
    earlier = newest_steps(search, worker, since_ns - EARLIER_NS, since_ns)
    return _Steps(
        own=own,
        peers=split_of([each for found in theirs.values() for each in found]),
        before=split_of(earlier),
        others=len(members),
        slowest=slowest,
        slowest_own=own_s.get(slowest, 0.0),
    )


def _measures(steps: _Steps) -> str:
    """The compared figures as text."""
    own = steps.own
    figures = [f"a step takes {lasting(own.whole)}, {lasting(own.own)} of it in data and compute"]
    if steps.peers is not None:
        figures.append(f"its peers need {lasting(steps.peers.own)} for that")
    else:
        figures.append("no other worker of its task finished steps then")
    if steps.before is not None:
        figures.append(f"it needed {lasting(steps.before.own)} before")
    return "; ".join(figures)


def _findings(
    search: LogSearch, worker: str, steps: _Steps, group: Group | None, span: tuple[int, int]
) -> list[str]:
    """Sentences on what takes the time of a step, and on the process's resources."""
    found = []
    if steps.waits_for:
        takes = f"takes {lasting(steps.slowest_own)} of its own for a step"
        found.append(f"it waits for {steps.waits_for}, which {takes}")
    for part in ("communication", "wait"):
        if steps.own.share(part) > DOMINANT:
            spent_s = getattr(steps.own, part)
            before = getattr(steps.before, part) if steps.before is not None else None
            was = f", before {lasting(before)}" if before is not None else ""
            share = f"{steps.own.share(part):.0%} of a step is {part} ({lasting(spent_s)}{was})"
            found.append(f"{share}{_shared(steps, part)}")
    earlier = group_of(search, worker, span[0] - 1) if steps.before is not None else None
    if group is not None and earlier is not None and earlier.members != group.members:
        sizes = f"{counted(len(group.members), 'worker')} instead of {len(earlier.members)}"
        found.append(f"its task has {sizes} since generation {group.generation}")
    used = search.last({"ResourceSnapshot"}, span[1], span[0], node=worker)
    return found + ([f"{worker} {link(used).text}"] if used is not None else [])


def _shared(steps: _Steps, part: str) -> str:
    """A clause on whether the peers spend as much on a part."""
    if steps.peers is None:
        return ""
    theirs = getattr(steps.peers, part)
    if (
        part == "communication"
        and not steps.waits_for
        and theirs * SLOWER > getattr(steps.own, part)
    ):
        return f"; its peers spend {lasting(theirs)}: the exchange between the workers is slow"
    return f"; its peers spend {lasting(theirs)}"


def _seconds(value: object) -> float:
    return value if isinstance(value, float) else 0.0
