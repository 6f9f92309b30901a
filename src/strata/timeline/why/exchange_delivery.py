"""Did a worker's values reach another worker in a collective step?

In an exchange every member gets the values of all members, or no member applies the step (see
`core/workers/exchange_facts`). So a receiver that completed the exchange of that step and
generation has the sender's values. If it did not, the cause is the first connection that broke.
"""

from strata.timeline.answers import Cost
from strata.timeline.read.records import MS_NS, SECOND_NS, Record
from strata.timeline.read.sentences import seconds
from strata.timeline.why.investigation import (
    ABSENT,
    SLACK_NS,
    Answer,
    Link,
    LogSearch,
    alive_between,
    down,
    link,
    lost_s,
    records_kind,
)

LATE_NS = 5 * SECOND_NS
NOTICED_NS = 60 * SECOND_NS
"""How long after a break its causes are searched: they may be found by a heartbeat timeout."""


def newest(search: LogSearch, worker: str, step: int | None, until_ns: int) -> Record | None:
    """The start of a worker's newest exchange before a moment, or of the one of a step."""
    found = search.timeline.backwards(until_ns, node=worker, kinds={"ExchangeStarted"})
    return next((each for each in found if step in (None, each.get("step"))), None)


def delivered(search: LogSearch, began: Record, receiver: str) -> Answer:
    """Did the receiver get the sender's values of an exchange, by the records of both?"""
    members = _members(search, began)
    if members and receiver not in members:
        return _no_member(search, began, receiver)
    theirs = _exchange_of(search, receiver, "ExchangeStarted", began)
    ended = _exchange_of(search, receiver, "ExchangeCompleted", began)
    chain = [link(began)]
    if ended is not None and ended.get("ok") is True:
        return _applied(search, began, ended, receiver)
    if ended is not None:
        return _broken(search, began, ended, receiver)
    if theirs is not None:
        chain.append(link(theirs))
    return _unfinished(search, began, theirs, receiver, chain)


def received(
    search: LogSearch, sender: str, receiver: str, step: int | None, until_ns: int
) -> Answer | None:
    """The same by the receiver's record alone, if the sender has none; None if unknown."""
    theirs = newest(search, receiver, step, until_ns) if step is not None else None
    ended = _exchange_of(search, receiver, "ExchangeCompleted", theirs) if theirs else None
    if theirs is None or ended is None:
        return None
    if ended.get("ok") is False:
        return _broken(search, theirs, ended, receiver)
    if sender not in _members(search, theirs):
        return _no_member(search, theirs, sender)
    text = (
        f"yes: {receiver} applied {_where(theirs)} with the values of all members; "
        f"{sender} has no record of its own"
    )
    return Answer(verdict="yes", text=text, chain=[link(theirs), link(ended)])


def _members(search: LogSearch, began: Record) -> list[str]:
    """The members of an exchange's generation, as the worker recorded them; may be empty."""
    opened = search.last(
        {"ExchangeOpened"}, began.at_ns + 1, node=began.node, generation=began.get("generation")
    )
    members = opened.get("members") if opened is not None else None
    return [str(each) for each in members] if isinstance(members, list) else []


def _exchange_of(search: LogSearch, worker: str, kind: str, began: Record) -> Record | None:
    """A worker's record of the same exchange; it may start before the others, but not end."""
    early_ns = NOTICED_NS if kind == "ExchangeStarted" else SLACK_NS
    return search.first(
        {kind},
        began.at_ns - early_ns,
        node=worker,
        step=began.get("step"),
        generation=began.get("generation"),
    )


def _where(began: Record) -> str:
    return f"step {began.text('step')} of generation {began.text('generation')}"


def _applied(search: LogSearch, began: Record, ended: Record, receiver: str) -> Answer:
    took_ns = max(ended.at_ns - began.at_ns, 0)
    late = took_ns > LATE_NS
    how = f"late, {seconds(took_ns)}" if late else seconds(took_ns)
    text = (
        f"yes: {receiver} applied {_where(began)} with the values of {began.node}, "
        f"{how} after {began.node} started the exchange"
    )
    cost = Cost(took_ns / SECOND_NS, 1, f"{receiver} got them {seconds(took_ns)} late")
    chain = [link(began), link(ended)]
    if late:
        chain[1:1] = [link(each) for each in _late_members(search, began)]
    return Answer(
        verdict="yes",
        text=text,
        chain=chain,
        cost=cost if late else Cost(),
        findings=_failed_before(search, began),
    )


def _late_members(search: LogSearch, began: Record) -> list[Record]:
    """The start of the member that joined an exchange last."""
    starts = (
        _exchange_of(search, each, "ExchangeStarted", began) for each in _members(search, began)
    )
    return sorted((each for each in starts if each is not None), key=lambda r: r.key)[-1:]


def _failed_before(search: LogSearch, began: Record) -> list[str]:
    """Sentences on the sender's earlier failed exchanges of the same step."""
    found = search.all(
        {"ExchangeCompleted"}, None, began.at_ns, node=began.node, step=began.get("step")
    )
    return [
        f"{link(each).text} (time_ms={each.at_ns / MS_NS:.3f})"
        for each in found
        if each.get("ok") is False
    ]


def _broken(search: LogSearch, began: Record, ended: Record, receiver: str) -> Answer:
    """The receiver's exchange failed: find the first connection that broke."""
    chain = [link(began)]
    first = _first_break(search, began)
    culprit = first.text("peer") if first is not None else ended.text("peer")
    chain += [link(first)] if first is not None else []
    chain.append(link(ended))
    lost = down(search, culprit, began.at_ns, ended.at_ns + NOTICED_NS) if culprit else None
    since_ns = (first or ended).at_ns
    if lost is not None and not alive_between(search, culprit, since_ns, lost.at_ns):
        text = f"no: {culprit} was down in {_where(began)}: {link(lost).text}"
        return Answer(verdict="no", text=text, chain=[*chain, link(lost)])
    if first is not None:
        text = (
            f"no: the link between {first.node} and {culprit} broke in {_where(began)}: "
            f"{first.text('reason')}"
        )
        return Answer(verdict="no", text=text, chain=chain)
    text = f"no: {receiver} did not apply {_where(began)}: {ended.text('error')}"
    return Answer(verdict="no", text=text, chain=chain)


def _first_break(search: LogSearch, began: Record) -> Record | None:
    """The first connection between members that broke after the exchange started."""
    members = _members(search, began)
    ends = [
        each
        for worker in members
        if (each := _exchange_of(search, worker, "ExchangeCompleted", began)) is not None
        and each.get("ok") is False
    ]
    if not ends:
        return None
    until_ns = max(each.at_ns for each in ends) + 1
    found = search.all({"ConnectionChanged"}, began.at_ns - LATE_NS, until_ns, node=None)
    breaks = [
        each
        for each in found
        if (each.get("purpose"), each.get("path")) == ("exchange", "disconnected")
        and each.node in members
    ]
    return min(breaks, key=lambda record: record.key, default=None)


def _no_member(search: LogSearch, began: Record, receiver: str) -> Answer:
    lost = down(search, receiver, began.at_ns, began.at_ns + 1)
    if lost is not None:
        text = f"no: {receiver} was down before {_where(began)}: {link(lost).text}"
        return Answer(verdict="no", text=text, chain=[link(lost), link(began)])
    text = f"no: {receiver} is not a member of generation {began.text('generation')}"
    return Answer(verdict="no", text=text, chain=[link(began)])


def _unfinished(
    search: LogSearch, began: Record, theirs: Record | None, receiver: str, chain: list[Link]
) -> Answer:
    """The receiver has no record of the exchange's end, or not even of its start."""
    lost = down(search, receiver, began.at_ns, began.at_ns + NOTICED_NS)
    if lost is not None:
        text = f"no: {receiver} was down in {_where(began)}: {link(lost).text}"
        return Answer(verdict="no", text=text, chain=[*chain, link(lost)])
    holes = search.holes(receiver, began.at_ns, began.at_ns + NOTICED_NS)
    waited_ns = search.extent.to_ns - began.at_ns
    own = _exchange_of(search, began.node, "ExchangeCompleted", began)
    if own is None and waited_ns < NOTICED_NS:
        state = "has started the exchange too" if theirs is not None else "has not started it yet"
        text = f"open: {began.node} has waited for {seconds(waited_ns)}, and {receiver} {state}"
        return Answer(verdict="open", text=text, chain=chain)
    if holes:
        text = f"unknown: the log of {receiver} has a hole there: {holes[0]}"
        return Answer(verdict="unknown", text=text, chain=chain)
    if not records_kind(search, receiver, {"ExchangeStarted"}):
        return Answer(
            verdict="unknown",
            text=f"{ABSENT}: {receiver} recorded no exchanges at all",
            chain=chain,
        )
    chain += [link(own)] if own is not None else []
    if theirs is not None:
        text = f"no: {receiver} started {_where(began)} and never finished it; its log is complete"
    else:
        text = f"no: {receiver} never started {_where(began)}; its log is complete"
    cost = Cost(lost_s(began.at_ns, search.extent.to_ns), 1, f"{began.node} waited for it")
    return Answer(verdict="no", text=text, chain=chain, cost=cost if own is None else Cost())
