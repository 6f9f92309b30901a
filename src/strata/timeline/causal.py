"""A receive is never shown before its send.

Clocks are aligned to within half a round trip of the beats, and messages between peers may be
quicker than that. So records are held for a moment: an arrival whose sending shows up after it is
moved right behind it. Nothing else moves, and facts never do.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from strata.core.worker_facts import MessageReceived, MessageRejected, MessageSent
from strata.timeline.records import SECOND_NS, Record

HELD_NS = SECOND_NS // 10

Arrived: TypeAlias = dict[tuple[str, str], list[Record]]
"""Arrivals that are held, by message and sender: the same message may be passed on by many."""


def in_causal_order(records: Iterable[Record]) -> Iterator[Record]:
    """The records, in order, with arrivals behind what they are arrivals of."""
    held: list[Record] = []
    arrived: Arrived = {}
    for record in records:
        body = record.event.body
        held.append(record)
        if isinstance(body, MessageReceived | MessageRejected):
            arrived.setdefault((body.message, body.sender), []).append(record)
        elif isinstance(body, MessageSent):
            for early in arrived.pop((body.message, record.node), []):
                held.remove(early)
                later = msgspec.structs.replace(early, at_ns=record.at_ns + 1)
                insort(held, later, key=lambda each: each.key)
        settled = record.at_ns - HELD_NS
        if held[0].at_ns < settled:
            place = next(i for i, each in enumerate(held) if each.at_ns >= settled)
            yield from _released(held[:place], arrived)
            del held[:place]
    yield from held


def _released(records: list[Record], arrived: Arrived) -> Iterator[Record]:
    """Lets records go; an arrival that waited in vain was in order, or its sending is elsewhere."""
    for record in records:
        body = record.event.body
        if isinstance(body, MessageReceived | MessageRejected):
            arrived.pop((body.message, body.sender), None)
        yield record
