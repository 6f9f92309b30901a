"""Why did worker B not receive what worker A sent; why did the coordinator not answer a request?

A sends a message (results of local steps are announced by messages, which other workers forward) or
its values in a collective step (`exchange_delivery`). The question gives a message, or a sender and
a receiver; then it is about the sender's newest message, or the one of a step or before a moment.

Verdicts are decided on recorded values. A verdict that relies on a missing event requires that the
worker records that kind; otherwise the answer is `unknown: not recorded`.
"""

from strata.errors import InvalidArgument
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.causes import ARRIVALS, MESSAGE_NS, causes_of, receivers
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import seconds
from strata.timeline.why import exchange_delivery
from strata.timeline.why.investigation import (
    ABSENT,
    Answer,
    Link,
    LogSearch,
    alive_between,
    connection_before,
    down,
    link,
    lost_s,
    records_kind,
)

LATE_NS = 5 * SECOND_NS
STILL_COMING_NS = 30 * SECOND_NS


def delivery(
    search: LogSearch,
    message: str = "",
    receiver: str = "",
    sender: str = "",
    step: int | None = None,
    time_ms: float | None = None,
) -> Answer:
    """Did it arrive; if not: never sent, connection down, rejected, receiver down, or late?"""
    if message:
        first = search.first(
            {"MessageSent"}, search.extent.from_ns, node=sender or None, message=message
        )
        return (
            _never_sent(search, message, sender)
            if first is None
            else _delivery(search, first, receiver)
        )
    if not (sender and receiver):
        raise InvalidArgument(
            "the question delivery needs a message, or a sender and a receiver",
            hint="add message=…, or sender=… receiver=… (and step=… or time_ms=… for an older one)",
        )
    until_ns = search.until(time_ms)
    sent = _newest_of(search, sender, step, until_ns)
    began = exchange_delivery.newest(search, sender, step, until_ns)
    if began is not None and (sent is None or sent.at_ns < began.at_ns):
        return exchange_delivery.delivered(search, began, receiver)
    if sent is not None:
        return _delivery(search, sent, receiver)
    seen = exchange_delivery.received(search, sender, receiver, step, until_ns)
    if seen is not None:
        return seen
    return _nothing_sent(search, sender, step, until_ns)


def _newest_of(search: LogSearch, sender: str, step: int | None, until_ns: int) -> Record | None:
    """The first send of the newest message that a worker sent itself, not forwarded."""
    newest = None
    for record in search.timeline.backwards(until_ns, node=sender, kinds={"MessageSent"}):
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


def _delivery(search: LogSearch, first: Record, receiver: str) -> Answer:
    """How a message reached a receiver, or why not; `first` is its first send."""
    receiver = receiver or next(iter(receivers(first)), "")
    taken, refused = _arrivals_at(search, first, receiver)
    if taken is not None:
        return _arrived(search, first, taken, refused)
    if refused is not None:
        chain = _sending_of(search, first, refused)
        text = f"no: it arrived at {receiver} and was rejected: {refused.text('reason')}"
        return Answer(verdict="no", text=text, chain=[*chain, link(refused)])
    return _missing(search, first, receiver)


def _arrivals_at(
    search: LogSearch, sent: Record, receiver: str
) -> tuple[Record | None, Record | None]:
    """The acceptance and the rejection of a message by a node, each None if not found."""
    refused = None
    window = (sent.at_ns - SECOND_NS, sent.at_ns + MESSAGE_NS)
    for record in search.timeline.records(*window, node=receiver, kinds=ARRIVALS):
        if record.text("message") != sent.text("message"):
            continue
        if record.kind == "MessageReceived":
            return record, refused
        refused = refused or record
    return None, refused


def _sending_of(search: LogSearch, first: Record, arrival: Record) -> list[Link]:
    """The first send of a message, and the send that arrived, if different."""
    sendings = [each for each in causes_of(search.timeline, arrival) if each.kind == "MessageSent"]
    return [link(first), *(link(each) for each in sendings[:1] if each.ref != first.ref)]


def _arrived(search: LogSearch, first: Record, taken: Record, refused: Record | None) -> Answer:
    receiver, passed_on_by = taken.node, taken.text("sender")
    took_ns = max(taken.at_ns - first.at_ns, 0)
    late = took_ns > LATE_NS
    how = f"late, {seconds(took_ns)} after it was sent" if late else f"after {seconds(took_ns)}"
    way = "" if passed_on_by in ("", first.node) else f" from {passed_on_by}, which forwarded it,"
    chain = _sending_of(search, first, taken)
    if refused is not None:
        chain.append(link(refused))
    reasons = _reasons_of_delay(search, chain[-1 if refused is None else -2].record, taken)
    chain += [link(each) for each in reasons] if late else []
    cost = Cost(took_ns / SECOND_NS, 1, f"{receiver} got it {seconds(took_ns)} late")
    why = f": {_why_late(reasons[-1])}" if late and reasons else ""
    text = f"yes: {receiver} got it{way} {how}{why}"
    return Answer(
        verdict="yes", text=text, chain=[*chain, link(taken)], cost=cost if late else Cost()
    )


def _reasons_of_delay(search: LogSearch, sent: Record, taken: Record) -> list[Record]:
    """Events that explain a late arrival: a slow receiver, a broken connection."""
    kinds = {"ConnectionChanged", "PeerLagged"}
    since_ns = sent.at_ns - MESSAGE_NS if sent.get("attempt") != 1 else sent.at_ns
    found = search.all(kinds, since_ns, taken.at_ns, node=sent.node, peer=taken.node)
    broken = [r for r in found if r.get("path") == "disconnected"][-1:]
    lagging = [r for r in found if r.kind == "PeerLagged" and r.get("messages")][-1:]
    return [*lagging, *broken]


def _why_late(reason: Record) -> str:
    if reason.kind == "PeerLagged":
        return f"{reason.text('peer')} received slowly; {link(reason).text}"
    return f"the connection was down; {link(reason).text}"


def _missing(search: LogSearch, first: Record, receiver: str) -> Answer:
    """The message was sent, and no arrival is recorded."""
    sent = _last_to(search, first, receiver)
    chain = [link(first)]
    if sent is not None and sent.ref != first.ref:
        chain.append(link(sent))
    last = chain[-1].record
    until_ns = last.at_ns + STILL_COMING_NS
    cut = connection_before(search, last.node, receiver, until_ns)
    cut = cut if cut is not None and cut.get("path") == "disconnected" else None
    ended = down(search, receiver, last.at_ns, until_ns)
    if ended is not None and (
        cut is None or not alive_between(search, receiver, cut.at_ns, ended.at_ns)
    ):
        return Answer(
            verdict="no",
            text=f"no: {receiver} was down: {link(ended).text}",
            chain=[*chain, link(ended)],
        )
    if cut is not None:
        between = f"{cut.node} and {cut.text('peer')}"
        text = f"no: the link between {between} was down: {cut.text('reason')}"
        return Answer(verdict="no", text=text, chain=[*chain, link(cut)])
    return _unseen(search, first, receiver, chain, sent is not None)


def _last_to(search: LogSearch, first: Record, receiver: str) -> Record | None:
    """The last send of a message to the receiver, by any worker."""
    sendings = search.all(
        {"MessageSent"},
        first.at_ns,
        first.at_ns + MESSAGE_NS,
        node=None,
        message=first.text("message"),
    )
    return next((each for each in reversed(sendings) if receiver in receivers(each)), None)


def _unseen(
    search: LogSearch, first: Record, receiver: str, chain: list[Link], was_sent_there: bool
) -> Answer:
    """No event explains why the message did not arrive."""
    sent = chain[-1].record
    until_ns = sent.at_ns + STILL_COMING_NS
    holes = search.holes(receiver, sent.at_ns, until_ns)
    if holes:
        text = f"unknown: the log of {receiver} has a hole there: {holes[0]}"
        return Answer(verdict="unknown", text=text, chain=chain)
    if not records_kind(search, receiver, {"MessageReceived", "NeighborsChanged"}):
        return Answer(
            verdict="unknown", text=f"{ABSENT}: {receiver} recorded no messages at all", chain=chain
        )
    if until_ns > search.extent.to_ns:
        return Answer(
            verdict="open",
            text="open: it may still be in transit at the end of the log",
            chain=chain,
        )
    missing_s = lost_s(sent.at_ns, search.extent.to_ns)
    lost = f"it was lost on the link between {sent.node} and {receiver}"
    if not was_sent_there:
        to = ", ".join(receivers(first))
        lost = f"{first.node} sent it to {to}, and no worker forwarded it to {receiver}"
    text = f"no: {receiver} was up and its log is complete, but the message never arrived: {lost}"
    cost = Cost(missing_s, 1, f"{receiver} missed it for {missing_s:.0f} s")
    return Answer(verdict="no", text=text, chain=chain, cost=cost)


def _never_sent(search: LogSearch, message: str, sender: str) -> Answer:
    if sender and not records_kind(search, sender, {"MessageSent"}):
        return Answer(verdict="unknown", text=f"{ABSENT}: {sender} recorded no messages at all")
    holes = search.holes(sender, search.extent.from_ns, search.extent.to_ns) if sender else []
    if sender and not holes:
        return Answer(verdict="no", text=f"no: {sender} never sent {message}; its log is complete")
    who = sender or "any node"
    reason = holes[0] if holes else "no sender is given, and some log may have a hole"
    return Answer(
        verdict="unknown", text=f"unknown: no record that {who} sent {message}, but {reason}"
    )


def _nothing_sent(search: LogSearch, sender: str, step: int | None, until_ns: int) -> Answer:
    """The log has no send of the sender, or none in that step."""
    kinds = {"MessageSent", "ExchangeStarted"}
    last = search.last(kinds, until_ns, node=sender)
    if step is None or last is None:
        text = f"{ABSENT}: {sender} recorded neither messages nor exchanges before"
        return Answer(verdict="unknown", text=text)
    text = f"{sender} recorded no send in step {step}"
    ended = down(search, sender, last.at_ns, search.extent.to_ns + 1)
    chain = [link(last), *([link(ended)] if ended is not None else [])]
    holes = search.holes(sender, last.at_ns, search.extent.to_ns)
    if holes:
        return Answer(verdict="unknown", text=f"unknown: {text}, but {holes[0]}", chain=chain)
    return Answer(verdict="no", text=f"no: {text}; its log is complete", chain=chain)


def request(search: LogSearch, worker: str, request: int) -> Answer:
    """Was it answered; if not: coordinator restarted, worker fenced or lost, or still open?"""
    asked = search.require(
        search.last({"RequestSubmitted"}, node=worker, request=request),
        f"request {request} of {worker}",
    )
    done = search.first({"RequestCompleted"}, asked.at_ns, node=worker, request=request)
    chain = [link(asked)]
    if done is not None:
        took_ns = done.event.mono_ns - asked.event.mono_ns
        cost = Cost(took_ns / SECOND_NS, 1, f"{worker} waited {seconds(took_ns)}")
        ok = done.get("ok") is True
        verb = "answered" if ok else f"refused ({done.text('error')})"
        verdict: Verdict = "yes" if ok else "no"
        text = f"{verdict}: it was {verb} after {seconds(took_ns)}"
        return Answer(verdict=verdict, text=text, chain=[*chain, link(done)], cost=cost)
    for record in _obstacles(search, asked, worker):
        text = f"no: {link(record).text} before it was answered"
        return Answer(verdict="no", text=text, chain=[*chain, link(record)])
    holes = search.holes(worker, asked.at_ns, search.extent.to_ns)
    if holes:
        return Answer(verdict="unknown", text=f"unknown: {holes[0]}", chain=chain)
    waited_ns = search.extent.to_ns - asked.at_ns
    return Answer(verdict="open", text=f"open: it has waited for {seconds(waited_ns)}", chain=chain)


def _obstacles(search: LogSearch, asked: Record, worker: str) -> list[Record]:
    """Events that explain a missing answer."""
    kinds = {"WorkerLost", "WorkerFenced", "CoordinatorStarted", "WorkerExited"}
    found = search.all(kinds, asked.at_ns, asked.at_ns + 600 * SECOND_NS)
    return [r for r in found if r.kind == "CoordinatorStarted" or r.text("worker") == worker]
