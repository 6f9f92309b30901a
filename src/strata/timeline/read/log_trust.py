"""Log check: is this log complete and exact? The result is shown with every answer.

Checks: gaps in a worker's sequence numbers, events dropped by a worker, workers without events or
whose events are in an archived run, processes whose end is not recorded, damage, kinds of a newer
release, clocks that jumped or were never compared, and more than one cluster in one log.

A *hole* is a span of time in which a node may have done something that is not recorded. A missing
record inside a hole proves nothing, so code that reasons from absence asks `holes_of` first.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from strata.core.cluster import CoordinatorStarted
from strata.core.events import COORDINATOR
from strata.core.record.event_codec import CODEC
from strata.core.record.log_salvage import FactLost, LogSalvaged
from strata.core.record.record_retention import EventsMoved, EventsReleased, RunDeleted
from strata.core.workers.host_agents import WorkerExited
from strata.core.workers.worker_facts import USER_PREFIX, EventsDropped, RunEnded
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered
from strata.store.event_store import Range, Tally
from strata.timeline.answers import FindingAnswer, TrustAnswer, Verdict
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import counted, seconds

JUMP_NS = SECOND_NS
MAX_FINDINGS = 100
TAIL_NS = 10 * SECOND_NS
NEVER_SEEN_NS = 365 * 86_400 * SECOND_NS
KNOWN_KINDS = frozenset(tag.partition("/")[0] for tag in CODEC.kinds)


class Hole(Struct, frozen=True):
    """A span in which missing records of a node prove nothing; an empty `node` means all nodes."""

    node: str
    from_ns: int
    to_ns: int
    reason: str


class Place(Struct, frozen=True):
    """Where events are that are not in the log; `gone` if they cannot be read there."""

    text: str
    gone: bool = False


MISSING_STRETCH = Place("a file beside the log that no longer exists", gone=True)


class Trust(Struct, frozen=True):
    """The result of the check; the verdict is `no` if a finding is grave."""

    verdict: Verdict
    findings: list[FindingAnswer]
    holes: list[Hole] = field(default_factory=list)

    def answer(self, limit: int) -> TrustAnswer:
        """The verdict with the first findings."""
        return TrustAnswer(self.verdict, self.findings[:limit])

    def holes_of(self, node: str, from_ns: int, to_ns: int) -> list[Hole]:
        """The holes of a node that overlap a span of time."""
        return [
            hole
            for hole in self.holes
            if hole.node in ("", node) and hole.from_ns <= to_ns and hole.to_ns >= from_ns
        ]


def examine(timeline: Timeline) -> Trust:
    """Check the whole log by headers, indexes and checksums; few kinds of events are
    decoded."""
    timeline.check()
    findings = [
        FindingAnswer(kind="damage", text=text) for text in [*timeline.notes, *timeline.damage]
    ]
    holes: list[Hole] = list(_damaged(timeline))
    ended = _ended(timeline)
    ends = {WorkerExited.__name__, WorkerLost.__name__}
    exits = list(timeline.records(node=COORDINATOR, kinds=ends))
    # Read before the tallies: events that a live log gets meanwhile are then in the tallies.
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


def _damaged(timeline: Timeline) -> Iterator[Hole]:
    """Damaged events may be of any worker and any time: what names them is damaged as well."""
    if timeline.damage:
        extent = timeline.extent()
        yield Hole(node="", from_ns=extent.from_ns, to_ns=extent.to_ns, reason=timeline.damage[0])


class _Arrived(Struct, frozen=True):
    """The last sequence number of an incarnation, and the gaps below it."""

    gaps: list[Range]
    last_seq: int | None


def _gaps(
    timeline: Timeline, tally: Tally, arrived: _Arrived | None
) -> Iterator[tuple[Hole, FindingAnswer]]:
    if arrived is None:  # its first events arrived meanwhile
        return
    node, incarnation, gaps = tally.node, tally.incarnation, arrived.gaps
    for first, stop in gaps:
        before = next(timeline.events_of(node, incarnation, first - 1, first), None)
        after = next(timeline.events_of(node, incarnation, stop, stop + 1), None)
        end_ns = after.at_ns if after is not None else timeline.extent().to_ns
        start_ns = before.at_ns if before is not None else end_ns
        text = f"events {first} to {stop - 1} of {node}, incarnation {incarnation}, never arrived"
        yield (
            Hole(node=node, from_ns=start_ns, to_ns=end_ns, reason=text),
            FindingAnswer(kind="gap", text=text, node=node),
        )
    sent = (arrived.last_seq or 0) + 1
    if tally.events >= sent - sum(stop - first for first, stop in gaps):
        return
    kept = next(timeline.events_of(node, incarnation))
    if kept.event.seq > sum(stop - first for first, stop in gaps if stop <= kept.event.seq):
        text = f"the first events of {node}, incarnation {incarnation}, are in an archived run"
        yield (
            Hole(node=node, from_ns=0, to_ns=kept.at_ns, reason=text),
            FindingAnswer(kind="archived", text=text, node=node, grave=False),
        )
    later = sum(stop - max(first, kept.event.seq) for first, stop in gaps if stop > kept.event.seq)
    absent = sent - kept.event.seq - later - tally.events
    if absent > 0:
        where = _released_to(timeline).get(_task_of(timeline, tally), MISSING_STRETCH)
        text = (
            f"{counted(absent, 'event')} of {node}, incarnation {incarnation}: stored in "
            f"{where.text}"
        )
        finding = FindingAnswer(
            kind="absent" if where.gone else "archived", text=text, node=node, grave=where.gone
        )
        yield (
            Hole(node=node, from_ns=kept.at_ns, to_ns=timeline.extent().to_ns, reason=text),
            finding,
        )


def _task_of(timeline: Timeline, tally: Tally) -> str:
    """The task that a worker's incarnation registered for."""
    for record in timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__}):
        body = record.event.body
        if isinstance(body, WorkerRegistered) and body.incarnation == tally.incarnation:
            return body.task
    return ""


def _ended(timeline: Timeline) -> set[tuple[str, int]]:
    """The processes that recorded their end."""
    kind = RunEnded.__name__
    return {(tally.node, tally.incarnation) for tally in timeline.tallies() if kind in tally.kinds}


def _tail(
    timeline: Timeline, tally: Tally, ended: set[tuple[str, int]], exits: list[Record]
) -> Iterator[Hole]:
    """The hole after the last event of a process that did not record its end, up to the exit that
    its agent recorded."""
    if (tally.node, tally.incarnation) in ended:
        return
    last = timeline.reader.last_seq(tally.node, tally.incarnation)
    newest = timeline.events_of(tally.node, tally.incarnation, last or 0)
    for record in newest:
        text = f"{tally.node} has no event after this one, and its end is not recorded"
        seen = (
            each.at_ns
            for each in exits
            if each.kind == WorkerExited.__name__
            and each.text("worker") == tally.node
            and each.at_ns > record.at_ns
        )
        yield Hole(
            node=tally.node,
            from_ns=record.at_ns,
            to_ns=next(seen, record.at_ns + NEVER_SEEN_NS),
            reason=text,
        )


def _unended(
    tally: Tally, ended: set[tuple[str, int]], exits: list[Record]
) -> Iterator[FindingAnswer]:
    """A process that was lost without recording its end: its last events may not have arrived."""
    process = (tally.node, tally.incarnation)
    lost = ((e.text("worker"), e.get("incarnation")) for e in exits if e.kind == "WorkerLost")
    if process not in ended and process in lost:
        text = (
            f"the last events of {tally.node}, incarnation {tally.incarnation}, may be missing: "
            "it was lost before it recorded its end"
        )
        yield FindingAnswer(kind="lost process", text=text, node=tally.node, grave=False)


def _clock(timeline: Timeline, tally: Tally) -> Iterator[FindingAnswer]:
    aligned = timeline.clocks.alignment(tally.node, tally.incarnation)
    if not aligned.known:
        text = (
            f"the clock of {tally.node} was never compared with the coordinator's; its own wall "
            "clock is shown"
        )
        yield FindingAnswer(kind="clock", text=text, node=tally.node, grave=False)
    elif aligned.jump_ns > JUMP_NS:
        text = f"the wall clock of {tally.node} jumped by {seconds(aligned.jump_ns)}; corrected"
        yield FindingAnswer(kind="clock jump", text=text, node=tally.node, grave=False)
    elif abs(aligned.offset_ns) > JUMP_NS:
        text = f"the wall clock of {tally.node} is off by {seconds(aligned.offset_ns)}; corrected"
        yield FindingAnswer(kind="clock", text=text, node=tally.node, grave=False)


def _lost_facts(timeline: Timeline) -> Iterator[tuple[Hole, FindingAnswer]]:
    """The coordinator's facts and the workers' events that a salvage could not read."""
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
            finding = FindingAnswer(kind="lost", text=text, node=COORDINATOR)
            yield Hole(node=COORDINATOR, from_ns=began_ns, to_ns=ended_ns, reason=text), finding
        elif isinstance(body, LogSalvaged) and body.lost_batches:
            count = body.lost_batches
            some = "some batches" if count < 0 else counted(count, "batch", "batches")
            text = f"{some} of workers' events are lost: the log was damaged"
            from_ns = timeline.extent().from_ns
            yield (
                Hole(node="", from_ns=from_ns, to_ns=record.at_ns, reason=text),
                FindingAnswer(kind="lost", text=text),
            )


def _dropped(timeline: Timeline) -> Iterator[tuple[Hole, FindingAnswer]]:
    kind = EventsDropped.__name__
    nodes = timeline.nodes_with(kind)
    drops = (each for node in nodes for each in timeline.records(node=node, kinds={kind}))
    for record in drops:
        lost = record.get("count")
        number = lost if isinstance(lost, int) else 0
        text = f"{record.node} dropped {counted(number, 'event')}: {record.text('reason')}"
        before_ns = record.at_ns - TAIL_NS
        finding = FindingAnswer(kind="drop", text=text, node=record.node)
        yield Hole(node=record.node, from_ns=before_ns, to_ns=record.at_ns, reason=text), finding


def _silent(timeline: Timeline) -> Iterator[tuple[Hole, FindingAnswer]]:
    """Workers that registered and have no events of their own in this log."""
    present = {(tally.node, tally.incarnation) for tally in timeline.tallies()}
    kept = set(timeline.reader.streams())
    runs = _released_to(timeline) if kept - present else {}
    named: set[str] = set()
    joins = timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__})
    for record in joins:
        body = record.event.body
        if not isinstance(body, WorkerRegistered) or (body.worker, body.incarnation) in present:
            continue
        if timeline.task not in ("", body.task):
            continue
        process = f"{body.worker}, incarnation {body.incarnation},"
        if (body.worker, body.incarnation) not in kept:
            text = f"{process} sent no events of its own"
            first = body.worker not in named
            finding = FindingAnswer(kind="silent node", text=text, node=body.worker, grave=first)
        elif body.task in runs:
            where = runs[body.task]
            text = f"the events of {process} are in {where.text}"
            finding = FindingAnswer(
                kind="absent" if where.gone else "archived", text=text, grave=where.gone
            )
        else:
            continue  # a live log: its first events arrived after the tallies were taken
        yield (
            Hole(
                node=body.worker,
                from_ns=record.at_ns,
                to_ns=timeline.extent().to_ns,
                reason=finding.text,
            ),
            finding,
        )
        named.add(body.worker)


def _released_to(timeline: Timeline) -> dict[str, Place]:
    """By task, the archived run that holds its workers' events, and the option that opens it."""
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


def _coordinator_clock(timeline: Timeline) -> Iterator[FindingAnswer]:
    before = 0
    for position, skew_ns in timeline.probed():
        if abs(skew_ns - before) > JUMP_NS:
            text = (
                f"the coordinator's wall clock jumped by {seconds(skew_ns - before)} before "
                f"@{position}; corrected"
            )
            yield FindingAnswer(kind="clock jump", text=text, node=COORDINATOR, grave=False)
        before = skew_ns


def _runs(timeline: Timeline) -> Iterator[FindingAnswer]:
    starts = timeline.records(node=COORDINATOR, kinds={CoordinatorStarted.__name__})
    clusters = {record.text("cluster") for record in starts}
    if len(clusters) > 1:
        text = f"{len(clusters)} clusters wrote to this log: {', '.join(sorted(clusters))}"
        yield FindingAnswer(kind="two runs", text=text)


def _unknown(timeline: Timeline) -> Iterator[FindingAnswer]:
    """Kinds that this release does not know. Unknown facts also end the known state."""
    past = state_at(timeline, timeline.position)
    if past.doubt:
        yield FindingAnswer(
            kind="unfolded", text=f"the state is known up to @{past.position}: {past.doubt}"
        )
    kinds = {kind: tally.node for tally in timeline.tallies() for kind in tally.kinds}
    for kind, node in sorted(kinds.items()):
        if kind not in KNOWN_KINDS and not kind.startswith(USER_PREFIX):
            text = f"this release does not know the kind {kind}; only its fields are shown"
            yield FindingAnswer(kind="unknown kind", text=text, node=node, grave=False)
