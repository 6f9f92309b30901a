"""Writing a stretch: the older part of what a running task's workers have in the log, as Parquet.

A stretch is an export without facts (`exporting`), in a folder of its own beside the log. It is
written under another name, read back and compared with the log event for event, made durable, and
then given its name; only then may the log release its events. Killed at any moment, a stretch is
there whole or not at all.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import Corrupt
from strata.store import ranges
from strata.store.base import Batch, Found, Range, Window
from strata.store.sqlite import SqliteReader
from strata.timeline.columns import tables
from strata.timeline.exporting import FORMAT, write_file
from strata.timeline.parquet import EVENTS, FACTS, ParquetLog
from strata.timeline.records import MS_NS, Record
from strata.timeline.runfile import RUN, Held, RunFile, Stream
from strata.timeline.stretched_log import held_in
from strata.timeline.timeline import Timeline

DRAFT = ".draft"


class Cut(Struct):
    """What leaves of one worker's incarnation: the events before seq `stop`."""

    node: str
    incarnation: int
    stop: int
    events: int
    held: list[Range]
    wall_from_ns: int
    wall_to_ns: int
    kinds: set[str]


def write_stretch(
    timeline: Timeline, log: SqliteReader, task: str, streams: set[tuple[str, int]], target: Path
) -> list[Held]:
    """Writes the older half of the events of some streams; says what the log may release."""
    cuts = _older_half(log, streams)
    if not cuts:
        return []
    draft = target.with_name(DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    timeline.tallies()
    records = (
        Record(timeline.clocks.at_ns(node, incarnation, event), node, incarnation, event)
        for node, incarnation, event in _chosen(log, cuts)
    )
    write_file(draft / EVENTS, tables(records, exact=True))
    write_file(draft / FACTS, iter(()))
    described = _described(target.name, task, cuts)
    (draft / RUN).write_bytes(msgspec.json.encode(described))
    _require_same(_chosen(log, cuts), ParquetLog(draft).query(limit=2**62))
    _publish(draft, target)
    return held_in(described)


def _older_half(log: SqliteReader, streams: set[tuple[str, int]]) -> dict[tuple[str, int], Cut]:
    """The batches that hold the older half of the events, of each stream from its beginning."""
    batches = [each for each in log.headers() if (each.node, each.incarnation) in streams]
    half, cut_ns = sum(batch.count for batch in batches) // 2, 0
    for batch in batches:  # by the start of their span
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
    ranges.add(cut.held, batch.first_seq, batch.stop_seq)
    cut.wall_from_ns = min(cut.wall_from_ns, batch.wall_from_ns)
    cut.wall_to_ns = max(cut.wall_to_ns, batch.wall_to_ns)
    cut.kinds.update(batch.kinds)


def _chosen(log: SqliteReader, cuts: dict[tuple[str, int], Cut]) -> Iterator[Found]:
    """The events that leave, by their wall clocks."""
    since_ns = min(cut.wall_from_ns for cut in cuts.values())
    until_ns = max(cut.wall_to_ns for cut in cuts.values()) + 1
    for found in log.query(Window(since_ns, until_ns), 2**62):
        cut = cuts.get((found[0], found[1]))
        if cut is not None and found[2].seq < cut.stop:
            yield found


def _described(name: str, task: str, cuts: dict[tuple[str, int], Cut]) -> RunFile:
    streams = [
        Stream(
            node=cut.node,
            incarnation=cut.incarnation,
            events=cut.events,
            wall_from_ns=cut.wall_from_ns,
            wall_to_ns=cut.wall_to_ns,
            kinds=sorted(cut.kinds),
            last_seq=cut.stop - 1,
            gaps=ranges.missing(cut.held, 0, cut.stop),
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
    """Raises `Corrupt` unless the stretch, read back, holds exactly what the log has."""
    for one, other in zip_longest(logged, kept):
        if one is None or other is None or one[:2] != other[:2] or not _equal(one, other):
            raise Corrupt(
                f"a stretch differs from the log: {_named(other)} instead of {_named(one)}",
                hint="nothing was released; check the disk",
            )


def _equal(one: Found, other: Found) -> bool:
    return msgspec.msgpack.encode(one[2]) == msgspec.msgpack.encode(other[2])


def _named(found: Found | None) -> str:
    return "nothing" if found is None else f"{found[0]}.{found[1]}.{found[2].seq}"


def _publish(draft: Path, target: Path) -> None:
    """Makes the files durable and gives the folder its name."""
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
