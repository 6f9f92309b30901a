"""Write a stretch: the older worker events of a running task, moved from the log to Parquet.

A stretch is an export without facts (`timeline/export/event_files`) in its own folder beside the
log. It is written under a draft name, read back and compared with the log event by event, synced to
disk, and then renamed; only then may the log release its events. After a crash at any moment, a
stretch is complete or absent.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import Corrupt
from strata.store import seq_ranges
from strata.store.event_store import Batch, Found, Range, Window
from strata.store.sql.sql_reader import SqlReader
from strata.timeline.archive.event_columns import tables
from strata.timeline.archive.parquet_log import EVENTS, FACTS, ParquetLog
from strata.timeline.archive.run_file import RUN, Held, RunFile, WorkerStream
from strata.timeline.archive.segmented_log import held_in
from strata.timeline.export.event_files import FORMAT, write_file
from strata.timeline.read.records import MS_NS, Record
from strata.timeline.read.run_timeline import Timeline

DRAFT = ".draft"


class Cut(Struct):
    """The events of one worker's incarnation to move: those before seq `stop`."""

    node: str
    incarnation: int
    stop: int
    events: int
    held: list[Range]
    wall_from_ns: int
    wall_to_ns: int
    kinds: set[str]


def write_stretch(
    timeline: Timeline, log: SqlReader, task: str, streams: set[tuple[str, int]], target: Path
) -> list[Held]:
    """Write the older half of the events of some streams; returns what the log may release."""
    cuts = _older_half(log, streams)
    if not cuts:
        return []
    draft = target.with_name(DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    timeline.tallies()
    records = (
        Record(
            at_ns=timeline.clocks.at_ns(node, incarnation, event),
            node=node,
            incarnation=incarnation,
            event=event,
        )
        for node, incarnation, event in _chosen(log, cuts)
    )
    write_file(draft / EVENTS, tables(records, exact=True))
    write_file(draft / FACTS, iter(()))
    described = _described(target.name, task, cuts)
    (draft / RUN).write_bytes(msgspec.json.encode(described))
    _require_same(_chosen(log, cuts), ParquetLog(draft).query(limit=2**62))
    _publish(draft, target)
    return held_in(described)


def _older_half(log: SqlReader, streams: set[tuple[str, int]]) -> dict[tuple[str, int], Cut]:
    """The batches with the older half of the events, from the start of each stream."""
    batches = [each for each in log.headers() if (each.node, each.incarnation) in streams]
    half, cut_ns = sum(batch.count for batch in batches) // 2, 0
    for batch in batches:  # sorted by start time
        cut_ns = batch.wall_from_ns
        half -= batch.count
        if half <= 0:
            break
    cuts: dict[tuple[str, int], Cut] = {}
    closed: set[tuple[str, int]] = set()
    for batch in sorted(batches, key=lambda each: each.first_seq):
        stream = (batch.node, batch.incarnation)
        if batch.wall_from_ns > cut_ns:
            closed.add(stream)
        if stream not in closed:
            _extend(cuts, stream, batch)
    return cuts


def _extend(cuts: dict[tuple[str, int], Cut], stream: tuple[str, int], batch: Batch) -> None:
    cut = cuts.get(stream)
    if cut is None:
        cut = cuts[stream] = Cut(
            node=batch.node,
            incarnation=batch.incarnation,
            stop=0,
            events=0,
            held=[],
            wall_from_ns=batch.wall_from_ns,
            wall_to_ns=batch.wall_to_ns,
            kinds=set(),
        )
    cut.stop = batch.stop_seq
    cut.events += batch.count
    seq_ranges.add(cut.held, batch.first_seq, batch.stop_seq)
    cut.wall_from_ns = min(cut.wall_from_ns, batch.wall_from_ns)
    cut.wall_to_ns = max(cut.wall_to_ns, batch.wall_to_ns)
    cut.kinds.update(batch.kinds)


def _chosen(log: SqlReader, cuts: dict[tuple[str, int], Cut]) -> Iterator[Found]:
    """The events to move, by wall clock."""
    since_ns = min(cut.wall_from_ns for cut in cuts.values())
    until_ns = max(cut.wall_to_ns for cut in cuts.values()) + 1
    for found in log.query(Window(since_ns=since_ns, until_ns=until_ns), 2**62):
        cut = cuts.get((found[0], found[1]))
        if cut is not None and found[2].seq < cut.stop:
            yield found


def _described(name: str, task: str, cuts: dict[tuple[str, int], Cut]) -> RunFile:
    streams = [
        WorkerStream(
            node=cut.node,
            incarnation=cut.incarnation,
            events=cut.events,
            wall_from_ns=cut.wall_from_ns,
            wall_to_ns=cut.wall_to_ns,
            kinds=sorted(cut.kinds),
            last_seq=cut.stop - 1,
            gaps=seq_ranges.missing(cut.held, 0, cut.stop),
        )
        for cut in cuts.values()
    ]
    return RunFile(
        format=FORMAT,
        name=name,
        position=0,
        first_position=0,
        from_ms=min(cut.wall_from_ns for cut in cuts.values()) / MS_NS,
        to_ms=max(cut.wall_to_ns for cut in cuts.values()) / MS_NS,
        tasks=[task],
        streams=streams,
        findings=[],
        task=task,
    )


def _require_same(logged: Iterator[Found], kept: Iterator[Found]) -> None:
    """Raise `Corrupt` unless the stretch, read back, equals the log."""
    for one, other in zip_longest(logged, kept):
        if one is None or other is None or one[:2] != other[:2] or not _equal(one, other):
            raise Corrupt(
                f"the moved events differ from the log: {_named(other)} instead of {_named(one)}",
                hint="no event was released; check the disk",
            )


def _equal(one: Found, other: Found) -> bool:
    return msgspec.msgpack.encode(one[2]) == msgspec.msgpack.encode(other[2])


def _named(found: Found | None) -> str:
    return "nothing" if found is None else f"{found[0]}.{found[1]}.{found[2].seq}"


def _publish(draft: Path, target: Path) -> None:
    """Sync the files to disk and rename the folder."""
    for file in draft.iterdir():
        _sync(file)
    _sync(draft)
    draft.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
