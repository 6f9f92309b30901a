"""Clock alignment: one clock for the events of all nodes.

Wall clocks are wrong and jump; monotonic clocks do neither, but each process has its own. So every
event is placed by its monotonic clock, plus an offset to the timeline's clock per process.

The coordinator. The timeline's clock is the coordinator's wall clock at its start, continued by its
monotonic clock. A restart begins a new *era*. If its wall clock is behind the end of the last era,
the era begins at that end: times of facts never decrease.

Workers. Each `ClockSampled` has the coordinator's clocks in the middle of a heartbeat's round trip.
Of the first and of the last few samples, the one with the shortest round trip is used, and the
offset is interpolated between the two, which removes drift. If the two differ too much for drift (a
host that slept), every sample with a short round trip becomes an anchor. The events of a process
without samples are placed by its own wall clock, and the log check reports that.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec import Struct

from strata.core.cluster import CoordinatorStarted
from strata.core.events import COORDINATOR, Event
from strata.core.record.log_salvage import FactLost
from strata.core.workers.worker_facts import ClockSampled
from strata.store.event_store import EventReader, Tally, Window
from strata.timeline.read.records import SECOND_NS

SAMPLES = 16
ANCHORS = 4_096
MAX_ERAS = 100_000
LAST_NS = 600 * SECOND_NS
MAX_DRIFT = 1e-3
HELD_UP_NS = SECOND_NS // 10


class Era(Struct, frozen=True):
    """One incarnation of the coordinator: facts from `position` on are at `mono + base`."""

    position: int
    incarnation: int
    base_ns: int
    start_ns: int
    offset_ns: int = 0
    jump_ns: int = 0


class Alignment(Struct, frozen=True):
    """The offset of a process's monotonic clock: anchors of (its reading, offset to the timeline).

    `skew_ns` is how far its wall clock is ahead of the timeline's, at least and at most, by the
    samples; `offset_ns` is the same by the sample with the shortest round trip. `jump_ns` is how
    far the wall clock jumped at least: a sample is exact to half of its round trip, which is long
    after a network failure. Without anchors the wall clock is used.
    """

    anchors: tuple[tuple[int, int], ...] = ()
    skew_ns: tuple[int, int] = (0, 0)
    offset_ns: int = 0
    jump_ns: int = 0

    @property
    def known(self) -> bool:
        """Whether the clock was compared with the coordinator's."""
        return bool(self.anchors)

    def at_ns(self, event: Event) -> int:
        """The time of an event on the timeline's clock."""
        if not self.anchors:
            return event.wall_ns
        mono = event.mono_ns
        after = bisect_right(self.anchors, (mono, 0))
        if after == 0:
            return mono + self.anchors[0][1]
        if after == len(self.anchors):
            return mono + self.anchors[-1][1]
        (mono_a, far_a), (mono_b, far_b) = self.anchors[after - 1 : after + 1]
        return mono + far_a + (far_b - far_a) * (mono - mono_a) // (mono_b - mono_a)


class Clocks:
    """The clock alignment of every process of a log."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self.eras = _eras(reader)
        self._starts = [era.position for era in self.eras]
        self._aligned: dict[tuple[str, int], Alignment] = {}

    def fact_ns(self, event: Event) -> int:
        """The time of a fact."""
        return event.mono_ns + self.era(event.seq).base_ns if self.eras else event.wall_ns

    def era(self, position: int) -> Era:
        """The era that a position belongs to."""
        return self.eras[max(bisect_right(self._starts, position) - 1, 0)]

    def at_ns(self, node: str, incarnation: int, event: Event) -> int:
        """The time of an event."""
        if node == COORDINATOR:
            return self.fact_ns(event)
        # A process may have started after `learn`: then its wall clock is used.
        return self.alignment(node, incarnation).at_ns(event)

    def learn(self, tallies: Iterable[Tally]) -> None:
        """Align the clocks of processes that are new."""
        for tally in tallies:
            if (tally.node, tally.incarnation) not in self._aligned:
                self._aligned[tally.node, tally.incarnation] = self._align(tally)

    def alignment(self, node: str, incarnation: int) -> Alignment:
        """The alignment of a process's clock."""
        return self._aligned.get((node, incarnation), Alignment())

    def _align(self, tally: Tally) -> Alignment:
        first = self._samples(tally, tally.wall_from_ns, SAMPLES)
        last = self._samples(tally, max(tally.wall_to_ns - LAST_NS, tally.wall_from_ns), SAMPLES)
        ends = [self._best(group) for group in (first, last) if group]
        if not ends:
            return Alignment()
        anchors = sorted({(event.mono_ns, self._far_ns(event)) for event in ends})
        seen = first + last
        if len(anchors) == 2 and _drift(anchors) > MAX_DRIFT:
            seen = self._samples(tally, tally.wall_from_ns, ANCHORS)
            exact = _exact(seen)
            anchors = sorted({event.mono_ns: self._far_ns(event) for event in exact}.items())
        skews = [event.wall_ns - event.mono_ns - self._far_ns(event) for event in seen]
        errors = [_round_trip_ns(event) // 2 for event in seen]
        low_ns = min(skew + error for skew, error in zip(skews, errors, strict=True))
        high_ns = max(skew - error for skew, error in zip(skews, errors, strict=True))
        best = self._best(seen)
        return Alignment(
            anchors=tuple(anchors),
            skew_ns=(min(skews), max(skews)),
            offset_ns=best.wall_ns - best.mono_ns - self._far_ns(best),
            jump_ns=max(high_ns - low_ns, 0),
        )

    def _samples(self, tally: Tally, since_ns: int, limit: int) -> list[Event]:
        kinds = frozenset({ClockSampled.__name__})
        found = self._reader.query(
            Window(since_ns=since_ns, node=tally.node, kinds=kinds),
            limit,
            on_damage=lambda error: None,  # reported when the events themselves are read
        )
        return [event for _, number, event in found if number == tally.incarnation]

    def _best(self, samples: Sequence[Event]) -> Event:
        return min(samples, key=_round_trip_ns)

    def _far_ns(self, event: Event) -> int:
        """The offset from a process's monotonic clock to the timeline's, by one sample."""
        body = event.body
        assert isinstance(body, ClockSampled)
        middle_ns = event.mono_ns - body.round_trip_ns // 2
        for era, following in zip_longest(self.eras, self.eras[1:]):
            shown_ns = body.server_mono_ns + era.base_ns
            ended = following is not None and shown_ns >= following.start_ns
            if body.server_mono_ns and shown_ns >= era.start_ns and not ended:
                return shown_ns - middle_ns
        return event.wall_ns + body.offset_ns - event.mono_ns


def _round_trip_ns(event: Event) -> int:
    body = event.body
    return body.round_trip_ns if isinstance(body, ClockSampled) else 0


def _exact(samples: Sequence[Event]) -> list[Event]:
    """The samples with a short round trip, whose middle is exact."""
    shortest_ns = min(map(_round_trip_ns, samples))
    return [each for each in samples if _round_trip_ns(each) <= 4 * shortest_ns + HELD_UP_NS]


def _drift(anchors: Sequence[tuple[int, int]]) -> float:
    (mono_a, far_a), (mono_b, far_b) = anchors
    return abs(far_b - far_a) / max(mono_b - mono_a, 1)


def _eras(reader: EventReader) -> list[Era]:
    eras: list[Era] = []
    for event in sorted(_starts(reader), key=lambda event: event.seq):
        base_ns = event.wall_ns - event.mono_ns
        jump_ns = 0
        before = _fact_before(reader, event.seq) if eras else None
        if before is not None:
            ended_ns = before.mono_ns + eras[-1].base_ns
            jump_ns = base_ns - eras[-1].base_ns
            base_ns = max(base_ns, ended_ns + 1 - event.mono_ns)
        incarnation = getattr(event.body, "incarnation", 0) if _is_start(event) else 0
        eras.append(
            Era(
                position=event.seq,
                incarnation=incarnation,
                base_ns=base_ns,
                start_ns=event.mono_ns + base_ns,
                offset_ns=jump_ns,
            )
        )
    return eras


def _is_start(event: Event) -> bool:
    return isinstance(event.body, CoordinatorStarted)


def _starts(reader: EventReader) -> Iterator[Event]:
    """The facts that begin an era: each start, the first fact of a log without its beginning, and
    the first fact after lost ones."""
    kinds = frozenset({CoordinatorStarted.__name__, FactLost.__name__})
    found = reader.query(
        Window(node=COORDINATOR, kinds=kinds), limit=10**6, on_damage=lambda error: None
    )
    events = [event for _, _, event in found]
    starts = [event for event in events if _is_start(event)]
    known = {event.seq for event in starts}
    # A start may be among the lost facts, so the clock after them may be a different one.
    behind = {event.body.stop for event in events if isinstance(event.body, FactLost)}
    for first in sorted({reader.first, *behind} - known):
        if first < reader.position:
            yield next(iter(reader.read(first, first + 1)))
    yield from starts


def _fact_before(reader: EventReader, position: int) -> Event | None:
    return next(iter(reader.read(position - 1, position)), None)
