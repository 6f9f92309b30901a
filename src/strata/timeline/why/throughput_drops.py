"""Why did throughput drop?

Steps per second before and after a moment are counted from the steps that a worker recorded, or
from the committed steps if no worker recorded any. Without a moment, the largest drop is searched.
If no loss or restart is near, the cause is the part of the steps that takes more time.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.core.generations.recovery import StepsCommitted
from strata.core.task_state import ENDED
from strata.timeline.answers import Cost
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import lasting, seconds
from strata.timeline.why.investigation import Answer, Link, LogSearch, link
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

WIDTH_NS = 300 * SECOND_NS
SHORT_NS = (5 * SECOND_NS, 30 * SECOND_NS)
ENOUGH = 5
"""Expected steps that a span needs for a meaningful rate."""

NEAR_NS = 120 * SECOND_NS
JUST_BEFORE_NS = 30 * SECOND_NS
LOOK_BACK_NS = 6 * 3_600 * SECOND_NS
LEAST_NS = SECOND_NS
FEW_COMMITS = 30
READERS = 3
DROP = 0.8
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
"""Kinds of events that may change throughput, with their weight as a cause."""

DECISIVE = 3
"""Causes of this weight or more take precedence over a change in step times."""


class _Rates(Struct, frozen=True):
    """Steps per second before and after a moment, with the spans they were counted in."""

    before: float
    after: float
    from_ns: int
    at_ns: int
    to_ns: int

    @property
    def ratio(self) -> float:
        """The rate after as a fraction of the rate before."""
        return self.after / self.before

    @property
    def text(self) -> str:
        """Both rates as text."""
        span = seconds(self.to_ns - self.at_ns)
        rates = f"{_rate(self.before)} before, {_rate(self.after)} in the {span} after"
        return f"{rates} ({1 / self.ratio:.0f} times fewer)" if 0 < self.ratio < 0.5 else rates


def throughput(search: LogSearch, time_ms: float | None = None, task: str = "") -> Answer:
    """Did steps per second drop, and what is the likeliest cause?"""
    until_ns = search.until(time_ms)
    last = search.last({StepsCommitted.__name__}, until_ns + NEAR_NS, task=task)
    task = search.require(last, f"committed step of {task or 'a task'}").text("task")
    at_ns = until_ns if time_ms is not None else _largest_drop(search, task)
    if at_ns is None:
        return Answer(verdict="unknown", text=f"unknown: {task} has too few steps to compare")
    rates = _rates(search, task, at_ns)
    if rates is None:
        text = f"unknown: {task} committed no steps before that moment, or had ended by then"
        return Answer(verdict="unknown", text=text)
    if rates.ratio > DROP:
        return Answer(verdict="no", text=f"no: {task} made {rates.text}")
    ranked = _suspects(search, task, rates)
    changed = _changed_steps(search, task, rates)
    decisive = ranked[0] if ranked and WEIGHTS[ranked[0].record.kind] >= DECISIVE else None
    cause = f"likeliest cause: {decisive.text}" if decisive is not None else changed
    if not cause:
        cause = f"nearest event: {ranked[0].text}" if ranked else "no recorded event explains it"
    lost = (rates.before - rates.after) * (rates.to_ns - rates.at_ns) / SECOND_NS
    span = seconds(rates.to_ns - rates.at_ns)
    cost = Cost(lost / rates.before, 0, f"about {lost:.0f} steps in the {span} after it")
    findings = [changed] if changed and decisive is not None else []
    chain = sorted(ranked, key=lambda each: each.record.key)
    when = "" if time_ms is not None else f", at {_clock_time(rates.at_ns)}"
    return Answer(
        verdict="yes",
        text=f"yes{when}: {task} made {rates.text}; {cause}",
        chain=chain,
        cost=cost,
        findings=findings,
    )


def _rate(steps_per_s: float) -> str:
    return f"{steps_per_s:.3g} steps/s"


def _clock_time(at_ns: int) -> str:
    """A moment as the command line shows and accepts it."""
    return str(np.datetime64(at_ns, "ns").astype("datetime64[ms]")).replace("T", " ") + " UTC"


class _Commits(Struct, frozen=True):
    """The times of commits of a task, and the total of committed steps at each."""

    at_ns: NDArray[np.int64]
    total: NDArray[np.int64]


def _commits(search: LogSearch, task: str, since_ns: int, until_ns: int) -> _Commits:
    found = search.all({StepsCommitted.__name__}, since_ns, until_ns, task=task)
    bodies = [each.event.body for each in found]
    counts = [b.last - b.first + 1 for b in bodies if isinstance(b, StepsCommitted)]
    moments = np.array([each.at_ns for each in found], np.int64)
    return _Commits(moments, np.cumsum(np.array(counts, np.int64)))


def _end_ns(search: LogSearch, task: str, since_ns: int) -> int:
    """The end of a task, or of the log."""
    changes = search.all({"TaskStateChanged"}, since_ns, task=task)
    ends = (each.at_ns for each in changes if each.text("after") in ENDED)
    return next(ends, search.extent.to_ns)


def _end_of_training(search: LogSearch, task: str, last_ns: int) -> int:
    """The last commit of a completed task (only saving follows), else its end."""
    done = search.first({"TaskStateChanged"}, last_ns, task=task, after="completed")
    return last_ns if done is not None else _end_ns(search, task, last_ns)


def _largest_drop(search: LogSearch, task: str) -> int | None:
    """The time of the largest drop in the last hours of the log; None if unknown."""
    since_ns, until_ns = search.extent.to_ns - LOOK_BACK_NS, search.extent.to_ns + 1
    commits = _commits(search, task, since_ns, until_ns)
    if not len(commits.at_ns):
        return None
    end_ns = _end_of_training(search, task, int(commits.at_ns[-1]))
    if len(commits.at_ns) < FEW_COMMITS:  # in a short run single steps are used
        moments = _finished(search, task, int(commits.at_ns[-1]), until_ns)
        commits = _Commits(moments, np.arange(1, len(moments) + 1))
    return _lowest_ratio(commits, end_ns)


def _lowest_ratio(commits: _Commits, end_ns: int) -> int | None:
    """The time with the lowest ratio of rates after and before; None if unknown."""
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


def _rates(search: LogSearch, task: str, at_ns: int) -> _Rates | None:
    """Steps per second before and after a moment; None if one side has too few steps.

    The rate after is the lowest of several spans: a pause of seconds is a drop as well.
    """
    end_ns = min(at_ns + WIDTH_NS, _end_ns(search, task, at_ns))
    moments = _finished(search, task, at_ns, end_ns)
    if not len(moments):
        moments = _committed(search, task, at_ns, end_ns)
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


def _finished(search: LogSearch, task: str, at_ns: int, to_ns: int) -> NDArray[np.int64]:
    """The finish times of steps around a moment, of the member that recorded most steps."""
    groups = [task_group(search, task, moment) for moment in (at_ns, to_ns)]
    names = dict.fromkeys(n for g in groups if g is not None for n in g.members[:READERS])
    best = np.empty(0, np.int64)
    for name in names:
        found = search.timeline.records(at_ns - WIDTH_NS, to_ns, node=name, kinds=FINISHED)
        moments = np.fromiter((each.at_ns for each in found), np.int64)
        best = moments if len(moments) > len(best) else best
    return best


def _committed(search: LogSearch, task: str, at_ns: int, to_ns: int) -> NDArray[np.int64]:
    """The commit times around a moment, repeated for each step."""
    commits = _commits(search, task, at_ns - WIDTH_NS, to_ns)
    return np.repeat(commits.at_ns, np.diff(commits.total, prepend=0))


def _changed_steps(search: LogSearch, task: str, rates: _Rates) -> str:
    """A sentence on the part of the steps that takes more time than before; empty if none."""
    group = task_group(search, task, rates.at_ns)
    if group is None:
        return ""
    grown = list(_grown(search, group, rates))
    whole_s = max((each.whole_s for each in grown), default=0.0)
    if whole_s <= 0:
        return ""
    own = max((each for each in grown if each.part in OWN), key=lambda e: e.more_s, default=None)
    if own is not None and own.more_s * 2 > whole_s:
        return f"a step of {own.worker} takes {lasting(own.more_s)} more in {own.part}"
    worst = max(grown, key=lambda each: each.more_s)
    was, now = lasting(worst.before_s), lasting(worst.before_s + worst.more_s)
    names = {"communication": "the exchange between the workers", "wait": "waiting for others"}
    what = names.get(worst.part, worst.part)
    return f"{what} takes {now} of a step instead of {was} ({worst.part}, by {worst.worker})"


class _Growth(Struct, frozen=True):
    """How much longer a part of a worker's steps takes, and the whole steps."""

    worker: str
    part: str
    before_s: float
    more_s: float
    whole_s: float


def _grown(search: LogSearch, group: Group, rates: _Rates) -> Iterator[_Growth]:
    for worker in group.members[:PEERS]:
        before = split_of(newest_steps(search, worker, rates.from_ns, rates.at_ns))
        after = split_of(first_steps(search, worker, rates.at_ns, rates.to_ns))
        if before is None or after is None:
            continue
        for part in ("data", "compute", "communication", "wait"):
            was_s, now_s = getattr(before, part), getattr(after, part)
            yield _Growth(
                worker=worker,
                part=part,
                before_s=was_s,
                more_s=now_s - was_s,
                whole_s=after.whole - before.whole,
            )


def _suspects(search: LogSearch, task: str, rates: _Rates) -> list[Link]:
    """Events around a moment, by weight and distance.

    A loss is declared up to a timeout after it stopped the steps, so later events count as well.
    """
    at_ns = rates.at_ns

    def weight(record: Record) -> float:
        away = abs(record.at_ns - at_ns) / NEAR_NS
        return WEIGHTS[record.kind] * (1.5 - away)

    near = search.all(WEIGHTS, max(at_ns - JUST_BEFORE_NS, rates.from_ns), at_ns + NEAR_NS)
    found = [each for each in near if each.text("task") in ("", task)]
    ranked = sorted(found, key=weight, reverse=True)[:8]
    return [Link(each, f"{link(each).text} ({_offset(each.at_ns - at_ns)})") for each in ranked]


def _offset(span_ns: int) -> str:
    return f"{seconds(abs(span_ns))} {'after' if span_ns > 0 else 'before'} it"
