"""A says it sent X, and B never got it; and: why did the coordinator not act on my request?"""

from strata.timeline.causes import ARRIVALS, MESSAGE_NS
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.words import seconds

LATE_NS = 5 * SECOND_NS
STILL_COMING_NS = 30 * SECOND_NS


def delivery(case: Case, message: str, receiver: str = "", sender: str = "") -> Answer:
    """Did it arrive, and if not: never sent, link down, rejected, receiver down, or late?"""
    sent = case.first({"MessageSent"}, case.extent.from_ns, node=sender or None, message=message)
    if sent is None:
        return _never_sent(case, message, sender)
    to = sent.get("to")
    receiver = receiver or (str(to[0]) if isinstance(to, list) and to else "")
    taken, refused = _arrivals_at(case, sent, receiver)
    chain = [link(sent)]
    if taken is not None:
        return _arrived(sent, taken, receiver)
    if refused is not None:
        text = f"no: it arrived at {receiver} and was rejected: {refused.text('reason')}"
        return Answer("no", text, [*chain, link(refused)])
    return _missing(case, sent, receiver, chain)


def _arrivals_at(case: Case, sent: Record, receiver: str) -> tuple[Record | None, Record | None]:
    """How a message arrived at one node: taken, or refused; looks no further than it must."""
    refused = None
    window = (sent.at_ns - SECOND_NS, sent.at_ns + MESSAGE_NS)
    for record in case.timeline.records(*window, node=receiver, kinds=ARRIVALS):
        if record.text("message") != sent.text("message"):
            continue
        if record.kind == "MessageReceived":
            return record, refused
        refused = refused or record
    return None, refused


def _never_sent(case: Case, message: str, sender: str) -> Answer:
    holes = case.holes(sender, case.extent.from_ns, case.extent.to_ns) if sender else []
    if sender and not holes:
        return Answer("no", f"no: {sender} never sent {message}; its log is complete")
    who = sender or "no node"
    reason = holes[0] if holes else "the sender is not named, and some log may have a hole"
    return Answer("unknown", f"unknown: {who} recorded sending {message}, but {reason}")


def _arrived(sent: Record, taken: Record, receiver: str) -> Answer:
    took_ns = max(taken.at_ns - sent.at_ns, 0)
    late = took_ns > LATE_NS
    how = f"late, {seconds(took_ns)} after it was sent" if late else f"after {seconds(took_ns)}"
    cost = Cost(took_ns / SECOND_NS, 1, f"{receiver} had it {seconds(took_ns)} late")
    chain = [link(sent), link(taken)]
    return Answer("yes", f"yes: {receiver} got it {how}", chain, cost if late else Cost())


def _missing(case: Case, sent: Record, receiver: str, chain: list[Link]) -> Answer:
    """It was sent and nothing says that it arrived."""
    until_ns = sent.at_ns + STILL_COMING_NS
    down = _down(case, receiver, sent.at_ns, until_ns)
    if down is not None:
        text = f"no: {receiver} was down: {link(down).text}"
        return Answer("no", text, [*chain, link(down)])
    cut = _cut(case, sent, receiver, until_ns)
    if cut is not None:
        text = f"no: the link between {sent.node} and {receiver} was down"
        return Answer("no", text, [*chain, link(cut)])
    holes = case.holes(receiver, sent.at_ns, until_ns)
    if holes:
        text = f"unknown: the log of {receiver} has a hole there: {holes[0]}"
        return Answer("unknown", text, chain)
    if until_ns > case.extent.to_ns:
        return Answer("open", "open: it may still be on its way where the log ends", chain)
    silence_s = lost_s(sent.at_ns, case.extent.to_ns)
    text = (
        f"no: {receiver} was up and its log is complete, and it never arrived: "
        f"the link between {sent.node} and {receiver} lost it"
    )
    cost = Cost(silence_s, 1, f"{receiver} went without it for {silence_s:.0f} s")
    return Answer("no", text, chain, cost)


def _down(case: Case, receiver: str, from_ns: int, until_ns: int) -> Record | None:
    """That the receiver was not there when it should have arrived."""
    ends = {"WorkerLost", "WorkerExited"}
    before = case.last({*ends, "WorkerRegistered"}, from_ns, worker=receiver)
    if before is not None and before.kind in ends:
        return before
    after = case.first(ends, from_ns, until_ns, worker=receiver)
    ended = case.last({"RunEnded"}, from_ns, node=receiver)
    return after or ended


def _cut(case: Case, sent: Record, receiver: str, until_ns: int) -> Record | None:
    """A word of either side that the way to the other is closed."""
    for node, peer in ((sent.node, receiver), (receiver, sent.node)):
        found = case.last(
            {"ConnectionChanged"}, until_ns, sent.at_ns - LATE_NS, node=node, peer=peer
        )
        if found is not None and found.text("path") == "disconnected":
            return found
    return None


def request(case: Case, worker: str, request: int) -> Answer:
    """Was it answered, and if not: never sent, coordinator away, worker fenced, or still open?"""
    asked = case.require(
        case.last({"RequestSubmitted"}, node=worker, request=request),
        f"request {request} of {worker}",
    )
    done = case.first({"RequestCompleted"}, asked.at_ns, node=worker, request=request)
    chain = [link(asked)]
    if done is not None:
        took_ns = done.event.mono_ns - asked.event.mono_ns
        cost = Cost(took_ns / SECOND_NS, 1, f"{worker} waited {seconds(took_ns)}")
        ok = done.get("ok") is True
        verb = "answered" if ok else f"refused ({done.text('error')})"
        verdict: Verdict = "yes" if ok else "no"
        text = f"{verdict}: it was {verb} after {seconds(took_ns)}"
        return Answer(verdict, text, [*chain, link(done)], cost)
    for record in _obstacles(case, asked, worker):
        text = f"no: {link(record).text} before it was answered"
        return Answer("no", text, [*chain, link(record)])
    holes = case.holes(worker, asked.at_ns, case.extent.to_ns)
    if holes:
        return Answer("unknown", f"unknown: {holes[0]}", chain)
    waited_ns = case.extent.to_ns - asked.at_ns
    return Answer("open", f"open: it has waited for {seconds(waited_ns)}", chain)


def _obstacles(case: Case, asked: Record, worker: str) -> list[Record]:
    """What kept the coordinator from answering."""
    kinds = {"WorkerLost", "WorkerFenced", "CoordinatorStarted", "WorkerExited"}
    found = case.all(kinds, asked.at_ns, asked.at_ns + 600 * SECOND_NS)
    return [r for r in found if r.kind == "CoordinatorStarted" or r.text("worker") == worker]
