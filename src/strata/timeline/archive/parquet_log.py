"""A run as a folder of Parquet files, read like a live log.

`facts.parquet` has the coordinator's facts by position, `events.parquet` the worker events by wall
clock, `snapshots.parquet` states to start from, and `run.json` the rest: gaps in sequence numbers
and the findings of the log check. Any Parquet tool can read them.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from heapq import heappop, heappush, merge
from itertools import groupby, islice
from operator import and_
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from strata.core.events import COORDINATOR, Event
from strata.core.record.event_codec import CODEC
from strata.errors import Corrupt, NotFound
from strata.store.event_batches import pack
from strata.store.event_store import (
    EVERYTHING,
    FOREVER_NS,
    NEVER_NS,
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
from strata.timeline.archive.event_columns import EXACT, events_of
from strata.timeline.archive.run_file import read_run

FACTS, EVENTS, SNAPSHOTS = "facts.parquet", "events.parquet", "snapshots.parquet"
ROWS_AT_ONCE = 16_384
PIECE = 65_536
LAST = 2**62
CHECKED = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
"""Verifies page checksums, if the file has them."""

UNREADABLE = (pa.ArrowException, KeyError, MemoryError, OSError, OverflowError, ValueError)
"""What pyarrow raises for damaged files."""


class ParquetLog(Closing):
    """An event reader over an exported run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = read_run(folder)
        self.facts = _dataset(folder / FACTS)
        self.events = _dataset(folder / EVENTS)
        self._streams = {(each.node, each.incarnation): each for each in self.run.streams}

    @property
    def first(self) -> int:
        return self.run.first_position

    @property
    def position(self) -> int:
        return self.run.position

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        if start < self.first:
            raise NotFound(
                f"this export begins at position {self.first}",
                hint="open an earlier export",
            )
        wanted = pc.field("position") >= start
        if stop is not None:
            wanted &= pc.field("position") < stop
        return (event for _, _, event in self._rows(self.facts, wanted))

    def _rows(
        self,
        source: ds.Dataset,
        wanted: pc.Expression | None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        """The events of matching rows, in file order.

        Damage makes one row group unreadable, at most 65,536 events; the others are read.
        """
        for group in self._readable_groups(source, wanted, on_damage):
            yield from self._rows_of(group, wanted, on_damage)

    def _rows_of(
        self,
        group: ds.ParquetFileFragment,
        wanted: pc.Expression | None,
        on_damage: OnDamage | None,
    ) -> Iterator[Found]:
        """The events of matching rows of a row group, in file order."""
        try:
            for rows in group.to_batches(EXACT, filter=wanted, batch_size=ROWS_AT_ONCE):
                yield from events_of(rows, CODEC)
        except (*UNREADABLE, Corrupt) as error:
            damage = self._damage(group, error)
            if on_damage is None:
                raise damage from error
            on_damage(damage)

    def _readable_groups(
        self, source: ds.Dataset, wanted: pc.Expression | None, on_damage: OnDamage | None
    ) -> list[ds.ParquetFileFragment]:
        """The row groups of a file; none if its footer is damaged."""
        try:
            return _groups(source, wanted)
        except Corrupt as error:
            if on_damage is None:
                raise
            on_damage(error)
            return []

    def _damage(self, group: ds.ParquetFileFragment, error: Exception) -> Corrupt:
        """The error for a damaged row group."""
        numbers = [each.id for each in group.row_groups]
        rows = group.count_rows()
        name = Path(group.path).name
        return Corrupt(
            f"row group {numbers[0]} of {self.folder / name} ({rows:,} events) is damaged: {error}",
            hint="export the run again, if its log still exists",
        )

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        sources: list[Iterable[Found]] = []
        if wanted.node in (None, COORDINATOR):
            sources.append(self._facts_by_wall_clock(wanted, on_damage))
        if wanted.node != COORDINATOR:
            sources.append(self._rows(self.events, _filter(wanted), on_damage))
        return islice(merge(*sources, key=_wall_ns), limit)

    def _facts_by_wall_clock(self, wanted: Window, on_damage: OnDamage | None) -> Iterator[Found]:
        """Facts by wall clock, which may jump; in the file they are sorted by position.

        A row group is opened when its first fact is due, so only groups that overlap in time are
        open: one, plus one for each jump of the clock at that moment.
        """
        chosen = _filter(wanted)
        groups = self._readable_groups(self.facts, chosen, on_damage)
        due = sorted(((_first_ns(group), at) for at, group in enumerate(groups)), reverse=True)
        heads: list[tuple[int, int, Found]] = []
        opened: dict[int, Iterator[Found]] = {}
        while due or heads:
            if due and (not heads or due[-1][0] <= heads[0][0]):
                _, at = due.pop()
                opened[at] = self._ascending(groups[at], chosen, on_damage)
            else:
                _, at, found = heappop(heads)
                yield found
            following = next(opened[at], None)
            if following is None:
                del opened[at]
            else:
                heappush(heads, (_wall_ns(following), at, following))

    def _ascending(
        self,
        group: ds.ParquetFileFragment,
        wanted: pc.Expression | None,
        on_damage: OnDamage | None,
    ) -> Iterator[Found]:
        """The rows of a group by wall clock; only a group with a clock jump is sorted."""
        found = self._rows_of(group, wanted, on_damage)
        try:
            walls = group.to_table(EXACT, ["wall_ns"], wanted)["wall_ns"].to_numpy()
        except UNREADABLE:
            return found  # reading it reports the damage
        return found if (walls[1:] >= walls[:-1]).all() else iter(sorted(found, key=_wall_ns))

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        found = self.query(wanted, FOREVER_NS, on_damage)
        for (name, incarnation), group in groupby(found, key=lambda each: each[:2]):
            for events in _dense(event for _, _, event in group):
                yield pack(CODEC, name, incarnation, events)

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        columns = ["node", "incarnation", "seq", "wall_ns", "kind"]
        chosen = _filter(wanted)
        for source in (self.facts, self.events):
            for group in _groups(source, chosen):
                try:
                    for rows in group.to_batches(EXACT, columns, chosen, ROWS_AT_ONCE):
                        yield from _headers(rows)
                except UNREADABLE as error:
                    raise self._damage(group, error) from error

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        stop = min(stop or LAST, LAST)
        own = (pc.field("node") == node) & (pc.field("incarnation") == incarnation)
        own &= (pc.field("seq") >= start) & (pc.field("seq") < stop)
        if self._is_ascending(own, on_damage):
            return (event for _, _, event in self._rows(self.events, own, on_damage))
        last = self.last_seq(node, incarnation)
        return self._by_seq(own, start, min(stop, 0 if last is None else last + 1), on_damage)

    def _is_ascending(self, own: pc.Expression, on_damage: OnDamage | None) -> bool:
        """Whether a worker's events are sorted by seq, because its wall clock did not jump."""
        last = -1
        for group in self._readable_groups(self.events, own, on_damage):
            try:
                for rows in group.to_batches(EXACT, ["seq"], own, ROWS_AT_ONCE):
                    seqs = rows.column("seq").to_numpy()
                    if seqs.size and (seqs[0] < last or (seqs[1:] < seqs[:-1]).any()):
                        return False
                    last = int(seqs[-1]) if seqs.size else last
            except UNREADABLE:
                continue  # reading the rows reports the damage
        return True

    def _by_seq(
        self, own: pc.Expression, start: int, stop: int, on_damage: OnDamage | None
    ) -> Iterator[Event]:
        """A worker's events by seq, sorted in pieces; each piece is one pass over the file."""
        reported: set[str] = set()

        def tell_once(error: Corrupt) -> None:
            if on_damage is None:
                raise error
            if error.message not in reported:
                reported.add(error.message)
                on_damage(error)

        for begin in range(start, stop, PIECE):
            piece = own & (pc.field("seq") >= begin) & (pc.field("seq") < begin + PIECE)
            found = (event for _, _, event in self._rows(self.events, piece, tell_once))
            yield from sorted(found, key=lambda event: event.seq)

    def check(self, on_damage: OnDamage) -> None:
        for group in self._readable_groups(self.events, None, on_damage):
            try:
                for _ in group.to_batches(EXACT, batch_size=ROWS_AT_ONCE):
                    pass
            except UNREADABLE as error:
                on_damage(self._damage(group, error))

    def tallies(self) -> list[Tally]:
        return [
            Tally(
                node=each.node,
                incarnation=each.incarnation,
                events=each.events,
                wall_from_ns=each.wall_from_ns,
                wall_to_ns=each.wall_to_ns,
                kinds=frozenset(each.kinds),
            )
            for each in self.run.streams
        ]

    def streams(self) -> list[tuple[str, int]]:
        return sorted(self._streams)

    def last_seq(self, node: str, incarnation: int) -> int | None:
        found = self._streams.get((node, incarnation))
        return found.last_seq if found is not None else None

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        found = self._streams.get((node, incarnation))
        return found.gaps if found is not None else []

    def position_at(self, wall_ns: int) -> int:
        later = self._rows(self.facts, pc.field("wall_ns") > wall_ns)
        return next((event.seq for _, _, event in later), self.position)

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        path = self.folder / SNAPSHOTS
        if not path.is_file():
            return None
        wanted = pc.field("schema") == schema
        wanted &= pc.field("position") <= (LAST if at is None else at)
        try:
            found = pq.read_table(path, columns=["position"], filters=wanted)["position"]
            if not len(found):
                return None
            newest = max(found.to_pylist())
            rows = pq.read_table(path, filters=[("position", "=", newest)]).to_pylist()
            return msgspec.convert(rows[0], Snapshot)
        except (*UNREADABLE, TypeError) as error:
            raise Corrupt(f"{path} cannot be read: {error}", hint="export the run again") from error


def _groups(source: ds.Dataset, wanted: pc.Expression | None) -> list[ds.ParquetFileFragment]:
    """The row groups of a file that may match, to be read one at a time.

    A scan of the whole file would read ahead and hold several groups in memory.
    """
    try:
        return [
            group
            for fragment in source.get_fragments(filter=wanted)
            for group in fragment.split_by_row_group(filter=wanted)
        ]
    except UNREADABLE as error:
        raise Corrupt(
            f"{source.files[0]} cannot be read: {error}", hint="export the run again"
        ) from error


def _first_ns(group: ds.ParquetFileFragment) -> int:
    """The earliest wall clock time of a row group, or `NEVER_NS` if unknown."""
    known = (each.statistics or {} for each in group.row_groups)
    return min(
        (int(each["wall_ns"]["min"]) for each in known if "wall_ns" in each), default=NEVER_NS
    )


def _filter(wanted: Window) -> pc.Expression | None:
    parts = []
    if wanted.node is not None:
        parts.append(pc.field("node") == wanted.node)
    if wanted.kinds:
        parts.append(pc.field("kind").isin(sorted(wanted.kinds)))
    if wanted.since_ns > NEVER_NS:
        parts.append(pc.field("wall_ns") >= wanted.since_ns)
    if wanted.until_ns < FOREVER_NS:
        parts.append(pc.field("wall_ns") < wanted.until_ns)
    return reduce(and_, parts) if parts else None


def _wall_ns(found: Found) -> int:
    return found[2].wall_ns


def _dense(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Runs of consecutive seqs."""
    run: list[Event] = []
    for event in events:
        if run and event.seq != run[-1].seq + 1:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _headers(rows: pa.RecordBatch) -> Iterator[Batch]:
    """Batch headers for rows: one per node and incarnation."""
    grouped = pa.table(rows).group_by(["node", "incarnation"])
    counted = grouped.aggregate(
        [
            ("seq", "min"),
            ("seq", "count"),
            ("wall_ns", "min"),
            ("wall_ns", "max"),
            ("kind", "distinct"),
        ]
    )
    for row in counted.to_pylist():
        yield Batch(
            node=row["node"],
            incarnation=row["incarnation"],
            first_seq=row["seq_min"],
            count=row["seq_count"],
            wall_from_ns=row["wall_ns_min"],
            wall_to_ns=row["wall_ns_max"],
            kinds=tuple(row["kind_distinct"]),
            payload=b"",
        )


def _dataset(path: Path) -> ds.Dataset:
    """The rows of a file; a damaged footer is reported only when rows are read."""
    try:
        opened = ds.dataset(path, schema=EXACT, format=CHECKED)
    except UNREADABLE as error:
        raise Corrupt(f"{path} cannot be read: {error}", hint="export the run again") from error
    try:
        names = pq.read_schema(path).names
    except UNREADABLE:
        return opened
    lacking = [name for name in EXACT.names if name not in names]
    if lacking:
        raise Corrupt(
            f"{path} is not a file of events: the column {lacking[0]!r} is missing",
            hint="the file was overwritten; export the run again",
        )
    return opened
