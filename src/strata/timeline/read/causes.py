"""Causes and effects of an event.

Events name their causes. If the arrival of a message names none, its send is searched by the
message's id. Effects are searched among the facts that follow, because a decision names its causes.
"""

from collections.abc import Iterator
from itertools import islice

from strata.core.events import COORDINATOR
from strata.errors import NotFound
from strata.timeline.read.operations import Operation, key_of
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.run_timeline import Timeline

EFFECTS_LOOKED_AT = 2_000
MESSAGE_NS = 600 * SECOND_NS
OPERATION_EVENTS = 20_000
ARRIVALS = frozenset({"MessageReceived", "MessageRejected"})


def causes_of(timeline: Timeline, record: Record) -> list[Record]:
    """The causes of an event, as far as they are in the log."""
    found = []
    for ref in record.causes:
        try:
            found.append(timeline.record(ref))
        except NotFound:
            continue
    if record.kind in ARRIVALS and not found:
        found += _sendings(timeline, record)
    return found


def effects_of(timeline: Timeline, record: Record, limit: int = 50) -> list[Record]:
    """The events that name this one as a cause, among the next `EFFECTS_LOOKED_AT` facts."""
    found = list(islice(_effects(timeline, record), limit))
    if record.kind == "MessageSent":
        found += arrivals(timeline, record)
    return found


def _effects(timeline: Timeline, record: Record) -> Iterator[Record]:
    if record.node == COORDINATOR:
        start = record.event.seq + 1
        following = timeline.facts(start, start + EFFECTS_LOOKED_AT)
    else:
        following = islice(timeline.records(record.at_ns, node=COORDINATOR), EFFECTS_LOOKED_AT)
    for candidate in following:
        if record.ref in candidate.causes:
            yield candidate


def arrivals(timeline: Timeline, sent: Record, within_ns: int = MESSAGE_NS) -> list[Record]:
    """The arrivals and rejections of a message."""
    wanted = sent.text("message")
    window = timeline.records(sent.at_ns - SECOND_NS, sent.at_ns + within_ns, kinds=ARRIVALS)
    return [record for record in window if record.text("message") == wanted]


def receivers(sent: Record) -> list[str]:
    """The receivers of a message."""
    to = sent.get("to")
    return [str(each) for each in to] if isinstance(to, list) else []


def _sendings(timeline: Timeline, arrived: Record) -> list[Record]:
    wanted = arrived.text("message")
    for record in timeline.backwards(
        arrived.at_ns + SECOND_NS,
        arrived.at_ns - MESSAGE_NS,
        node=arrived.text("sender") or None,
        kinds={"MessageSent"},
    ):
        if record.text("message") == wanted and arrived.node in receivers(record):
            return [record]
    return []


def operation_of(timeline: Timeline, record: Record) -> Operation | None:
    """The operation of a worker's event, with its start and end."""
    known = key_of(record)
    if known is None:
        return None
    name, _, key = known
    start = end = None
    seq = record.event.seq
    around = timeline.events_of(
        record.node, record.incarnation, max(seq - OPERATION_EVENTS, 0), seq + OPERATION_EVENTS
    )
    for other in around:
        match = key_of(other)
        if match is None or match[2] != key:
            continue
        if match[1] == "start" and other.event.seq <= seq:
            start = other
        elif match[1] == "end" and other.event.seq >= seq:
            end = other
            break
    return Operation(
        name=name, key=key, node=record.node, incarnation=record.incarnation, start=start, end=end
    )
