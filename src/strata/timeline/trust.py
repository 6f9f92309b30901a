"""Can this log be trusted? Asked before anything else is, and shown with every answer.

Looked for: gaps in a worker's numbers, events dropped before they had one, workers that recorded
nothing, or whose events are in an archived run, an end that never arrived, damage, kinds of a
newer release, clocks that jumped or were never compared, and more than one coordinator's run in one
log.

A *hole* is a span of time in which a node may have done something that is not recorded. Absence of
a record inside a hole proves nothing; whoever reasons from absence asks `holes` first.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.agents import WorkerExited
from strata.core.catalogue import CODEC
from strata.core.cluster import CoordinatorStarted
from strata.core.events import COORDINATOR
from strata.core.keeping import EventsMoved, EventsReleased, RunDeleted
from strata.core.salvage import FactLost, LogSalvaged
from strata.core.worker_facts import USER_PREFIX, EventsDropped, RunEnded
from strata.core.workers import WorkerLost, WorkerRegistered
from strata.store.base import Range, Tally
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.timeline import Timeline
from strata.timeline.words import counted, seconds

Verdict: TypeAlias = Literal["yes", "no", "open", "unknown"]

JUMP_NS = SECOND_NS
MAX_FINDINGS = 100
TAIL_NS = 10 * SECOND_NS
NEVER_SEEN_NS = 365 * 86_400 * SECOND_NS
KNOWN_KINDS = frozenset(tag.partition("/")[0] for tag in CODEC.kinds)


class Hole(Struct, frozen=True):
    """A span in which a node's silence proves nothing; of all nodes where it names none."""

    node: str
    from_ns: int
    to_ns: int
    reason: str


class Place(Struct, frozen=True):
    """Where events are that are not in the log; `gone` if nobody can read them there."""

    text: str
    gone: bool = False


MISSING_STRETCH = Place("a stretch beside the log that is not there any more", gone=True)


class Finding(Struct, frozen=True):
    """Something that makes the log less than complete and exact."""

    kind: str
    text: str
    node: str = ""
    grave: bool = True


class Trust(Struct, frozen=True):
    """Whether the log can be trusted, and what was found. `no` when something grave was."""

    verdict: Verdict
    findings: list[Finding]
    holes: list[Hole] = field(default_factory=list)

    def holes_of(self, node: str, from_ns: int, to_ns: int) -> list[Hole]:
        """The holes of a node that touch a span of time."""
        return [
            hole
            for hole in self.holes
            if hole.node in ("", node) and hole.from_ns <= to_ns and hole.to_ns >= from_ns
        ]


def examine(timeline: Timeline) -> Trust:
    """Looks at the whole log, by its headers and indexes; only what tells of loss is decoded."""
    findings = [Finding("damage", text) for text in [*timeline.notes, *timeline.damage]]
    holes: list[Hole] = []
    ended = _ended(timeline)
    ends = {WorkerExited.__name__, WorkerLost.__name__}
    exits = list(timeline.records(node=COORDINATOR, kinds=ends))
    # Read before the tallies: what a live log is given meanwhile is then never missed in them.
    reader = timeline.reader
    arrived = {
        stream: _Arrived(reader.gaps(*stream), reader.last_seq(*stream))
        for stream in reader.streams()
    }
    for tally in timeline.tallies(fresh=True):
        for hole, finding in _gaps(timeline, tally, arrived.get((tally.node, tally.incarnation))):
            holes.append(hole)
            findings.append(finding)
        holes += _tail(timeline, tally, ended, exits)
        findings += [*_unended(tally, ended, exits), *_clock(timeline, tally)]
    for found in (_dropped, _silent):
        for hole, finding in found(timeline):
            holes.append(hole)
            findings.append(finding)
    for hole, finding in _lost_facts(timeline):
        holes.append(hole)
        findings.append(finding)
    findings += [*_coordinator_clock(timeline), *_runs(timeline), *_unknown(timeline)]
    grave = any(finding.grave for finding in findings)
    return Trust("no" if grave else "yes", findings[:MAX_FINDINGS], holes)


class _Arrived(Struct, frozen=True):
    """The events of one incarnation that were numbered below the last: the gaps among them."""

    gaps: list[Range]
    last_seq: int | None


def _gaps(
    timeline: Timeline, tally: Tally, arrived: _Arrived | None
) -> Iterator[tuple[Hole, Finding]]:
    if arrived is None:  # its first events came meanwhile
        return
    node, incarnation, gaps = tally.node, tally.incarnation, arrived.gaps
    for first, stop in gaps:
        before = next(timeline.events_of(node, incarnation, first - 1, first), None)
        after = next(timeline.events_of(node, incarnation, stop, stop + 1), None)
        end_ns = after.at_ns if after is not None else timeline.extent().to_ns
        start_ns = before.at_ns if before is not None else end_ns
        text = f"events {first} to {stop - 1} of {node}, incarnation {incarnation}, never arrived"
        yield Hole(node, start_ns, end_ns, text), Finding("gap", text, node)
    sent = (arrived.last_seq or 0) + 1
    if tally.events >= sent - sum(stop - first for first, stop in gaps):
        return
    kept = next(timeline.events_of(node, incarnation))
    if kept.event.seq > sum(stop - first for first, stop in gaps if stop <= kept.event.seq):
        text = f"the first events of {node}, incarnation {incarnation}, are in an archived run"
        yield Hole(node, 0, kept.at_ns, text), Finding("archived", text, node, grave=False)
    later = sum(stop - max(first, kept.event.seq) for first, stop in gaps if stop > kept.event.seq)
    absent = sent - kept.event.seq - later - tally.events
    if absent > 0:
        where = _released_to(timeline).get(_task_of(timeline, tally), MISSING_STRETCH)
        text = f"{counted(absent, 'event')} of {node}, incarnation {incarnation}, in {where.text}"
        finding = Finding("absent" if where.gone else "archived", text, node, where.gone)
        yield Hole(node, kept.at_ns, timeline.extent().to_ns, text), finding


def _task_of(timeline: Timeline, tally: Tally) -> str:
    """The task that a worker's incarnation joined."""
    for record in timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__}):
        body = record.event.body
        if isinstance(body, WorkerRegistered) and body.incarnation == tally.incarnation:
            return body.task
    return ""


def _ended(timeline: Timeline) -> set[tuple[str, int]]:
    """The processes that said that they ended."""
    kind = RunEnded.__name__
    return {(tally.node, tally.incarnation) for tally in timeline.tallies() if kind in tally.kinds}


def _tail(
    timeline: Timeline, tally: Tally, ended: set[tuple[str, int]], exits: list[Record]
) -> Iterator[Hole]:
    """After its last event a process that never said goodbye may have done more, until its agent
    saw it end."""
    if (tally.node, tally.incarnation) in ended:
        return
    last = timeline.reader.last_seq(tally.node, tally.incarnation)
    newest = timeline.events_of(tally.node, tally.incarnation, last or 0)
    for record in newest:
        text = f"nothing of {tally.node} is recorded after its last event, and no end of it either"
        seen = (
            each.at_ns
            for each in exits
            if each.kind == WorkerExited.__name__
            and each.text("worker") == tally.node
            and each.at_ns > record.at_ns
        )
        yield Hole(tally.node, record.at_ns, next(seen, record.at_ns + NEVER_SEEN_NS), text)


def _unended(tally: Tally, ended: set[tuple[str, int]], exits: list[Record]) -> Iterator[Finding]:
    """A process that was lost and did not say that it ended: what it did last never arrived."""
    process = (tally.node, tally.incarnation)
    lost = ((e.text("worker"), e.get("incarnation")) for e in exits if e.kind == "WorkerLost")
    if process not in ended and process in lost:
        text = (
            f"the last events of {tally.node}, incarnation {tally.incarnation}, may be missing: "
            "it was lost without saying that it ended"
        )
        yield Finding("lost process", text, tally.node, grave=False)


def _clock(timeline: Timeline, tally: Tally) -> Iterator[Finding]:
    aligned = timeline.clocks.alignment(tally.node, tally.incarnation)
    if not aligned.known:
        text = f"the clock of {tally.node} was never compared; its own wall clock is shown"
        yield Finding("clock", text, tally.node, grave=False)
    elif aligned.jump_ns > JUMP_NS:
        text = f"the wall clock of {tally.node} jumped by {seconds(aligned.jump_ns)}; corrected"
        yield Finding("clock jump", text, tally.node, grave=False)
    elif abs(aligned.offset_ns) > JUMP_NS:
        text = f"the wall clock of {tally.node} is off by {seconds(aligned.offset_ns)}; corrected"
        yield Finding("clock", text, tally.node, grave=False)


def _lost_facts(timeline: Timeline) -> Iterator[tuple[Hole, Finding]]:
    """The coordinator's facts that a salvage could not read, and the workers' events lost with
    them."""
    kinds = {FactLost.__name__, LogSalvaged.__name__}
    seen: set[int] = set()
    for record in timeline.records(node=COORDINATOR, kinds=kinds):
        body = record.event.body
        if isinstance(body, FactLost) and body.first not in seen:
            seen.add(body.first)
            first, stop = body.first, body.stop
            ended_ns = timeline.time_of(stop) if stop < timeline.position else record.at_ns
            began_ns = timeline.time_of(first - 1) if first else record.at_ns
            text = f"the coordinator's facts @{first} to @{stop - 1} are lost: the log was damaged"
            yield Hole(COORDINATOR, began_ns, ended_ns, text), Finding("lost", text, COORDINATOR)
        elif isinstance(body, LogSalvaged) and body.lost_batches:
            count = body.lost_batches
            some = "some batches" if count < 0 else counted(count, "batch", "batches")
            text = f"{some} of workers' events lost: the log was damaged"
            from_ns = timeline.extent().from_ns
            yield Hole("", from_ns, record.at_ns, text), Finding("lost", text)


def _dropped(timeline: Timeline) -> Iterator[tuple[Hole, Finding]]:
    kind = EventsDropped.__name__
    tellers = timeline.nodes_with(kind)
    told = (each for node in tellers for each in timeline.records(node=node, kinds={kind}))
    for record in told:
        lost = record.get("count")
        number = lost if isinstance(lost, int) else 0
        text = f"{record.node} dropped {counted(number, 'event')}: {record.text('reason')}"
        before_ns = record.at_ns - TAIL_NS
        yield Hole(record.node, before_ns, record.at_ns, text), Finding("drop", text, record.node)


def _silent(timeline: Timeline) -> Iterator[tuple[Hole, Finding]]:
    """Workers that joined and have nothing of their own in this log."""
    heard = {(tally.node, tally.incarnation) for tally in timeline.tallies()}
    kept = set(timeline.reader.streams())
    runs = _released_to(timeline) if kept - heard else {}
    named: set[str] = set()
    joins = timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__})
    for record in joins:
        body = record.event.body
        if not isinstance(body, WorkerRegistered) or (body.worker, body.incarnation) in heard:
            continue
        if timeline.task not in ("", body.task):
            continue
        process = f"{body.worker}, incarnation {body.incarnation},"
        if (body.worker, body.incarnation) not in kept:
            text = f"{process} sent no events of its own"
            finding = Finding("silent node", text, body.worker, grave=body.worker not in named)
        elif body.task in runs:
            where = runs[body.task]
            text = f"what {process} recorded is in {where.text}"
            finding = Finding("absent" if where.gone else "archived", text, grave=where.gone)
        else:
            continue  # a live log: its first events came after the tallies were taken
        yield Hole(body.worker, record.at_ns, timeline.extent().to_ns, finding.text), finding
        named.add(body.worker)


def _released_to(timeline: Timeline) -> dict[str, Place]:
    """Which archived run holds what the workers of a task recorded, and how to ask for it."""
    kinds = {EventsMoved.__name__, EventsReleased.__name__, RunDeleted.__name__}
    found: dict[str, Place] = {}
    for fact in timeline.records(node=COORDINATOR, kinds=kinds):
        task = fact.text("task")
        if fact.kind == EventsMoved.__name__:
            found[task] = MISSING_STRETCH
            continue
        how = "deleted since" if fact.kind == RunDeleted.__name__ else f"--run {task}"
        found[task] = Place(f"the archived run {fact.text('run')} ({how})")
    return found


def _coordinator_clock(timeline: Timeline) -> Iterator[Finding]:
    before = 0
    for position, skew_ns in timeline.probed():
        if abs(skew_ns - before) > JUMP_NS:
            text = f"the coordinator's wall clock jumped by {seconds(skew_ns - before)} before "
            yield Finding("clock jump", f"{text}@{position}; corrected", COORDINATOR, grave=False)
        before = skew_ns


def _runs(timeline: Timeline) -> Iterator[Finding]:
    starts = timeline.records(node=COORDINATOR, kinds={CoordinatorStarted.__name__})
    clusters = {record.text("cluster") for record in starts}
    if len(clusters) > 1:
        text = f"{len(clusters)} clusters wrote into this log: {', '.join(sorted(clusters))}"
        yield Finding("two runs", text)


def _unknown(timeline: Timeline) -> Iterator[Finding]:
    """Kinds that this release does not know: it cannot fold the coordinator's, only show them."""
    past = state_at(timeline, timeline.position)
    if past.doubt:
        yield Finding("unfolded", f"the state is known up to @{past.position}: {past.doubt}")
    kinds = {kind: tally.node for tally in timeline.tallies() for kind in tally.kinds}
    for kind, node in sorted(kinds.items()):
        if kind not in KNOWN_KINDS and not kind.startswith(USER_PREFIX):
            text = f"{kind} is not a kind of this release: shown by its fields"
            yield Finding("unknown kind", text, node, grave=False)
