"""What the absence of an event can mean: its worker was down, or it does not record that kind."""

from strata.timeline.records import SECOND_NS, Record
from strata.timeline.why.case import Case

SLACK_NS = SECOND_NS // 10
"""How much the clocks of two workers may differ after they were aligned."""

ABSENT = "unknown: not recorded"
"""How an answer begins that would have to rest on events that a run does not record."""


def records_kind(case: Case, node: str, kinds: set[str]) -> bool:
    """Whether a node has recorded any event of some kinds, so that their absence says something."""
    tallies = case.timeline.tallies()
    return any(tally.node == node and not kinds.isdisjoint(tally.kinds) for tally in tallies)


def down(case: Case, worker: str, from_ns: int, until_ns: int) -> Record | None:
    """That a worker was not there at a moment, or ended before `until_ns`."""
    ends = {"WorkerLost", "WorkerExited"}
    before = case.last({*ends, "WorkerRegistered"}, from_ns, worker=worker)
    if before is not None and before.kind in ends:
        return before
    after = case.first(ends, from_ns, until_ns, worker=worker)
    if after is not None:
        return after
    ended = case.last({"RunEnded", "RunStarted"}, until_ns, node=worker)
    return ended if ended is not None and ended.kind == "RunEnded" else None


def alive_between(case: Case, worker: str, from_ns: int, to_ns: int) -> bool:
    """Whether a process recorded something after a moment and before another one.

    Then it was not its end that broke a connection at the first moment.
    """
    before = next(case.timeline.backwards(from_ns, node=worker), None)
    after = case.timeline.records(from_ns + SLACK_NS, to_ns, node=worker)
    return before is not None and any(r.incarnation == before.incarnation for r in after)


def connection_before(
    case: Case, node: str, peer: str, until_ns: int, purpose: str = "messages"
) -> Record | None:
    """What a worker recorded last about its connection to a peer; if nothing, what the peer did."""
    for one, other in ((node, peer), (peer, node)):
        for record in case.timeline.backwards(until_ns, node=one, kinds={"ConnectionChanged"}):
            if record.text("peer") == other and record.get("purpose") in ("", purpose):
                return record
    return None
