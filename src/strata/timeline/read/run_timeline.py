"""A recorded run, open for reading by any number of threads.

`Timeline` owns the clock and the reading. Other modules take a timeline and return plain structures
(states, lanes, stories, answers). It never writes, and a log that grows meanwhile is read as far as
it goes.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

from msgspec import Struct

from strata.core.events import COORDINATOR, Event
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.store.event_store import FOREVER_NS, NEVER_NS, EventReader, Tally, Window
from strata.timeline.read.clock_alignment import Clocks
from strata.timeline.read.merged_records import Merged
from strata.timeline.read.records import SECOND_NS, Record, parse_ref

FRESH_S = 2.0
PROBES = 256
MAX_DAMAGE = 100
MAX_MOMENTS = 65_536
FIRST_LOOK_NS = 10 * SECOND_NS


class Extent(Struct, frozen=True):
    """The start and end of a timeline; its positions are [first, last)."""

    from_ns: int
    to_ns: int
    first: int
    last: int


class Timeline:
    """A log open for reading; `name` is the run's name, `live` whether the log may still grow.

    `task` is set if the log has the worker events of that task only.
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
        self._checked = False
        self._probes: dict[int, int] = {}
        self._moments: dict[int, int] = {}

    def close(self) -> None:
        """Close the log's files."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Verify the checksums of all workers' events, once; `damage` has what was found."""
        with self._lock:
            if not self._checked:
                self._checked = True
                self.reader.check(self._note_damage)

    def _note_damage(self, error: Corrupt) -> None:
        if error.message not in self.damage and len(self.damage) < MAX_DAMAGE:
            self.damage.append(error.message)

    @property
    def position(self) -> int:
        """The number of facts."""
        return self.reader.position

    def tallies(self, fresh: bool = False) -> list[Tally]:
        """Totals of each worker's incarnation; those of a live log are cached for a moment, unless
        `fresh`."""
        with self._lock:
            began_s = time.monotonic()
            stale = self.live and (fresh or began_s - self._looked_s > self._fresh_s)
            if stale or self._looked_s < 0:
                self._tallies = self.reader.tallies()
                self.clocks.learn(self._tallies)
                self._looked_s = time.monotonic()
                # The longer it took, the later it is repeated.
                self._fresh_s = max(FRESH_S, 50 * (self._looked_s - began_s))
            return self._tallies

    def extent(self) -> Extent:
        """The time from the first to the last event."""
        first, last = self.reader.first, self.position
        moments = [self.time_of(place) for place in (first, last - 1) if first < last]
        for tally in self.tallies():
            low, high = self.clocks.alignment(tally.node, tally.incarnation).skew_ns
            moments += [tally.wall_from_ns - low, tally.wall_to_ns - high]
        if not moments:
            raise NotFound("the log is empty", hint="try again when a run has started")
        return Extent(from_ns=min(moments), to_ns=max(moments), first=first, last=last)

    def records(
        self,
        since_ns: int | None = None,
        until_ns: int | None = None,
        *,
        node: str | None = None,
        kinds: Iterable[str] = (),
    ) -> Iterator[Record]:
        """The records in [since, until), in order, read lazily."""
        since_ns = NEVER_NS if since_ns is None else since_ns
        until_ns = FOREVER_NS if until_ns is None else until_ns
        window = Window(since_ns=since_ns, until_ns=until_ns, node=node, kinds=frozenset(kinds))
        return self._merged.read(window, self.skews())

    def backwards(
        self,
        until_ns: int,
        since_ns: int | None = None,
        *,
        node: str | None = None,
        kinds: Iterable[str] = (),
    ) -> Iterator[Record]:
        """The records before a moment, newest first, read in growing windows."""
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
            return Record(at_ns=event.wall_ns, node=COORDINATOR, incarnation=0, event=event)
        era = self.clocks.era(event.seq)
        return Record(
            at_ns=event.mono_ns + era.base_ns,
            node=COORDINATOR,
            incarnation=era.incarnation,
            event=event,
        )

    def events_of(
        self, node: str, incarnation: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Record]:
        """A worker's own events by seq."""
        self.tallies()
        align = self.clocks.alignment(node, incarnation)
        events = self.reader.stream(node, incarnation, start, stop, self._note_damage)
        for event in events:
            yield Record(at_ns=align.at_ns(event), node=node, incarnation=incarnation, event=event)

    def record(self, ref: str) -> Record:
        """The event with a reference."""
        node, incarnation, seq = parse_ref(ref)
        found: Iterator[Record]
        if node == COORDINATOR:
            found = self.facts(seq, seq + 1) if 0 <= seq < self.position else iter(())
        else:
            found = self.events_of(node, incarnation, seq, seq + 1)
        for record in found:
            return record
        raise NotFound(
            f"the log has no event {ref}", hint="it may not have arrived: see `strata why trust`"
        )

    def time_of(self, position: int) -> int:
        """The time of the fact at a position."""
        if (known := self._moments.get(position)) is not None:
            return known
        for event in islice(self.reader.read(position, position + 1), 1):
            if len(self._moments) >= MAX_MOMENTS:
                self._moments.clear()
            self._moments[position] = self.clocks.fact_ns(event)
            return self._moments[position]
        raise InvalidArgument(
            f"the log has no position {position}", hint=f"the last position is {self.position - 1}"
        )

    def position_at(self, at_ns: int) -> int:
        """The number of facts recorded up to and including a moment."""
        low, high = self.reader.first, self.position
        while low < high:  # times of facts never decrease
            middle = roundest(low, high)
            if self.time_of(middle) > at_ns:
                high = middle
            else:
                low = middle + 1
        return low

    def nodes_with(self, kind: str) -> list[str]:
        """The workers with events of a kind."""
        return sorted({tally.node for tally in self.tallies() if kind in tally.kinds})

    def skews(self) -> dict[str, tuple[int, int]]:
        """The range of each node's wall clock skew."""
        found = {COORDINATOR: self.coordinator_skew()}
        for tally in self.tallies():
            low, high = self.clocks.alignment(tally.node, tally.incarnation).skew_ns
            before = found.get(tally.node, (low, high))
            found[tally.node] = (min(low, before[0]), max(high, before[1]))
        return found

    def coordinator_skew(self) -> tuple[int, int]:
        """The range of the coordinator's wall clock skew, by probes."""
        skews = [skew for _, skew in self.probed()]
        return min(skews, default=0), max(skews, default=0)

    def probed(self) -> list[tuple[int, int]]:
        """Positions spread over the log, each with the wall clock skew there."""
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

    Searches that use it probe the same few positions again, also while the log grows.
    """
    step = 1 << (high - 1).bit_length() if high > 1 else 1
    while step > 1 and -(-low // step) * step >= high:
        step >>= 1
    return -(-low // step) * step
