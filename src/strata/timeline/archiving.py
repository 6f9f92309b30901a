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
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage
from strata.timeline.exporting import write_parquet
from strata.timeline.opening import chosen, open_timeline
from strata.timeline.parquet import EVENTS, FACTS, SNAPSHOTS, ParquetLog
from strata.timeline.runfile import RUN, RunFile
from strata.timeline.runs import runs_at
from strata.timeline.timeline import Timeline

CHUNK_BYTES = 8 * 2**20


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


def open_anywhere(where: str, run: str = "", settings: Settings | None = None) -> Timeline:
    """The timeline of a run in a folder, or of one that an object storage keeps.

    It is called by its name, or by its task where no other run is of that task.
    """
    if "://" not in where:
        return open_timeline(where, run, settings)
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
