"""Runs that are kept: in a folder or an object storage, each as Parquet, as readable as live ones.

A run is put there file by file; `run.json` goes last and only if there is none, so a run is there
whole or not at all: what a writer that was killed has left is not seen, and is written over. To be
read, a run in an object storage is fetched into a folder for temporary files, which goes with its
timeline.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage
from strata.timeline.answers import RunRow
from strata.timeline.exporting import write_parquet
from strata.timeline.opening import KEPT, RUN, chosen, logs_in, open_timeline
from strata.timeline.parquet import EVENTS, FACTS, SNAPSHOTS, ParquetLog, RunFile, read_run
from strata.timeline.records import MS_NS
from strata.timeline.timeline import Timeline

CHUNK_BYTES = 8 * 2**20
MAX_RUNS = 1_000


def archive(
    timeline: Timeline,
    where: str,
    name: str,
    settings: Settings | None = None,
    scratch: str | None = None,
) -> RunFile:
    """Keeps a run under a name, in a folder or an object storage; it is written in `scratch`."""
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


def runs_at(where: str, settings: Settings | None = None) -> list[RunRow]:
    """The runs at a place: a coordinator's data folder, a folder of runs, or an object storage."""
    if "://" not in where:
        found = chain(logs_in(Path(where)), logs_in(Path(where) / KEPT))
        return [_local(name, path) for name, path in islice(found, MAX_RUNS)]
    storage = open_storage(where, settings)
    described = [
        _archived(_described(storage, prefix.strip("/")), where)
        for prefix in storage.list("").folders[-MAX_RUNS:]
        if storage.exists(f"{prefix.strip('/')}/{RUN}")
    ]
    storage.close()
    return described


def _local(name: str, path: Path) -> RunRow:
    if path.is_dir():
        return _archived(read_run(path), str(path))
    with open_timeline(path) as timeline:
        extent = timeline.extent()
        submitted = timeline.records(node="coordinator", kinds={"TaskSubmitted"})
        return RunRow(
            name,
            str(path),
            False,
            extent.from_ns / MS_NS,
            extent.to_ns / MS_NS,
            extent.last - extent.first,
            sum(tally.events for tally in timeline.tallies()),
            [record.text("task") for record in submitted],
            len(timeline.notes),
        )


def _described(storage: StorageBackend, name: str) -> RunFile:
    return msgspec.json.decode(storage.get(f"{name}/{RUN}"), type=RunFile)


def _archived(run: RunFile, where: str) -> RunRow:
    events = sum(stream.events for stream in run.streams)
    facts = run.position - run.first_position
    return RunRow(
        run.name,
        where,
        True,
        run.from_ms,
        run.to_ms,
        facts,
        events,
        run.tasks,
        len(run.findings),
    )


def open_anywhere(where: str, run: str = "", settings: Settings | None = None) -> Timeline:
    """The timeline of a run in a folder, or of one that an object storage keeps.

    It is called by its name, or by its task where no other run is of that task.
    """
    if "://" not in where:
        return open_timeline(where, run)
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
    """A folder with the files of a run, each copied piece by piece."""
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
