"""Batches of events: packed, checked when workers send them, cached and merged by readers.

A payload is one zstd frame, level 1, that states its size, around the msgpack list of events that
`Codec.encode` makes. Higher levels gain little on such short texts and cost the training process
time. Facts of many appends may have another form, see `fact_segments`. Only the coordinator's own
facts are read from a segment, because a few bytes of it may stand for very many events.

A batch from a worker is untrusted: `validate` checks its header when it arrives, `unpack` its
content when it is read, both with limits.

The events of a stored batch never change, so readers that stay around one place of a log cache
decoded batches. Facts that were joined to one segment since are another batch, with another count.
The number of cached events is bounded; the least recently used batches are dropped.

Many batches are merged in the order of wall clocks, decoding one batch at a time. Batches come by
the start of their span. A batch that starts at or after t holds nothing before t, so earlier events
that are decoded already can be returned: only batches with overlapping spans are in memory
together.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TypeAlias

import msgspec
import zstandard

from strata.core.events import COORDINATOR, Codec, Event, UnknownFact, kind_of
from strata.errors import UNDECODABLE, Corrupt, InvalidArgument, LimitExceeded
from strata.store.event_store import FOREVER_NS, NEVER_NS, Batch, Found, OnDamage, Range, Window
from strata.store.fact_segments import expand, is_segment

MAX_EVENTS = 65_536
MAX_BYTES = 64 * 2**20
MAX_NAME_CHARACTERS = 256
MAX_KINDS = 1_024


class _Zstd(threading.local):
    """Compression contexts are costly to make and belong to one thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()
_raw_events = msgspec.msgpack.Decoder(list[msgspec.Raw])


def deflate(data: bytes) -> bytes:
    """The bytes as one zstd frame that states its size."""
    return _zstd.compressor.compress(data)


def inflate(frame: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a frame made by `deflate`; `Corrupt` if it is not one or would be too large."""
    try:
        # The size is checked first: the decompressor allocates whatever the frame claims.
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_bytes:
            raise Corrupt(f"a compressed payload states a size of {size} bytes")
        return _zstd.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a compressed payload cannot be read: {error}") from error


def pack(codec: Codec, node: str, incarnation: int, events: Sequence[Event]) -> Batch:
    """One batch of consecutive events of a node and incarnation."""
    assert events, "a batch has at least one event"
    first = events[0].seq
    assert all(event.seq == seq for seq, event in enumerate(events, first)), "seqs are not dense"
    encoded = codec.encode(list(events))
    if len(events) > MAX_EVENTS or len(encoded) > MAX_BYTES:
        raise LimitExceeded(
            f"{len(events)} events of {len(encoded)} bytes are too many for one batch",
            hint=f"at most {MAX_EVENTS} events and {MAX_BYTES} bytes; make several batches",
        )
    walls = [event.wall_ns for event in events]
    return Batch(
        node=node,
        incarnation=incarnation,
        first_seq=first,
        count=len(events),
        wall_from_ns=min(walls),
        wall_to_ns=max(walls),
        kinds=_kinds(events),
        payload=deflate(encoded),
    )


def _kinds(events: Sequence[Event]) -> tuple[str, ...]:
    # By class first, because naming each event's kind would cost as much as encoding it.
    bodies = {event.body.__class__: event.body for event in events}
    names = {kind_of(body) for body in bodies.values()}
    if UnknownFact in bodies:
        names.update(kind_of(event.body) for event in events)
    return tuple(sorted(names))


def unpack(codec: Codec, batch: Batch) -> list[Event]:
    """The events of a batch; `Corrupt` if they are not what its header says."""
    try:
        events = codec.decode(encoded_events(batch))
    except Corrupt as error:
        raise Corrupt(f"{describe(batch)}: {error.message}", hint=error.hint) from error
    if [event.seq for event in events] != list(range(batch.first_seq, batch.stop_seq)):
        raise Corrupt(f"{describe(batch)}: the seqs inside are not those of the header")
    return events


def encoded_events(batch: Batch) -> bytes:
    """The events of a batch as the list in msgpack that `Codec.encode` made."""
    if batch.node == COORDINATOR and is_segment(batch.payload):
        return expand(batch.payload, MAX_BYTES)
    return inflate(batch.payload)


def parts(batch: Batch, wanted: Sequence[Range]) -> Iterator[Batch]:
    """The given ranges of seq cut out of a batch.

    Events are copied as bytes, so kinds that this release does not know survive. The span of time
    and the kinds stay those of the whole: true as bounds, though wider than needed.
    """
    try:
        events = _raw_events.decode(encoded_events(batch))
    except (Corrupt, *UNDECODABLE) as error:
        raise Corrupt(
            f"{describe(batch)}: partly known, and the rest cannot be cut out: {error}",
            hint="nothing was stored; leave this batch out",
        ) from error
    if len(events) != batch.count:
        raise Corrupt(
            f"{describe(batch)}: holds {len(events)} events instead of {batch.count}",
            hint="nothing was stored; leave this batch out",
        )
    for first, stop in wanted:
        chosen = events[first - batch.first_seq : stop - batch.first_seq]
        payload = deflate(msgspec.msgpack.encode(chosen))
        yield msgspec.structs.replace(batch, first_seq=first, count=stop - first, payload=payload)


def validate(batch: Batch) -> None:
    """Refuse a worker's batch with an invalid header; its payload is not decoded."""
    faults = {
        "the node's name is empty or too long": not 0 < len(batch.node) <= MAX_NAME_CHARACTERS,
        f"{COORDINATOR!r} is not a worker": batch.node == COORDINATOR,
        "the node's name is not printable": not batch.node.isprintable(),
        "the incarnation is out of range": not 0 <= batch.incarnation <= FOREVER_NS,
        "the number of events is out of range": not 0 < batch.count <= MAX_EVENTS,
        "the seq is out of range": not 0 <= batch.first_seq <= FOREVER_NS - MAX_EVENTS,
        "the span of time is out of range": not (
            NEVER_NS < batch.wall_from_ns <= batch.wall_to_ns < FOREVER_NS
        ),
        "there are too many kinds": len(batch.kinds) > MAX_KINDS,
        "a kind's name is empty, too long or has spaces": not all(map(_is_kind, batch.kinds)),
        "the payload is too large": len(batch.payload) > MAX_BYTES,
    }
    for fault, found in faults.items():
        if found:
            raise InvalidArgument(f"a batch of node {batch.node[:80]!r} is refused: {fault}")


def _is_kind(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and " " not in name


def describe(batch: Batch) -> str:
    """The name of a batch in messages."""
    first, last = batch.first_seq, batch.stop_seq - 1
    if batch.node == COORDINATOR:
        return f"facts @{first} to @{last}"
    return f"events {batch.node}.{batch.incarnation}.{first} to {last}"


Name = tuple[str, int, int, int]


class Decoded:
    """Caches up to a number of events; 0 disables the cache."""

    def __init__(self, most_events: int = 0) -> None:
        self._most_events = most_events
        self._events = 0
        self._kept: OrderedDict[Name, list[Event]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, batch: Batch, decode: Callable[[], list[Event]]) -> list[Event]:
        """The events of a batch; decoded if they are not cached."""
        name = batch.node, batch.incarnation, batch.first_seq, batch.count
        with self._lock:
            if known := self._kept.get(name):
                self._kept.move_to_end(name)
                return known
        events = decode()
        with self._lock:
            if len(events) <= self._most_events and name not in self._kept:
                self._kept[name] = events
                self._events += len(events)
            while self._events > self._most_events:
                self._events -= len(self._kept.popitem(last=False)[1])
        return events


Source: TypeAlias = tuple[int, str, int, Callable[[], Iterable[Event]]]
"""Start of its span, node, incarnation, and how to load the events of one batch."""


def in_time_order(
    sources: Iterable[Source], wanted: Window, limit: int, on_damage: OnDamage | None
) -> Iterator[Found]:
    """At most `limit` events of the sources that pass the filter."""

    def matching() -> Iterator[Found]:
        heap: list[tuple[int, str, int, int, Event]] = []
        for start_ns, node, incarnation, load in sources:
            while heap and heap[0][0] < start_ns:
                yield _found(heappop(heap))
            for event in _loaded(load, on_damage):
                if wanted.holds(event):
                    heappush(heap, (event.wall_ns, node, incarnation, event.seq, event))
        while heap:
            yield _found(heappop(heap))

    return islice(matching(), limit)


def _found(entry: tuple[int, str, int, int, Event]) -> Found:
    return entry[1], entry[2], entry[4]


def _loaded(load: Callable[[], Iterable[Event]], on_damage: OnDamage | None) -> Iterable[Event]:
    try:
        return load()
    except Corrupt as error:
        if on_damage is None:
            raise
        on_damage(error)
        return ()
