"""Why was this worker slow, and why did throughput drop at T?

Steps are taken apart into data, compute, communication and wait, and held against the worker's own
median and its peers'. In lockstep training everyone's step takes as long as the slowest's, so who
is slow shows in what is not waiting.
"""

from collections.abc import Iterable
from itertools import islice
from statistics import median

from strata.core.worker_facts import StepFinished
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.why.case import Answer, Case, Cost, Link, link
from strata.timeline.words import lasting, seconds

WINDOW_NS = 300 * SECOND_NS
STEPS = 200
PEER_STEPS = 5_000
SLOWER = 1.3
FINISHED = frozenset({StepFinished.__name__})
PARTS = ("data_s", "compute_s", "communication_s")
TURNING = frozenset(
    {
        "WorkerLost",
        "WorkerRegistered",
        "GenerationChanged",
        "RolledBack",
        "AssignmentChanged",
        "CheckpointStarted",
        "CoordinatorStarted",
        "BarrierFailed",
        "AgentLost",
        "LimitHit",
        "EpochAdvanced",
    }
)
WEIGHTS = {"WorkerLost": 5, "AgentLost": 5, "RolledBack": 4, "CoordinatorStarted": 3}
DROP = 0.8


def slow(case: Case, worker: str, time_ms: float | None = None) -> Answer:
    """Was it slower than its peers, or than it used to be, and in which part of a step?"""
    at_ns = case.until(time_ms)
    since_ns = at_ns - WINDOW_NS
    own = _newest(case, worker, at_ns, since_ns, STEPS)
    if not own:
        holes = case.holes(worker, since_ns, at_ns)
        why = holes[0] if holes else "it finished no step then"
        return Answer("unknown", f"unknown: there are no steps of {worker} to look at: {why}")
    since_ns = own[0].at_ns
    peers = _peers(case, worker, since_ns, at_ns)
    busy, typical = _busy(own), _busy(peers) if peers else None
    earlier = _newest(case, worker, since_ns, since_ns - WINDOW_NS * 12, STEPS)
    before = _busy(earlier) if earlier else None
    part, excess_s = _worst_part(own, peers or earlier)
    measures = _measures(busy, typical, before)
    slower = typical is not None and busy > typical * SLOWER
    slowed = before is not None and busy > before * SLOWER
    if not slower and not slowed:
        return Answer("no", f"no: {measures}", [link(own[-1])])
    cost_s = max(busy - min(t for t in (typical, before) if t is not None), 0) * len(own)
    lockstep = 1 + len({record.node for record in peers})
    cost = Cost(cost_s * lockstep, lockstep, f"about {cost_s:.0f} s of each of {lockstep} workers")
    more = f"{seconds(excess_s * SECOND_NS)} more a step"
    text = f"yes, in {part.removesuffix('_s')} ({more}): {measures}"
    worst = max(own, key=lambda record: _seconds(record, PARTS))
    return Answer("yes", text, [link(worst)], cost, _context(case, worker, since_ns, at_ns))


def _newest(case: Case, worker: str, until_ns: int, since_ns: int, most: int) -> list[Record]:
    """The last steps of a worker in a span, oldest first."""
    found = case.timeline.backwards(until_ns, since_ns, node=worker, kinds=FINISHED)
    return list(islice(found, most))[::-1]


def _peers(case: Case, worker: str, since_ns: int, until_ns: int) -> list[Record]:
    """Steps of the others in a span, as many as are enough for a median."""
    found = case.timeline.records(since_ns, until_ns, kinds=FINISHED)
    return [record for record in islice(found, PEER_STEPS) if record.node != worker]


def _seconds(record: Record, parts: Iterable[str]) -> float:
    values = (record.get(part) for part in parts)
    return sum(value for value in values if isinstance(value, float | int))


def _busy(records: list[Record]) -> float:
    return median(_seconds(record, PARTS) for record in records)


def _worst_part(own: list[Record], others: list[Record]) -> tuple[str, float]:
    excess = {
        part: median(_seconds(record, (part,)) for record in own)
        - (median(_seconds(record, (part,)) for record in others) if others else 0.0)
        for part in PARTS
    }
    part = max(excess, key=lambda name: excess[name])
    return part, excess[part]


def _measures(busy: float, typical: float | None, before: float | None) -> str:
    told = [f"its steps take {lasting(busy)} without waiting"]
    if typical is not None:
        told.append(f"its peers' {lasting(typical)}")
    if before is not None:
        told.append(f"its own before {lasting(before)}")
    return ", ".join(told)


def _context(case: Case, worker: str, since_ns: int, at_ns: int) -> list[str]:
    used = case.last({"ResourceSnapshot"}, at_ns, since_ns, node=worker)
    return [f"{worker} {link(used).text}"] if used is not None else []


def throughput(case: Case, time_ms: float, task: str = "") -> Answer:
    """Did steps per second drop at a moment, and what changed around it, likeliest first?"""
    at_ns = case.until(time_ms)
    width_ns = 300 * SECOND_NS
    before, after = (
        _rate(case, task, at_ns - width_ns, at_ns),
        _rate(case, task, at_ns, min(at_ns + width_ns, case.extent.to_ns)),
    )
    if before == 0 or at_ns >= case.extent.to_ns:
        return Answer("unknown", "unknown: no steps counted before it, or none could since")
    ratio = after / before
    told = f"{before:.3f} steps/s before, {after:.3f} after"
    if ratio > DROP:
        return Answer("no", f"no: {told}")
    ranked = _suspects(case, task, at_ns)
    first = f": likeliest, {ranked[0].text}" if ranked else "; nothing else is recorded there"
    lost_s = (1 - ratio) * width_ns / SECOND_NS
    cost = Cost(lost_s, 0, f"{(before - after) * width_ns / SECOND_NS:.0f} steps in 5 minutes")
    return Answer("yes", f"yes: {told}{first}", ranked, cost)


def _rate(case: Case, task: str, since_ns: int, until_ns: int) -> float:
    committed = case.all({"StepsCommitted"}, since_ns, until_ns, task=task)
    steps = 0
    for record in committed:
        first, last = record.get("first"), record.get("last")
        if isinstance(first, int) and isinstance(last, int):
            steps += last - first + 1
    return steps / max((until_ns - since_ns) / SECOND_NS, 1e-9)


def _suspects(case: Case, task: str, at_ns: int) -> list[Link]:
    """What changed around a moment: grave and near things first."""
    near_ns = 120 * SECOND_NS
    found = [
        record
        for record in case.all(TURNING, at_ns - near_ns, at_ns + near_ns)
        if not task or record.text("task") in ("", task)
    ]

    def weight(record: Record) -> float:
        away = abs(record.at_ns - at_ns) / near_ns
        return WEIGHTS.get(record.kind, 1) * (1.5 - away)

    ranked = sorted(found, key=weight, reverse=True)[:8]
    return [
        Link(record, f"{link(record).text} ({seconds(record.at_ns - at_ns)} from it)")
        for record in ranked
    ]
