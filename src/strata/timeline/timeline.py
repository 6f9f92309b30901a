"""A run as it was recorded: opened once, read at any place, by any number of readers.

`Timeline` owns the clock and the reading; what is made of it (states, lanes, stories, reasons) is
in modules of their own, which take a timeline and hand back plain structures. It never writes, and
a log that grows meanwhile is read as far as it goes.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

from msgspec import Struct

from strata.core.events import COORDINATOR, Event
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.store.base import FOREVER_NS, NEVER_NS, EventReader, Tally, Window
from strata.timeline.clocks import Clocks
from strata.timeline.merging import Merged
from strata.timeline.records import SECOND_NS, Record, parse_ref

FRESH_S = 2.0
PROBES = 256
MAX_DAMAGE = 100
MAX_MOMENTS = 65_536
FIRST_LOOK_NS = 10 * SECOND_NS


class Extent(Struct, frozen=True):
    """Where the timeline begins and ends; its positions are [first, last)."""

    from_ns: int
    to_ns: int
    first: int
    last: int


class Timeline:
    """A log open for reading. `name` is what people call it, `live` whether it may still grow.

    `task` is whose workers' events are here; empty where there are everybody's.
    """

    def __init__(
        self, reader: EventReader, name: str = "", live: bool = False, task: str = ""
    ) -> None:
        self.reader = reader
        self.name = name
        self.live = live
        self.task = task
        self.clocks = Clocks(reader)
        self.damage: list[str] = []
        self.notes: list[str] = []
        self._merged = Merged(reader, self.clocks, self._note_damage)
        self._lock = threading.RLock()
        self._tallies: list[Tally] = []
        self._looked_s = -FRESH_S
        self._fresh_s = FRESH_S
        self._probes: dict[int, int] = {}
        self._moments: dict[int, int] = {}

    def close(self) -> None:
        """Releases the log's files."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note_damage(self, error: Corrupt) -> None:
        if error.message not in self.damage and len(self.damage) < MAX_DAMAGE:
            self.damage.append(error.message)

    @property
    def position(self) -> int:
        """How many facts there are."""
        return self.reader.position

    def tallies(self, fresh: bool = False) -> list[Tally]:
        """What is kept of each worker's incarnation; of a live log as it was moments ago, unless it
        has to be `fresh`."""
        with self._lock:
            began_s = time.monotonic()
            stale = self.live and (fresh or began_s - self._looked_s > self._fresh_s)
            if stale or self._looked_s < 0:
                self._tallies = self.reader.tallies()
                self.clocks.learn(self._tallies)
                self._looked_s = time.monotonic()
                # Paced by what it costs, so that a long log is not counted all the time.
                self._fresh_s = max(FRESH_S, 50 * (self._looked_s - began_s))
            return self._tallies

    def extent(self) -> Extent:
        """From the first to the last thing recorded."""
        first, last = self.reader.first, self.position
        moments = [self.time_of(place) for place in (first, last - 1) if first < last]
        for tally in self.tallies():
            low, high = self.clocks.alignment(tally.node, tally.incarnation).skew_ns
            moments += [tally.wall_from_ns - low, tally.wall_to_ns - high]
        if not moments:
            raise NotFound("nothing is recorded here yet", hint="look again once a run has begun")
        return Extent(min(moments), max(moments), first, last)

    def records(
        self,
        since_ns: int | None = None,
        until_ns: int | None = None,
        *,
        node: str | None = None,
        kinds: Iterable[str] = (),
    ) -> Iterator[Record]:
        """Everything recorded in [since, until), in order; read only as far as the caller goes."""
        since_ns = NEVER_NS if since_ns is None else since_ns
        until_ns = FOREVER_NS if until_ns is None else until_ns
        window = Window(since_ns, until_ns, node, frozenset(kinds))
        return self._merged.read(window, self.skews())

    def backwards(
        self,
        until_ns: int,
        since_ns: int | None = None,
        *,
        node: str | None = None,
        kinds: Iterable[str] = (),
    ) -> Iterator[Record]:
        """The same from a moment back into the past, looked for in ever larger pieces."""
        kinds = frozenset(kinds)
        start_ns = self.extent().from_ns if since_ns is None else since_ns
        width = FIRST_LOOK_NS
        while until_ns > start_ns:
            lower_ns = max(until_ns - width, start_ns)
            yield from reversed(list(self.records(lower_ns, until_ns, node=node, kinds=kinds)))
            until_ns, width = lower_ns, width * 4

    def facts(self, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """The coordinator's facts by position."""
        for event in self.reader.read(start, stop):
            yield self._fact(event)

    def _fact(self, event: Event) -> Record:
        if not self.clocks.eras:
            return Record(event.wall_ns, COORDINATOR, 0, event)
        era = self.clocks.era(event.seq)
        return Record(event.mono_ns + era.base_ns, COORDINATOR, era.incarnation, event)

    def events_of(
        self, node: str, incarnation: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Record]:
        """A worker's own events by seq."""
        self.tallies()
        align = self.clocks.alignment(node, incarnation)
        events = self.reader.stream(node, incarnation, start, stop, self._note_damage)
        for event in events:
            yield Record(align.at_ns(event), node, incarnation, event)

    def record(self, ref: str) -> Record:
        """The event that a reference names."""
        node, incarnation, seq = parse_ref(ref)
        found: Iterator[Record]
        if node == COORDINATOR:
            found = self.facts(seq, seq + 1) if 0 <= seq < self.position else iter(())
        else:
            found = self.events_of(node, incarnation, seq, seq + 1)
        for record in found:
            return record
        raise NotFound(
            f"no event {ref} is in this log", hint="it may never have arrived: see the log's gaps"
        )

    def time_of(self, position: int) -> int:
        """When the fact at a position was recorded."""
        if (known := self._moments.get(position)) is not None:
            return known
        for event in islice(self.reader.read(position, position + 1), 1):
            if len(self._moments) >= MAX_MOMENTS:
                self._moments.clear()
            self._moments[position] = self.clocks.fact_ns(event)
            return self._moments[position]
        raise InvalidArgument(
            f"there is no fact at position {position}", hint=f"the last is at {self.position - 1}"
        )

    def position_at(self, at_ns: int) -> int:
        """How many facts had been recorded at a moment, itself included."""
        low, high = self.reader.first, self.position
        while low < high:  # facts never run backwards on the timeline's clock
            middle = roundest(low, high)
            if self.time_of(middle) > at_ns:
                high = middle
            else:
                low = middle + 1
        return low

    def nodes_with(self, kind: str) -> list[str]:
        """The workers that recorded a kind."""
        return sorted({tally.node for tally in self.tallies() if kind in tally.kinds})

    def skews(self) -> dict[str, tuple[int, int]]:
        """How far each node's wall clock is off, at least and at most."""
        found = {COORDINATOR: self.coordinator_skew()}
        for tally in self.tallies():
            low, high = self.clocks.alignment(tally.node, tally.incarnation).skew_ns
            before = found.get(tally.node, (low, high))
            found[tally.node] = (min(low, before[0]), max(high, before[1]))
        return found

    def coordinator_skew(self) -> tuple[int, int]:
        """How far the coordinator's wall clock was from the timeline's, as far as probes show."""
        skews = [skew for _, skew in self.probed()]
        return min(skews, default=0), max(skews, default=0)

    def probed(self) -> list[tuple[int, int]]:
        """Positions spread over the log, with how far the wall clock was off there."""
        with self._lock:
            first, last = self.reader.first, self.position
            step = max((last - first) // PROBES, 1)
            step = 1 << (step - 1).bit_length()  # a power of two, so that probes can be reused
            wanted = [first, *range(first - first % step + step, last, step), last - 1]
            for position in wanted if first < last else []:
                if position not in self._probes:
                    event = next(iter(self.reader.read(position, position + 1)))
                    self._probes[position] = event.wall_ns - self.clocks.fact_ns(event)
            return sorted(self._probes.items())


def roundest(low: int, high: int) -> int:
    """The multiple of the largest power of two in [low, high).

    Searches that go by it look at the same few places again and again, also while a log grows.
    """
    step = 1 << (high - 1).bit_length() if high > 1 else 1
    while step > 1 and -(-low // step) * step >= high:
        step >>= 1
    return -(-low // step) * step
