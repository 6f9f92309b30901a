"""Choice of the rows of facts that become one segment.

Rows are taken in order and whole: the facts of one incarnation, at most `SEGMENT_FACTS` of them
within `SEGMENT_SPAN_NS`. So a segment is decoded quickly, and a window of time touches few facts
outside it. Rows that would not get smaller stay.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.errors import InvalidArgument
from strata.store.event_batches import encoded_events
from strata.store.event_store import Batch
from strata.store.fact_segments import compress, is_segment
from strata.store.sql.sql_reader import SqlReader

SEGMENT_FACTS = 4_096
SEGMENT_SPAN_NS = 2 * 3_600 * 10**9
ROW_BYTES = 90
"""About what a row takes beside its payload: its columns, its entry in the index by time."""

_raw_events = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Joined(Struct, frozen=True):
    """The facts up to `stop` were examined. `segment` replaces their rows, unless that saves
    nothing; `high_ns` is the log clock after them."""

    stop: int
    segment: Batch | None
    high_ns: int


def segment_after(store: SqlReader, start: int, stop: int) -> Joined | None:
    """The next segment of the facts [start, stop); None when they do not fill one yet."""
    if stop - start < SEGMENT_FACTS:
        return None
    taken: list[Batch] = []
    span = (0, 0)
    for row in _rows(store, start, stop):
        own = (row.wall_from_ns, row.wall_to_ns)
        span = (min(span[0], own[0]), max(span[1], own[1])) if taken else own
        if taken and not _fits(taken[0], row, span):
            return _joined(store, taken)
        taken.append(row)
    return None


def _rows(store: SqlReader, start: int, stop: int) -> Iterator[Batch]:
    """The rows whose facts all lie before `stop`."""
    return (row for row in store.fact_rows(start, stop) if row.stop_seq <= stop)


def _fits(first: Batch, row: Batch, span: tuple[int, int]) -> bool:
    """Whether a row goes into the segment that begins with `first` and has that span then."""
    return (
        row.incarnation == first.incarnation
        and row.stop_seq - first.first_seq <= SEGMENT_FACTS
        and span[1] - span[0] <= SEGMENT_SPAN_NS
        and not is_segment(first.payload)
        and not is_segment(row.payload)
    )


def _joined(store: SqlReader, taken: list[Batch]) -> Joined:
    stop = taken[-1].stop_seq
    high_ns = store.clock_after(taken[-1].first_seq)
    if is_segment(taken[0].payload):
        return Joined(stop, None, high_ns)
    events = [event for row in taken for event in _raw_events.decode(encoded_events(row))]
    try:
        payload = compress(msgspec.msgpack.encode(events))
    except InvalidArgument:
        return Joined(stop, None, high_ns)
    if len(payload) + ROW_BYTES >= sum(len(row.payload) + ROW_BYTES for row in taken):
        return Joined(stop, None, high_ns)
    segment = Batch(
        node=COORDINATOR,
        incarnation=taken[0].incarnation,
        first_seq=taken[0].first_seq,
        count=stop - taken[0].first_seq,
        wall_from_ns=min(row.wall_from_ns for row in taken),
        wall_to_ns=max(row.wall_to_ns for row in taken),
        kinds=tuple(sorted({kind for row in taken for kind in row.kinds})),
        payload=payload,
    )
    return Joined(stop, segment, high_ns)
