"""Export of events as Parquet and JSON lines.

An export reads the log once, in order, with bounded memory.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from strata.core.events import COORDINATOR
from strata.core.record.snapshot_versions import SCHEMA
from strata.errors import AlreadyExists
from strata.files import write_whole
from strata.timeline.answers import event_answer
from strata.timeline.archive.event_columns import EXACT, tables
from strata.timeline.archive.parquet_log import EVENTS, FACTS, SNAPSHOTS
from strata.timeline.archive.run_file import RUN, RunFile, WorkerStream
from strata.timeline.read.branches import forks_of
from strata.timeline.read.log_trust import examine
from strata.timeline.read.records import MS_NS, Record
from strata.timeline.read.run_timeline import Timeline

FORMAT = 1
SNAPSHOTS_KEPT = 64
RISING = ("at_ns", "wall_ns", "mono_ns", "seq", "position", "incarnation")
SINGULAR = ("body", "raw")
WRITING = {
    "compression": "zstd",
    "write_page_checksum": True,
    "column_encoding": dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
    "use_dictionary": [name for name in EXACT.names if name not in {*RISING, *SINGULAR}],
}
"""Ascending numbers are stored as differences, which makes files a quarter smaller."""


def json_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """Each record as one line of JSON: the whole event, its reference and its sentence."""
    for record in records:
        shown = event_answer(record)
        yield (
            msgspec.json.encode(
                {
                    "ref": shown.ref,
                    "at_ms": shown.at_ms,
                    "node": record.node,
                    "incarnation": record.incarnation,
                    "seq": record.event.seq,
                    "kind": record.kind,
                    "version": record.version,
                    "op": record.event.op,
                    "cause": record.causes,
                    "tags": shown.tags,
                    "body": record.fields(),
                    "text": shown.summary,
                }
            )
            + b"\n"
        )


def parquet_file(records: Iterable[Record]) -> bytes:
    """Records as one Parquet file, in memory."""
    target = pa.BufferOutputStream()
    write_file(target, tables(records, exact=True))
    written: bytes = target.getvalue().to_pybytes()
    return written


def write_parquet(timeline: Timeline, folder: Path) -> RunFile:
    """Write the whole run to a new folder; `run.json` last, so that a run is complete or absent."""
    if (folder / RUN).exists():
        raise AlreadyExists(f"{folder} already has an exported run", hint="choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    extent = timeline.extent()
    facts = timeline.facts(extent.first, extent.last)
    write_file(folder / FACTS, tables(facts, exact=True))
    write_file(folder / EVENTS, tables(_by_wall_clock(timeline), exact=True))
    _write_snapshots(timeline, folder / SNAPSHOTS)
    run = _described(timeline)
    write_whole(folder / RUN, msgspec.json.format(msgspec.json.encode(run)), mode=0o666)
    return run


def write_file(target: Path | pa.BufferOutputStream, pieces: Iterable[pa.Table]) -> None:
    """Write tables of events as one Parquet file."""
    with pq.ParquetWriter(target, EXACT, **WRITING) as writer:
        for piece in pieces:
            writer.write_table(piece)


def _by_wall_clock(timeline: Timeline) -> Iterator[Record]:
    """Worker events by wall clock, the order in which readers expect them."""
    timeline.tallies()
    found = timeline.reader.query(limit=2**62, on_damage=lambda error: None)
    for node, incarnation, event in found:
        if node != COORDINATOR:
            at_ns = timeline.clocks.at_ns(node, incarnation, event)
            yield Record(at_ns=at_ns, node=node, incarnation=incarnation, event=event)


def _write_snapshots(timeline: Timeline, path: Path) -> None:
    """Write the newest snapshots, and the one that an excerpt begins from."""
    found: list[dict[str, object]] = []
    reader, at = timeline.reader, timeline.position
    while len(found) < SNAPSHOTS_KEPT and (kept := reader.load_snapshot(at, SCHEMA)) is not None:
        found.append(msgspec.structs.asdict(kept))
        at = kept.position - 1
    first = timeline.extent().first
    base = reader.load_snapshot(first, SCHEMA) if first and at >= first else None
    if base is not None:
        found.append(msgspec.structs.asdict(base))
    if found:
        pq.write_table(pa.Table.from_pylist(found), path, compression="none")


def _described(timeline: Timeline) -> RunFile:
    extent = timeline.extent()
    submitted = timeline.records(node=COORDINATOR, kinds={"TaskSubmitted"})
    streams = [
        WorkerStream(
            node=tally.node,
            incarnation=tally.incarnation,
            events=tally.events,
            wall_from_ns=tally.wall_from_ns,
            wall_to_ns=tally.wall_to_ns,
            kinds=sorted(tally.kinds),
            last_seq=timeline.reader.last_seq(tally.node, tally.incarnation) or 0,
            gaps=timeline.reader.gaps(tally.node, tally.incarnation),
        )
        for tally in timeline.tallies()
    ]
    tasks = [timeline.task] if timeline.task else [record.text("task") for record in submitted]
    return RunFile(
        format=FORMAT,
        name=timeline.name,
        position=extent.last,
        first_position=extent.first,
        from_ms=extent.from_ns / MS_NS,
        to_ms=extent.to_ns / MS_NS,
        tasks=tasks,
        streams=streams,
        findings=[finding.text for finding in examine(timeline).findings],
        task=timeline.task,
        forks=forks_of(timeline, tasks),
    )
