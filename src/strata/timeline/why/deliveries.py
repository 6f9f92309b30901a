"""A says that it sent something, and B never got it: why?

What A sends is a message (the results of local steps are announced by messages, and passed on by
other workers) or its values in a step that all workers take together (see `collectives`). The
question names a message, or a sender and a receiver; then it is about the newest that the sender
sent, or the one of a step or before a moment.

A verdict is decided on recorded values. Where it would rest on the absence of an event, the worker
must be known to record that kind; otherwise the answer is that it was not recorded.
"""

from strata.errors import InvalidArgument
from strata.timeline.causes import ARRIVALS, MESSAGE_NS, causes_of, receivers
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.why import collectives
from strata.timeline.why.absence import ABSENT, alive_between, connection_before, down, records_kind
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.words import seconds

LATE_NS = 5 * SECOND_NS
STILL_COMING_NS = 30 * SECOND_NS


def delivery(
    case: Case,
    message: str = "",
    receiver: str = "",
    sender: str = "",
    step: int | None = None,
    time_ms: float | None = None,
) -> Answer:
    """Did it arrive, and if not: never sent, link down, rejected, receiver down, or late?"""
    if message:
        first = case.first(
            {"MessageSent"}, case.extent.from_ns, node=sender or None, message=message
        )
        return _never_sent(case, message, sender) if first is None else _told(case, first, receiver)
    if not (sender and receiver):
        raise InvalidArgument(
            "the question delivery needs a message, or a sender and a receiver",
            hint="give message=… or sender=… receiver=… (and step=… or time_ms=… for an older one)",
        )
    until_ns = case.until(time_ms)
    sent = _newest_of(case, sender, step, until_ns)
    began = collectives.newest(case, sender, step, until_ns)
    if began is not None and (sent is None or sent.at_ns < began.at_ns):
        return collectives.delivered(case, began, receiver)
    if sent is not None:
        return _told(case, sent, receiver)
    seen = collectives.received(case, sender, receiver, step, until_ns)
    if seen is not None:
        return seen
    return _nothing_sent(case, sender, step, until_ns)


def _newest_of(case: Case, sender: str, step: int | None, until_ns: int) -> Record | None:
    """The first sending of the newest message that a worker sent by itself, not for another."""
    newest = None
    for record in case.timeline.backwards(until_ns, node=sender, kinds={"MessageSent"}):
        own = record.get("author") in ("", sender) and record.get("rebroadcasts") == 0
        if newest is None:
            if own and step in (None, record.get("step")):
                newest = record
        elif newest.at_ns - record.at_ns > MESSAGE_NS:
            break
        elif record.text("message") == newest.text("message"):
            newest = record
        elif own:
            break
    return newest


def _told(case: Case, first: Record, receiver: str) -> Answer:
    """How a message came to a receiver, or why it did not; `first` is when it was first sent."""
    receiver = receiver or next(iter(receivers(first)), "")
    taken, refused = _arrivals_at(case, first, receiver)
    if taken is not None:
        return _arrived(case, first, taken, refused)
    if refused is not None:
        chain = _sending_of(case, first, refused)
        text = f"no: it arrived at {receiver} and was rejected: {refused.text('reason')}"
        return Answer("no", text, [*chain, link(refused)])
    return _missing(case, first, receiver)


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


def _sending_of(case: Case, first: Record, arrival: Record) -> list[Link]:
    """The first sending of a message, and the one that arrived, where that is another one."""
    sendings = [each for each in causes_of(case.timeline, arrival) if each.kind == "MessageSent"]
    return [link(first), *(link(each) for each in sendings[:1] if each.ref != first.ref)]


def _arrived(case: Case, first: Record, taken: Record, refused: Record | None) -> Answer:
    receiver, passed_on_by = taken.node, taken.text("sender")
    took_ns = max(taken.at_ns - first.at_ns, 0)
    late = took_ns > LATE_NS
    how = f"late, {seconds(took_ns)} after it was sent" if late else f"after {seconds(took_ns)}"
    way = "" if passed_on_by in ("", first.node) else f" from {passed_on_by}, which passed it on,"
    chain = _sending_of(case, first, taken)
    if refused is not None:
        chain.append(link(refused))
    reasons = _reasons_of_delay(case, chain[-1 if refused is None else -2].record, taken)
    chain += [link(each) for each in reasons] if late else []
    cost = Cost(took_ns / SECOND_NS, 1, f"{receiver} had it {seconds(took_ns)} late")
    why = f": {_why_late(reasons[-1])}" if late and reasons else ""
    text = f"yes: {receiver} got it{way} {how}{why}"
    return Answer("yes", text, [*chain, link(taken)], cost if late else Cost())


def _reasons_of_delay(case: Case, sent: Record, taken: Record) -> list[Record]:
    """That the connection was down between the sending and the arrival, or the receiver slow."""
    kinds = {"ConnectionChanged", "PeerLagged"}
    since_ns = sent.at_ns - MESSAGE_NS if sent.get("attempt") != 1 else sent.at_ns
    found = case.all(kinds, since_ns, taken.at_ns, node=sent.node, peer=taken.node)
    broken = [r for r in found if r.get("path") == "disconnected"][-1:]
    lagging = [r for r in found if r.kind == "PeerLagged" and r.get("messages")][-1:]
    return [*lagging, *broken]


def _why_late(reason: Record) -> str:
    if reason.kind == "PeerLagged":
        return f"{reason.text('peer')} was slow to take it; {link(reason).text}"
    return f"the connection was down; {link(reason).text}"


def _missing(case: Case, first: Record, receiver: str) -> Answer:
    """It was sent and nothing says that it arrived."""
    sent = _last_to(case, first, receiver)
    chain = [link(first)]
    if sent is not None and sent.ref != first.ref:
        chain.append(link(sent))
    last = chain[-1].record
    until_ns = last.at_ns + STILL_COMING_NS
    cut = connection_before(case, last.node, receiver, until_ns)
    cut = cut if cut is not None and cut.get("path") == "disconnected" else None
    ended = down(case, receiver, last.at_ns, until_ns)
    if ended is not None and (
        cut is None or not alive_between(case, receiver, cut.at_ns, ended.at_ns)
    ):
        return Answer("no", f"no: {receiver} was down: {link(ended).text}", [*chain, link(ended)])
    if cut is not None:
        between = f"{cut.node} and {cut.text('peer')}"
        text = f"no: the link between {between} was down: {cut.text('reason')}"
        return Answer("no", text, [*chain, link(cut)])
    return _unseen(case, first, receiver, chain, sent is not None)


def _last_to(case: Case, first: Record, receiver: str) -> Record | None:
    """The last time that any worker sent a message to the receiver."""
    sendings = case.all(
        {"MessageSent"},
        first.at_ns,
        first.at_ns + MESSAGE_NS,
        node=None,
        message=first.text("message"),
    )
    return next((each for each in reversed(sendings) if receiver in receivers(each)), None)


def _unseen(
    case: Case, first: Record, receiver: str, chain: list[Link], was_sent_there: bool
) -> Answer:
    """Nothing explains why it did not arrive."""
    sent = chain[-1].record
    until_ns = sent.at_ns + STILL_COMING_NS
    holes = case.holes(receiver, sent.at_ns, until_ns)
    if holes:
        text = f"unknown: the log of {receiver} has a hole there: {holes[0]}"
        return Answer("unknown", text, chain)
    if not records_kind(case, receiver, {"MessageReceived", "NeighborsChanged"}):
        return Answer("unknown", f"{ABSENT}: {receiver} recorded no messages at all", chain)
    if until_ns > case.extent.to_ns:
        return Answer("open", "open: it may still be on its way where the log ends", chain)
    silence_s = lost_s(sent.at_ns, case.extent.to_ns)
    lost = f"the link between {sent.node} and {receiver} lost it"
    if not was_sent_there:
        to = ", ".join(receivers(first))
        lost = f"{first.node} sent it to {to}, and no worker passed it on to {receiver}"
    text = f"no: {receiver} was up and its log is complete, and it never arrived: {lost}"
    cost = Cost(silence_s, 1, f"{receiver} went without it for {silence_s:.0f} s")
    return Answer("no", text, chain, cost)


def _never_sent(case: Case, message: str, sender: str) -> Answer:
    if sender and not records_kind(case, sender, {"MessageSent"}):
        return Answer("unknown", f"{ABSENT}: {sender} recorded no messages at all")
    holes = case.holes(sender, case.extent.from_ns, case.extent.to_ns) if sender else []
    if sender and not holes:
        return Answer("no", f"no: {sender} never sent {message}; its log is complete")
    who = sender or "no node"
    reason = holes[0] if holes else "the sender is not named, and some log may have a hole"
    return Answer("unknown", f"unknown: {who} recorded sending {message}, but {reason}")


def _nothing_sent(case: Case, sender: str, step: int | None, until_ns: int) -> Answer:
    """The log has nothing that the sender sent, or nothing of that step."""
    kinds = {"MessageSent", "ExchangeStarted"}
    last = case.last(kinds, until_ns, node=sender)
    if step is None or last is None:
        text = f"{ABSENT}: {sender} recorded neither messages nor exchanges up to then"
        return Answer("unknown", text)
    text = f"{sender} recorded nothing that it sent in step {step}"
    ended = down(case, sender, last.at_ns, case.extent.to_ns + 1)
    chain = [link(last), *([link(ended)] if ended is not None else [])]
    holes = case.holes(sender, last.at_ns, case.extent.to_ns)
    if holes:
        return Answer("unknown", f"unknown: {text}, but {holes[0]}", chain)
    return Answer("no", f"no: {text}; its log is complete", chain)
