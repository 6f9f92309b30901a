"""Whether an archived run holds what the log holds: compared event for event, as both are read.

Nothing is taken on trust: the archive is opened where it lies, and an event counts as held when its
encoding is the same. Each piece of a worker's events is read from both sides and then let go.
"""

from collections.abc import Iterator

import msgspec

from strata.core.events import Event
from strata.errors import Corrupt
from strata.store.base import EventReader
from strata.timeline.runfile import Held

PIECE = 1 << 16


def held(log: EventReader, run: EventReader) -> Iterator[Held]:
    """What the log has of the workers of a run, as far as the run holds it without a difference."""
    for node, incarnation in run.streams():
        start = stop = 0
        for event in _same(log, run, node, incarnation):
            if event.seq != stop and stop > start:  # what was missing may arrive yet
                yield Held(node, incarnation, stop, stop - start, start)
            start = start if event.seq == stop > start else event.seq
            stop = event.seq + 1
        if stop > start:
            yield Held(node, incarnation, stop, stop - start, start)


def _same(log: EventReader, run: EventReader, node: str, incarnation: int) -> Iterator[Event]:
    """The log's events of a worker's incarnation, up to the first that the run does not hold."""
    last = log.last_seq(node, incarnation)
    for start in range(0, -1 if last is None else last + 1, PIECE):
        kept = {e.seq: e for e in run.stream(node, incarnation, start, start + PIECE)}
        try:
            for event in log.stream(node, incarnation, start, start + PIECE):
                if event.seq not in kept or _encoded(kept[event.seq]) != _encoded(event):
                    return
                yield event
        except Corrupt:  # what cannot be read cannot be compared, and stays
            return


def _encoded(event: Event) -> bytes:
    return msgspec.msgpack.encode(event)
