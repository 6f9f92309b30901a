"""Archived runs: Parquet in a folder or an object storage, read like live ones.

The files of a run are written one by one, `run.json` last and only if it does not exist, so a run
is archived completely or not at all; the files of a killed writer are ignored and overwritten. To
be read, a run in an object storage is downloaded to a temporary folder, which is deleted with its
timeline.

An archived run is verified against the log event by event, where it is stored. An event counts only
if its encoding is the same. The events of a worker are compared in pieces, with bounded memory.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.core.events import Event
from strata.errors import Corrupt
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage
from strata.store.event_store import EventReader
from strata.timeline.archive.parquet_log import EVENTS, FACTS, SNAPSHOTS, ParquetLog
from strata.timeline.archive.run_file import RUN, Held, RunFile
from strata.timeline.archive.run_list import runs_at
from strata.timeline.archive.run_lookup import chosen, open_shared, open_timeline
from strata.timeline.export.event_files import write_parquet
from strata.timeline.read.run_timeline import Timeline

CHUNK_BYTES = 8 * 2**20


def archive(
    timeline: Timeline,
    where: str,
    name: str,
    settings: Settings | None = None,
    scratch: str | None = None,
) -> RunFile:
    """Archive a run under a name; `scratch` is the folder for temporary files."""
    storage = open_storage(where, settings)
    with tempfile.TemporaryDirectory(prefix="strata-archive-", dir=scratch) as made:
        folder = Path(made) / "run"
        run = msgspec.structs.replace(write_parquet(timeline, folder), name=name)
        for file in (FACTS, EVENTS, SNAPSHOTS):
            if (folder / file).is_file():
                storage.put_stream(f"{name}/{file}", _chunks(folder / file))
        storage.put(f"{name}/{RUN}", msgspec.json.encode(run), if_absent=True)
    storage.close()
    return run


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def open_anywhere(where: str, run: str = "", settings: Settings | None = None) -> Timeline:
    """Open a run in a folder or an object storage, by its name, or by its task if unique."""
    if "://" not in where:
        return open_timeline(where, run, settings)
    if where.startswith("postgres"):
        return open_shared(where, settings)
    storage = open_storage(where, settings)
    if run and storage.exists(f"{run}/{RUN}"):
        name = run
    else:
        name = chosen(run, {row.name: row.tasks for row in runs_at(where, settings)}, where)
    kept = ParquetLog(_fetched(storage, name))
    storage.close()
    weakref.finalize(kept, shutil.rmtree, kept.folder, ignore_errors=True)
    return Timeline(kept, name, task=kept.run.task)


def _fetched(storage: StorageBackend, name: str) -> Path:
    """Download the files of a run to a temporary folder, in chunks."""
    folder = Path(tempfile.mkdtemp(prefix="strata-run-"))
    for info in storage.walk(name):
        buffer = memoryview(bytearray(min(CHUNK_BYTES, info.size_bytes)))
        target = folder / info.name.rpartition("/")[2]
        with storage.open(info.name) as source, target.open("wb") as file:
            for offset in range(0, info.size_bytes, CHUNK_BYTES):
                piece = buffer[: min(CHUNK_BYTES, info.size_bytes - offset)]
                source.read_into(offset, [piece])
                file.write(piece)
    return folder


PIECE = 1 << 16


def held(log: EventReader, run: EventReader) -> Iterator[Held]:
    """The ranges of worker events that log and run have in common."""
    for node, incarnation in run.streams():
        start = stop = 0
        for event in _same(log, run, node, incarnation):
            if event.seq != stop and stop > start:  # missing events may still arrive
                yield Held(
                    node=node, incarnation=incarnation, stop=stop, events=stop - start, start=start
                )
            start = start if event.seq == stop > start else event.seq
            stop = event.seq + 1
        if stop > start:
            yield Held(
                node=node, incarnation=incarnation, stop=stop, events=stop - start, start=start
            )


def _same(log: EventReader, run: EventReader, node: str, incarnation: int) -> Iterator[Event]:
    """The log's events of an incarnation, up to the first that the run does not have."""
    last = log.last_seq(node, incarnation)
    for start in range(0, -1 if last is None else last + 1, PIECE):
        kept = {e.seq: e for e in run.stream(node, incarnation, start, start + PIECE)}
        try:
            for event in log.stream(node, incarnation, start, start + PIECE):
                if event.seq not in kept or _encoded(kept[event.seq]) != _encoded(event):
                    return
                yield event
        except Corrupt:  # unreadable events cannot be compared, and stay in the log
            return


def _encoded(event: Event) -> bytes:
    return msgspec.msgpack.encode(event)
