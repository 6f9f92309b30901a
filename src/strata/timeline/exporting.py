"""Writing a run down for others: Parquet to keep, JSON lines to read, Perfetto to look at.

Every export reads the log once, in order, and holds a bounded piece of it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from strata.core.events import COORDINATOR
from strata.core.state_versions import readable
from strata.errors import AlreadyExists
from strata.files import write_whole
from strata.timeline.columns import EXACT, tables
from strata.timeline.parquet import EVENTS, FACTS, SNAPSHOTS
from strata.timeline.records import MS_NS, Record
from strata.timeline.runfile import RUN, RunFile, Stream
from strata.timeline.shaping import event_answer
from strata.timeline.timeline import Timeline
from strata.timeline.trust import examine

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
"""Numbers that rise are kept as differences: a quarter less than as they are."""


def json_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """Each record as one line: the whole event, with its reference and a sentence."""
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
    """Some records as one Parquet file."""
    target = pa.BufferOutputStream()
    with pq.ParquetWriter(target, EXACT, **WRITING) as writer:
        for piece in tables(records, exact=True):
            writer.write_table(piece)
    written: bytes = target.getvalue().to_pybytes()
    return written


def write_parquet(timeline: Timeline, folder: Path) -> RunFile:
    """Writes the whole run into a new folder; `run.json` comes last, so it is whole or no run."""
    if (folder / RUN).exists():
        raise AlreadyExists(f"{folder} holds an exported run already", hint="choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    extent = timeline.extent()
    facts = timeline.facts(extent.first, extent.last)
    write_file(folder / FACTS, tables(facts, exact=True))
    write_file(folder / EVENTS, tables(_by_wall_clock(timeline), exact=True))
    _write_snapshots(timeline, folder / SNAPSHOTS)
    run = _described(timeline)
    write_whole(folder / RUN, msgspec.json.format(msgspec.json.encode(run)), mode=0o666)
    return run


def write_file(path: Path, pieces: Iterable[pa.Table]) -> None:
    """Writes tables of events as one Parquet file."""
    with pq.ParquetWriter(path, EXACT, **WRITING) as writer:
        for piece in pieces:
            writer.write_table(piece)


def _by_wall_clock(timeline: Timeline) -> Iterator[Record]:
    """Workers' events in the order that a reader of the export relies on."""
    timeline.tallies()
    found = timeline.reader.query(limit=2**62, on_damage=lambda error: None)
    for node, incarnation, event in found:
        if node != COORDINATOR:
            at_ns = timeline.clocks.at_ns(node, incarnation, event)
            yield Record(at_ns, node, incarnation, event)


def _write_snapshots(timeline: Timeline, path: Path) -> None:
    """The newest ones, and what a run that is part of a log began from."""
    found: list[dict[str, object]] = []
    reader, at = timeline.reader, timeline.position
    schemas = readable()
    while len(found) < SNAPSHOTS_KEPT and (kept := reader.load_snapshot(at, *schemas)) is not None:
        found.append(msgspec.structs.asdict(kept))
        at = kept.position - 1
    first = timeline.extent().first
    base = reader.load_snapshot(first, *schemas) if first and at >= first else None
    if base is not None:
        found.append(msgspec.structs.asdict(base))
    if found:
        pq.write_table(pa.Table.from_pylist(found), path, compression="none")


def _described(timeline: Timeline) -> RunFile:
    extent = timeline.extent()
    submitted = timeline.records(node=COORDINATOR, kinds={"TaskSubmitted"})
    streams = [
        Stream(
            tally.node,
            tally.incarnation,
            tally.events,
            tally.wall_from_ns,
            tally.wall_to_ns,
            sorted(tally.kinds),
            timeline.reader.last_seq(tally.node, tally.incarnation) or 0,
            timeline.reader.gaps(tally.node, tally.incarnation),
        )
        for tally in timeline.tallies()
    ]
    return RunFile(
        FORMAT,
        timeline.name,
        extent.last,
        extent.first,
        extent.from_ns / MS_NS,
        extent.to_ns / MS_NS,
        [timeline.task] if timeline.task else [record.text("task") for record in submitted],
        streams,
        [finding.text for finding in examine(timeline).findings],
        timeline.task,
    )
