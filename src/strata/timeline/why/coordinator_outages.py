"""Was the coordinator away, for how long, and how did it come back?

A coordinator records its starts, and times in which its store refused facts, but neither its end
nor a time in which its process was stopped.
Both show in the record of the others: the workers' connections break when the process ends, and
heartbeats are answered late when it does not run. A late answer of a few workers, while it answered
others, is the fault of their connections.
"""

from collections.abc import Iterable

from strata.core.cluster import CoordinatorStarted
from strata.core.record.store_outages import StoreRefused
from strata.core.workers.exchange_facts import ConnectionChanged
from strata.core.workers.worker_facts import ClockSampled
from strata.timeline.answers import Cost
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting, seconds
from strata.timeline.why.investigation import SLACK_NS, Answer, LogSearch, in_order, link, lost_s

LATE_NS = SECOND_NS
"""The round trip from which on a heartbeat was answered late."""

LOOK_BACK_NS = 3_600 * SECOND_NS
SHOWN = 4


def outage(search: LogSearch, time_ms: float | None = None) -> Answer:
    """Did the coordinator restart, or run without storing or answering, before a moment?"""
    until_ns = search.until(time_ms)
    started = search.last({CoordinatorStarted.__name__}, until_ns)
    body = started.event.body if started is not None else None
    restarted = isinstance(body, CoordinatorStarted) and body.incarnation > 1
    since_ns = started.at_ns if started is not None and restarted else until_ns - LOOK_BACK_NS
    late = search.timeline.backwards(until_ns, since_ns, kinds={ClockSampled.__name__})
    last = next((each for each in late if _round_trip_ns(each) >= LATE_NS), None)
    refused = search.last({StoreRefused.__name__}, until_ns, since_ns)
    if refused is not None and (last is None or last.at_ns - _round_trip_ns(last) < refused.at_ns):
        return _unstored(refused)
    # The first answers after a restart are not late ones: those heartbeats were sent to it.
    if last is not None and last.at_ns - _round_trip_ns(last) > since_ns:
        return _unanswered(search, last)
    if started is None or not restarted:
        text = "no: it did not restart, and no heartbeat was answered late in the last hour"
        return Answer(verdict="no", text=text)
    return _restart(search, started)


def _restart(search: LogSearch, started: Record) -> Answer:
    """Its process ended: when it last recorded something, and which workers noticed."""
    before = next(search.timeline.backwards(started.at_ns, node=started.node), None)
    from_ns = before.at_ns if before is not None else started.at_ns
    changes = search.timeline.records(
        from_ns - SLACK_NS, started.at_ns, kinds={ConnectionChanged.__name__}
    )
    broken = [each for each in changes if _is_lost(each)]
    away_ns = started.at_ns - (broken[0].at_ns if broken else from_ns)
    since = "the first connection broke" if broken else "its last fact"
    lost = f"; {_nodes(broken)} lost the connection to it" if broken else ""
    text = (
        f"yes: its process had ended and was started again (incarnation "
        f"{started.get('incarnation')}), {seconds(away_ns)} after {since}{lost}; "
        "whether it was killed, crashed or was stopped is not recorded"
    )
    links = [link(each) for each in (*([before] if before else []), *broken[:SHOWN], started)]
    cost = Cost(away_ns / SECOND_NS, 1, f"nothing was recorded for {seconds(away_ns)}")
    return Answer(verdict="yes", text=text, chain=in_order(links), cost=cost)


def _unstored(refused: Record) -> Answer:
    """Its store refused facts for a time."""
    body = refused.event.body
    assert isinstance(body, StoreRefused)
    lasted = lasting(body.lasted_s)
    text = (
        f"yes: it ran, but could store no facts for {lasted}, and refused requests: {body.reason}"
    )
    cost = Cost(body.lasted_s, 1, f"nothing was recorded for {lasted}")
    return Answer(verdict="yes", text=text, chain=[link(refused)], cost=cost)


def _unanswered(search: LogSearch, last: Record) -> Answer:
    """It ran on after a time in which it answered nobody, or not these workers."""
    waited_ns = _round_trip_ns(last)
    from_ns = last.at_ns - waited_ns
    samples = list(
        search.timeline.records(
            from_ns, last.at_ns + waited_ns + LATE_NS, kinds={ClockSampled.__name__}
        )
    )
    late = [each for each in samples if _round_trip_ns(each) >= LATE_NS]
    middle_ns = from_ns + waited_ns // 2
    # A heartbeat that was sent and answered within the time shows that it ran.
    served = [
        each
        for each in samples
        if each.at_ns - _round_trip_ns(each) > from_ns + SLACK_NS
        and each.at_ns < last.at_ns - SLACK_NS
        and _round_trip_ns(each) < LATE_NS
        and abs(each.at_ns - middle_ns) < waited_ns // 2
    ]
    longest = max(late, key=_round_trip_ns)
    away = seconds(_round_trip_ns(longest))
    cost = Cost(lost_s(from_ns, last.at_ns), 1, f"no answer for {away}")
    chain = in_order(link(each, f"{each.node}: {_said(each)}") for each in [*late[:SHOWN], longest])
    if served:
        text = (
            f"no: heartbeats of {_nodes(late)} were answered only after {away}, but those of "
            f"{_nodes(served)} at once meanwhile: the connection was slow, not the coordinator"
        )
        return Answer(verdict="no", text=text, chain=chain, cost=cost)
    text = (
        f"yes: it answered no heartbeat for {away} and was not restarted: its process was stopped "
        f"or starved, its disk blocked, or it was cut off from {_nodes(late)}"
    )
    return Answer(verdict="yes", text=text, chain=chain, cost=cost)


def _round_trip_ns(record: Record) -> int:
    found = record.get("round_trip_ns")
    return found if isinstance(found, int) else 0


def _said(record: Record) -> str:
    return f"its heartbeat was answered after {seconds(_round_trip_ns(record))}"


def _is_lost(record: Record) -> bool:
    """Whether a record is the loss of a session, and not of a connection to a peer."""
    body = record.event.body
    session = isinstance(body, ConnectionChanged) and not body.purpose
    return session and record.text("path") == "disconnected"


def _nodes(records: Iterable[Record]) -> str:
    """The nodes of some records: their names, or their number if they are many."""
    names = list(dict.fromkeys(each.node for each in records))
    return " and ".join(names) if len(names) <= 2 else counted(len(names), "worker")
