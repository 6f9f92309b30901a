"""A coordinator's log together with the worker events that were moved out of it.

A stretch is a folder of Parquet beside the log, written while a task runs (`segment_writer`). The
log records which sequence numbers it has released. An event of a stretch is used only if the log
has released its number; otherwise the log still has it. So no event is returned twice, even after a
crash between writing a stretch and releasing its events. If events are released during a read, the
reader raises `Unavailable`, because it would miss them.

The order matters: the log's head is read first, then the stretches and the released numbers. The
log's reader notices a release in between before it returns its first row.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import Struct, structs

from strata.config import Settings
from strata.core.events import Event
from strata.core.record.event_codec import CODEC
from strata.errors import Corrupt, Unavailable
from strata.store import seq_ranges
from strata.store.event_batches import pack, unpack
from strata.store.event_store import (
    EVERYTHING,
    FOREVER_NS,
    QUERY_LIMIT,
    Batch,
    Closing,
    Found,
    OnDamage,
    Range,
    Snapshot,
    Tally,
    Window,
)
from strata.store.sql.sql_reader import SqlReader
from strata.store.sqlite import SqliteReader
from strata.timeline.archive.moved_facts import fetching
from strata.timeline.archive.run_file import RUN, Held, RunFile, read_run

if TYPE_CHECKING:
    from strata.timeline.archive.parquet_log import ParquetLog

LOG = "log.db"
"""The file of a log in a data folder."""

STRETCHES = "stretches"
"""The folder beside a log for its stretches."""

TRIES = 8
Stream: TypeAlias = tuple[str, int]
Item = TypeVar("Item")


class MovedEvents(Struct, frozen=True):
    """An open stretch, and the released numbers of each stream; `whole` if that is all of them."""

    log: "ParquetLog"
    counted: dict[Stream, list[Range]]
    whole: bool
    nodes: frozenset[str]
    wall_from_ns: int
    wall_to_ns: int

    def holds(self, node: str, incarnation: int, seq: int) -> bool:
        """Whether the log has released an event."""
        known = self.counted.get((node, incarnation), [])
        return bool(seq_ranges.overlapping(known, seq, seq + 1))

    def touches(self, wanted: Window) -> bool:
        """Whether it may have events in a window."""
        within = self.wall_from_ns < wanted.until_ns and self.wall_to_ns >= wanted.since_ns
        return within and (wanted.node is None or wanted.node in self.nodes)


class SegmentedLog(Closing):
    """An event reader over a log and its stretches."""

    def __init__(self, log: SqlReader, folder: Path) -> None:
        self.log = log
        self.folder = folder
        self._whole: dict[str, MovedEvents] = {}

    def close(self) -> None:
        self.log.close()

    @property
    def path(self) -> Path | str:
        """The file of the log, or its address."""
        return self.log.place

    @property
    def first(self) -> int:
        return self.log.first

    @property
    def position(self) -> int:
        return self.log.position

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        return self.log.read(start, stop)

    def position_at(self, wall_ns: int) -> int:
        return self.log.position_at(wall_ns)

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        return self.log.load_snapshot(at, schema)

    def streams(self) -> list[Stream]:
        return self.log.streams()

    def last_seq(self, node: str, incarnation: int) -> int | None:
        return self.log.last_seq(node, incarnation)

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        return self.log.gaps(node, incarnation)

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        kept = self.log.query(wanted, FOREVER_NS, on_damage)
        moved = [
            (each.wall_from_ns, _guarded(_query(each, wanted), on_damage))
            for each in self._stretches(on_damage)
            if each.touches(wanted)
        ]
        return islice(_merged(kept, moved, _in_time), limit)

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        kept = self.log.batches(wanted, on_damage)
        moved = [
            (each.wall_from_ns, _guarded(_batches(each, wanted), on_damage))
            for each in self._stretches(on_damage)
            if each.touches(wanted)
        ]
        return _merged(kept, moved, _by_span)

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        kept = self.log.headers(wanted)
        moved = [
            (each.wall_from_ns, _headers(each, wanted))
            for each in self._stretches(None)
            if each.touches(wanted)
        ]
        return _merged(kept, moved, _by_span)

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        kept = self.log.stream(node, incarnation, start, stop, on_damage)
        moved = []
        for each in self._stretches(on_damage):
            counted = each.counted.get((node, incarnation), [])
            if seq_ranges.overlapping(counted, start, FOREVER_NS if stop is None else stop):
                found = _stream(each, node, incarnation, start, stop)
                moved.append((counted[0][0], _guarded(found, on_damage)))
        return _merged(kept, moved, _by_seq)

    def check(self, on_damage: OnDamage) -> None:
        self.log.check(on_damage)
        for each in self._stretches(on_damage):
            each.log.check(on_damage)

    def tallies(self) -> list[Tally]:
        for _ in range(TRIES):
            released = self.log.released_batches()
            found = {(each.node, each.incarnation): each for each in self.log.tallies()}
            for stretch in self._stretches(None):
                for tally in _tallies(stretch):
                    stream = (tally.node, tally.incarnation)
                    found[stream] = _added(found.get(stream), tally)
            if self.log.released_batches() == released:
                return [found[stream] for stream in sorted(found)]
        raise Unavailable("events are being moved out of the log", hint="try again")

    def names(self) -> list[str]:
        """The names of the stretches."""
        return stretch_names(self.folder)

    def unreleased(self) -> dict[str, RunFile]:
        """The stretches with events that the log has not released yet, by name."""
        released = self.log.released()
        found = {name: read_run(self.folder / name) for name in self.names()}
        return {name: run for name, run in found.items() if not _counted(run, released)[1]}

    def _stretches(self, on_damage: OnDamage | None) -> list[MovedEvents]:
        """The open stretches with released events; damaged ones are reported."""
        names = self.names()
        if not names:
            return []
        released: dict[Stream, list[Range]] | None = None
        found: list[MovedEvents] = []
        for name in names:
            known = self._whole.get(name)
            if known is None:
                released = self.log.released() if released is None else released
                try:
                    known = self._open(name, released)
                except Corrupt as error:
                    if on_damage is None:
                        raise
                    on_damage(error)
                    continue
            found.append(known)
        return [stretch for stretch in found if stretch.counted]

    def _open(self, name: str, released: dict[Stream, list[Range]]) -> MovedEvents:
        # Imported here: a log without stretches does not need Arrow.
        from strata.timeline.archive.parquet_log import ParquetLog

        log = ParquetLog(self.folder / name)
        counted, whole = _counted(log.run, released)
        stretch = MovedEvents(
            log=log,
            counted=counted,
            whole=whole,
            nodes=frozenset(each.node for each in log.run.streams),
            wall_from_ns=min(each.wall_from_ns for each in log.run.streams),
            wall_to_ns=max(each.wall_to_ns for each in log.run.streams),
        )
        if whole:
            self._whole[name] = stretch
        return stretch


def held_in(run: RunFile) -> list[Held]:
    """The ranges of events in a stretch."""
    return [
        Held(
            node=each.node,
            incarnation=each.incarnation,
            stop=stop,
            events=stop - first,
            start=first,
        )
        for each in run.streams
        for first, stop in seq_ranges.missing(each.gaps, 0, each.last_seq + 1)
    ]


def _counted(
    run: RunFile, released: dict[Stream, list[Range]]
) -> tuple[dict[Stream, list[Range]], bool]:
    """The released numbers of each stream of a stretch, and whether these are all."""
    counted: dict[Stream, list[Range]] = {}
    whole = True
    for each in run.streams:
        stream = (each.node, each.incarnation)
        held = seq_ranges.missing(each.gaps, 0, each.last_seq + 1)
        common = [part for own in held for part in _common(own, released.get(stream, []))]
        whole &= common == held
        if common:
            counted[stream] = common
    return counted, whole


def stretch_names(folder: Path) -> list[str]:
    """The names of the stretches in a folder; drafts start with a dot and are left out."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        each.name for each in found if not each.name.startswith(".") and (each / RUN).is_file()
    )


def log_place(settings: Settings) -> Path | str:
    """Where a coordinator has its log: a file, or the address of a PostgreSQL store."""
    return settings.store or Path(settings.data_dir) / LOG


def open_log(
    place: Path | str, remembered_events: int = 0, settings: Settings | None = None
) -> SegmentedLog:
    """Open a coordinator's log with its stretches and moved facts."""
    if isinstance(place, Path):
        reader = SqliteReader(place, CODEC, remembered_events, fetching(settings))
        return SegmentedLog(reader, place.parent / STRETCHES)
    # Imported here: only a shared log needs PostgreSQL's client.
    from strata.store.postgres import PostgresReader

    shared = PostgresReader(place, CODEC, remembered_events, fetching(settings))
    # No events of a shared log are moved to a folder, which only one coordinator would have.
    return SegmentedLog(shared, Path(os.devnull))


def _common(own: Range, others: list[Range]) -> list[Range]:
    """The intersections of a range with sorted ranges."""
    return [
        (max(first, own[0]), min(stop, own[1]))
        for first, stop in others
        if first < own[1] and stop > own[0]
    ]


def _query(stretch: MovedEvents, wanted: Window) -> Iterator[Found]:
    for node, incarnation, event in stretch.log.query(wanted, FOREVER_NS):
        if stretch.whole or stretch.holds(node, incarnation, event.seq):
            yield node, incarnation, event


def _batches(stretch: MovedEvents, wanted: Window) -> Iterator[Batch]:
    for batch in stretch.log.batches(wanted):
        if stretch.whole:
            yield batch
            continue
        for event in unpack(CODEC, batch):
            if stretch.holds(batch.node, batch.incarnation, event.seq):
                yield pack(CODEC, batch.node, batch.incarnation, [event])


def _headers(stretch: MovedEvents, wanted: Window) -> Iterator[Batch]:
    if stretch.whole:
        return stretch.log.headers(wanted)
    return (structs.replace(each, payload=b"") for each in _batches(stretch, wanted))


def _stream(
    stretch: MovedEvents, node: str, incarnation: int, start: int, stop: int | None
) -> Iterator[Event]:
    for event in stretch.log.stream(node, incarnation, start, stop):
        if stretch.holds(node, incarnation, event.seq):
            yield event


def _guarded(found: Iterator[Item], on_damage: OnDamage | None) -> Iterator[Item]:
    """The items of a stretch up to its first damage."""
    try:
        yield from found
    except Corrupt as error:
        if on_damage is None:
            raise
        on_damage(error)


Key: TypeAlias = tuple[int, ...] | tuple[int, str, int, int]


def _in_time(found: Found) -> Key:
    node, incarnation, event = found
    return event.wall_ns, node, incarnation, event.seq


def _by_span(batch: Batch) -> Key:
    return (batch.wall_from_ns,)


def _by_seq(event: Event) -> Key:
    return (event.seq,)


def _merged(
    kept: Iterator[Item], moved: list[tuple[int, Iterator[Item]]], key: Callable[[Item], Key]
) -> Iterator[Item]:
    """The items of the log and of stretches, in order; a stretch is opened when it is due.

    `moved` has a lower bound of the first key of each stretch.
    """
    waiting = deque(sorted(moved, key=lambda each: each[0]))
    heap: list[tuple[Key, int, Item, Iterator[Item]]] = []

    def advance(number: int, source: Iterator[Item]) -> None:
        for item in source:
            heappush(heap, (key(item), number, item, source))
            return

    advance(0, kept)
    while heap or waiting:
        while waiting and (not heap or waiting[0][0] <= heap[0][0][0]):
            advance(len(moved) - len(waiting) + 1, waiting.popleft()[1])
        if heap:
            _, number, item, source = heappop(heap)
            yield item
            advance(number, source)


def _tallies(stretch: MovedEvents) -> Iterator[Tally]:
    for tally in stretch.log.tallies():
        counted = stretch.counted.get((tally.node, tally.incarnation), [])
        events = sum(stop - first for first, stop in counted)
        if events:
            yield structs.replace(tally, events=events)


def _added(one: Tally | None, other: Tally) -> Tally:
    if one is None:
        return other
    return Tally(
        node=one.node,
        incarnation=one.incarnation,
        events=one.events + other.events,
        wall_from_ns=min(one.wall_from_ns, other.wall_from_ns),
        wall_to_ns=max(one.wall_to_ns, other.wall_to_ns),
        kinds=one.kinds | other.kinds,
    )
