"""What a worker did while others waited for it, from its own events.

A process that is stopped (SIGSTOP), swapped out or starved of CPU records nothing, and its
heartbeats stop as well. A process that computes or reads data still sends heartbeats. So the two
are told apart by comparing the longest pause between two events with the heartbeat interval.
"""

from itertools import pairwise
from statistics import median

from msgspec import Struct

from strata.core.workers.worker_facts import ClockSampled, RequestSubmitted, StepFinished
from strata.timeline.read.operations import Pairing, newest_of, step_parts
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import seconds
from strata.timeline.why.investigation import LogSearch

BEFORE_NS = 60 * SECOND_NS
PAUSE_NS = SECOND_NS // 2
LATE = 1.2
LATE_NS = SECOND_NS // 5
HEARTBEATS = 3
"""Minimum number of heartbeats to estimate the interval, without the late one."""


class Activity(Struct, frozen=True):
    """A phrase for what a worker did in a span; `stopped` if its process did not run."""

    text: str
    stopped: bool = False


def activity(
    search: LogSearch, worker: str, incarnation: int, since_ns: int, until_ns: int, barrier: str
) -> Activity:
    """What kept a worker from reaching a barrier between two moments."""
    before = search.timeline.records(since_ns - BEFORE_NS, until_ns, node=worker)
    events = [each for each in before if each.incarnation == incarnation]
    if not events:
        return Activity("recorded no events of its own")
    last = events[-1]
    here = len(events) > 1 and _asked_for(last, barrier)
    asked = events.pop() if here else None
    end_ns = asked.at_ns if asked is not None else until_ns
    pause = _longest_pause(events, since_ns, end_ns, asked is None)
    if (
        pause is not None
        and pause.length_ns >= PAUSE_NS
        and pause.length_ns * 2 > end_ns - since_ns
    ):
        return _paused(events, pause, _heartbeat_interval_ns(search, last, pause))
    return Activity(_at_work(events, end_ns))


class _Pause(Struct, frozen=True):
    """A span without an event; `open` if no event of the worker ended it."""

    from_ns: int
    to_ns: int
    open: bool

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.to_ns - self.from_ns


def _asked_for(record: Record, barrier: str) -> bool:
    """Whether a record is the worker's own arrival request at a barrier."""
    body = record.event.body
    return isinstance(body, RequestSubmitted) and body.barrier == barrier


def _longest_pause(events: list[Record], since_ns: int, end_ns: int, still: bool) -> _Pause | None:
    """The longest span without an event that reaches into [since, end)."""
    moments = [each.at_ns for each in events]
    spans = [_Pause(a, b, False) for a, b in pairwise(moments) if b > since_ns]
    spans.append(_Pause(moments[-1], max(end_ns, moments[-1]), still))
    return max(spans, key=lambda span: span.length_ns)


def _heartbeat_interval_ns(search: LogSearch, of: Record, pause: _Pause) -> float | None:
    """The median time between heartbeats of a process around a pause; None if unknown."""
    around = (pause.from_ns - BEFORE_NS, pause.to_ns + BEFORE_NS)
    found = search.timeline.records(*around, node=of.node, kinds={ClockSampled.__name__})
    beats = [each.at_ns for each in found if each.incarnation == of.incarnation]
    return median(b - a for a, b in pairwise(beats)) if len(beats) > HEARTBEATS else None


def _paused(events: list[Record], pause: _Pause, interval_ns: float | None) -> Activity:
    length = seconds(pause.length_ns)
    late = interval_ns is not None and pause.length_ns > interval_ns * LATE + LATE_NS
    if late and pause.open:
        cause = "its process was stopped, starved of CPU or disconnected"
        return Activity(f"sent nothing for {length}, not even a heartbeat: {cause}", stopped=True)
    if late:
        cause = "its process was stopped or starved of CPU"
        return Activity(f"recorded nothing for {length}, not even a heartbeat: {cause}", True)
    doing = _at_work([each for each in events if each.at_ns <= pause.from_ns], pause.to_ns)
    return Activity(f"{doing}, and recorded nothing for {length}")


def _at_work(events: list[Record], end_ns: int) -> str:
    """The open operation of a worker, or the step that it was in."""
    pairing = Pairing()
    for each in events:
        pairing.feed(each)
    newest = newest_of(pairing.open.values())
    if newest is not None:
        operation, start = newest
        return f"was {operation.text} for {seconds(end_ns - start.at_ns)}"
    steps = [(each, body) for each in events if isinstance(body := each.event.body, StepFinished)]
    if not steps:
        return "was busy before its first step"
    record, step = steps[-1]
    if end_ns - record.at_ns > PAUSE_NS:
        return f"was busy for {seconds(end_ns - record.at_ns)} after step {step.step}"
    spent = step_parts(step)
    most = max(spent, key=lambda part: spent[part])
    whole = seconds(sum(spent.values()) * SECOND_NS)
    share = seconds(spent[most] * SECOND_NS)
    return f"was in step {step.step}, which took {whole} ({share} of it {most})"
