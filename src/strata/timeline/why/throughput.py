"""Why did throughput drop?

Steps per second before and after a moment are counted from the steps that a worker recorded, and
from the committed steps where no worker recorded any. Without a moment, the largest drop is looked
for. What the steps spend more time on is named first when no loss or restart is near.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.core.recovery import StepsCommitted
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.why.case import Answer, Case, Cost, Link, link
from strata.timeline.why.step_times import (
    FINISHED,
    OWN,
    PEERS,
    Group,
    first_steps,
    newest_steps,
    split_of,
    task_group,
)
from strata.timeline.words import lasting, seconds

WIDTH_NS = 300 * SECOND_NS
SHORT_NS = (5 * SECOND_NS, 30 * SECOND_NS)
ENOUGH = 5
"""Steps that a span must have had at the rate before, for its own rate to tell something."""

NEAR_NS = 120 * SECOND_NS
JUST_BEFORE_NS = 30 * SECOND_NS
LOOK_BACK_NS = 6 * 3_600 * SECOND_NS
LEAST_NS = SECOND_NS
FEW_COMMITS = 30
READERS = 3
DROP = 0.8
ENDED = frozenset({"completed", "failed", "stopped"})
WEIGHTS = {
    "WorkerLost": 5,
    "AgentLost": 5,
    "RolledBack": 4,
    "CoordinatorStarted": 3,
    "GenerationChanged": 2,
    "BarrierFailed": 2,
    "StorageUnreachable": 2,
    "WorkerRegistered": 1,
    "AssignmentChanged": 1,
    "CheckpointStarted": 1,
    "LimitHit": 1,
    "EpochAdvanced": 1,
}
"""What may change throughput, and how much it weighs as a cause."""

DECISIVE = 3
"""Causes of this weight or more are named before a change in the steps' own times."""


class _Rates(Struct, frozen=True):
    """Steps per second before and after a moment, and the spans in which they were counted."""

    before: float
    after: float
    from_ns: int
    at_ns: int
    to_ns: int

    @property
    def ratio(self) -> float:
        """What is left of the rate."""
        return self.after / self.before

    @property
    def text(self) -> str:
        """Both rates, in words."""
        span = seconds(self.to_ns - self.at_ns)
        told = f"{_rate(self.before)} before, {_rate(self.after)} in the {span} after"
        return f"{told} ({1 / self.ratio:.0f} times fewer)" if 0 < self.ratio < 0.5 else told


def throughput(case: Case, time_ms: float | None = None, task: str = "") -> Answer:
    """Did steps per second drop, and what changed then, likeliest first?"""
    until_ns = case.until(time_ms)
    last = case.last({StepsCommitted.__name__}, until_ns + NEAR_NS, task=task)
    task = case.require(last, f"committed step of {task or 'a task'}").text("task")
    at_ns = until_ns if time_ms is not None else _largest_drop(case, task)
    if at_ns is None:
        return Answer("unknown", f"unknown: {task} has too few steps to compare")
    rates = _rates(case, task, at_ns)
    if rates is None:
        text = f"unknown: {task} committed no steps before that moment, or had ended by then"
        return Answer("unknown", text)
    if rates.ratio > DROP:
        return Answer("no", f"no: {task} made {rates.text}")
    ranked = _suspects(case, task, rates)
    changed = _changed_steps(case, task, rates)
    decisive = ranked[0] if ranked and WEIGHTS[ranked[0].record.kind] >= DECISIVE else None
    cause = f"likeliest, {decisive.text}" if decisive is not None else changed
    if not cause:
        cause = f"near it: {ranked[0].text}" if ranked else "nothing is recorded that explains it"
    lost = (rates.before - rates.after) * (rates.to_ns - rates.at_ns) / SECOND_NS
    span = seconds(rates.to_ns - rates.at_ns)
    cost = Cost(lost / rates.before, 0, f"about {lost:.0f} steps in the {span} after it")
    findings = [changed] if changed and decisive is not None else []
    chain = sorted(ranked, key=lambda each: each.record.key)
    when = "" if time_ms is not None else f", at {_clock_time(rates.at_ns)}"
    return Answer("yes", f"yes{when}: {task} made {rates.text}; {cause}", chain, cost, findings)


def _rate(steps_per_s: float) -> str:
    return f"{steps_per_s:.3g} steps/s"


def _clock_time(at_ns: int) -> str:
    """A moment as the command line shows and accepts it."""
    return str(np.datetime64(at_ns, "ns").astype("datetime64[ms]")).replace("T", " ") + " UTC"


class _Commits(Struct, frozen=True):
    """When steps of a task were committed, and how many were by then."""

    at_ns: NDArray[np.int64]
    total: NDArray[np.int64]


def _commits(case: Case, task: str, since_ns: int, until_ns: int) -> _Commits:
    found = case.all({StepsCommitted.__name__}, since_ns, until_ns, task=task)
    bodies = [each.event.body for each in found]
    counts = [b.last - b.first + 1 for b in bodies if isinstance(b, StepsCommitted)]
    moments = np.array([each.at_ns for each in found], np.int64)
    return _Commits(moments, np.cumsum(np.array(counts, np.int64)))


def _end_ns(case: Case, task: str, since_ns: int) -> int:
    """When a task ended, or the log does."""
    changes = case.all({"TaskStateChanged"}, since_ns, task=task)
    ends = (each.at_ns for each in changes if each.text("after") in ENDED)
    return next(ends, case.extent.to_ns)


def _end_of_training(case: Case, task: str, last_ns: int) -> int:
    """The last committed step of a task that completed: what follows is saving and leaving."""
    done = case.first({"TaskStateChanged"}, last_ns, task=task, after="completed")
    return last_ns if done is not None else _end_ns(case, task, last_ns)


def _largest_drop(case: Case, task: str) -> int | None:
    """The step after which the rate fell most, in the last hours of the log."""
    since_ns, until_ns = case.extent.to_ns - LOOK_BACK_NS, case.extent.to_ns + 1
    commits = _commits(case, task, since_ns, until_ns)
    if not len(commits.at_ns):
        return None
    end_ns = _end_of_training(case, task, int(commits.at_ns[-1]))
    if len(commits.at_ns) < FEW_COMMITS:  # of a short run each step is looked at
        moments = _finished(case, task, int(commits.at_ns[-1]), until_ns)
        commits = _Commits(moments, np.arange(1, len(moments) + 1))
    return _lowest_ratio(commits, end_ns)


def _lowest_ratio(commits: _Commits, end_ns: int) -> int | None:
    """When the rate after is the smallest part of the rate before; None if that is never known."""
    at_ns, total = commits.at_ns, commits.total
    if not len(at_ns):
        return None
    low = np.searchsorted(at_ns, at_ns - WIDTH_NS)
    spent_ns = at_ns - at_ns[low]
    before = (total - total[low]) / np.maximum(spent_ns, 1)
    ratio = np.full(len(at_ns), np.inf)
    for width_ns in (*SHORT_NS, WIDTH_NS):
        high = np.searchsorted(at_ns, at_ns + width_ns, side="right") - 1
        left_ns = np.minimum(at_ns + width_ns, end_ns) - at_ns
        after = (total[high] - total) / np.maximum(left_ns, 1)
        enough = (spent_ns >= LEAST_NS) & (left_ns >= LEAST_NS) & (before * left_ns > ENOUGH)
        found = np.where(enough, after / np.where(enough, before, 1), np.inf)
        ratio = np.minimum(ratio, found)
    lowest = int(np.argmin(ratio))
    return int(at_ns[lowest]) + 1 if np.isfinite(ratio[lowest]) else None


def _rates(case: Case, task: str, at_ns: int) -> _Rates | None:
    """Steps per second on both sides of a moment; None where one side cannot be counted.

    After it, the span counts in which the rate was lowest: a pause of seconds is a drop as well.
    """
    end_ns = min(at_ns + WIDTH_NS, _end_ns(case, task, at_ns))
    moments = _finished(case, task, at_ns, end_ns)
    if not len(moments):
        moments = _committed(case, task, at_ns, end_ns)
    earlier = moments[moments < at_ns]
    if len(earlier) < 2 or end_ns <= at_ns:
        return None
    from_ns = int(earlier[0])
    before = (len(earlier) - 1) / max(at_ns - from_ns, 1) * SECOND_NS
    later = moments[moments >= at_ns]
    found = [
        _Rates(
            before=before,
            after=int((later < to_ns).sum()) / (to_ns - at_ns) * SECOND_NS,
            from_ns=from_ns,
            at_ns=at_ns,
            to_ns=to_ns,
        )
        for to_ns in (*(at_ns + width for width in SHORT_NS), end_ns)
        if to_ns == end_ns or (to_ns < end_ns and before * (to_ns - at_ns) > ENOUGH * SECOND_NS)
    ]
    return min(found, key=lambda rates: rates.ratio)


def _finished(case: Case, task: str, at_ns: int, to_ns: int) -> NDArray[np.int64]:
    """When the member that recorded most steps around a moment finished each of them."""
    groups = [task_group(case, task, moment) for moment in (at_ns, to_ns)]
    names = dict.fromkeys(n for g in groups if g is not None for n in g.members[:READERS])
    best = np.empty(0, np.int64)
    for name in names:
        found = case.timeline.records(at_ns - WIDTH_NS, to_ns, node=name, kinds=FINISHED)
        moments = np.fromiter((each.at_ns for each in found), np.int64)
        best = moments if len(moments) > len(best) else best
    return best


def _committed(case: Case, task: str, at_ns: int, to_ns: int) -> NDArray[np.int64]:
    """When steps were committed around a moment, each step once."""
    commits = _commits(case, task, at_ns - WIDTH_NS, to_ns)
    return np.repeat(commits.at_ns, np.diff(commits.total, prepend=0))


def _changed_steps(case: Case, task: str, rates: _Rates) -> str:
    """What the steps spend more time on than before: a worker's own part, or the exchange."""
    group = task_group(case, task, rates.at_ns)
    if group is None:
        return ""
    grown = list(_grown(case, group, rates))
    whole_s = max((each.whole_s for each in grown), default=0.0)
    if whole_s <= 0:
        return ""
    own = max((each for each in grown if each.part in OWN), key=lambda e: e.more_s, default=None)
    if own is not None and own.more_s * 2 > whole_s:
        return f"a step of {own.worker} takes {lasting(own.more_s)} more in {own.part}"
    worst = max(grown, key=lambda each: each.more_s)
    was, now = lasting(worst.before_s), lasting(worst.before_s + worst.more_s)
    told = {"communication": "the exchange between the workers", "wait": "waiting for others"}
    what = told.get(worst.part, worst.part)
    return f"{what} takes {now} of a step instead of {was} ({worst.part}, by {worst.worker})"


class _Growth(Struct, frozen=True):
    """How much longer a part of a worker's steps takes, and its whole steps."""

    worker: str
    part: str
    before_s: float
    more_s: float
    whole_s: float


def _grown(case: Case, group: Group, rates: _Rates) -> Iterator[_Growth]:
    for worker in group.members[:PEERS]:
        before = split_of(newest_steps(case, worker, rates.from_ns, rates.at_ns))
        after = split_of(first_steps(case, worker, rates.at_ns, rates.to_ns))
        if before is None or after is None:
            continue
        for part in ("data", "compute", "communication", "wait"):
            was_s, now_s = getattr(before, part), getattr(after, part)
            yield _Growth(worker, part, was_s, now_s - was_s, after.whole - before.whole)


def _suspects(case: Case, task: str, rates: _Rates) -> list[Link]:
    """What happened around a moment: what weighs most and is nearest first.

    A loss is declared up to a timeout after it stopped the steps, so what follows counts as well.
    """
    at_ns = rates.at_ns

    def weight(record: Record) -> float:
        away = abs(record.at_ns - at_ns) / NEAR_NS
        return WEIGHTS[record.kind] * (1.5 - away)

    near = case.all(WEIGHTS, max(at_ns - JUST_BEFORE_NS, rates.from_ns), at_ns + NEAR_NS)
    found = [each for each in near if each.text("task") in ("", task)]
    ranked = sorted(found, key=weight, reverse=True)[:8]
    return [Link(each, f"{link(each).text} ({_offset(each.at_ns - at_ns)})") for each in ranked]


def _offset(span_ns: int) -> str:
    return f"{seconds(abs(span_ns))} {'after' if span_ns > 0 else 'before'} it"
