"""Runs that are kept: in a folder or an object storage, each as Parquet, as readable as live ones.

A run is put there file by file; `run.json` goes last and only if there is none, so a run is there
whole or not at all. To be read, an archived run is fetched into a folder for temporary files, which
goes when its timeline is closed.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.errors import NotFound
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage
from strata.timeline.exporting import write_parquet
from strata.timeline.opening import RUN, logs_in, open_timeline
from strata.timeline.parquet import EVENTS, FACTS, SNAPSHOTS, ParquetLog, RunFile, read_run
from strata.timeline.records import MS_NS
from strata.timeline.timeline import Timeline

CHUNK_BYTES = 8 * 2**20
MAX_RUNS = 1_000


class RunRow(Struct, frozen=True):
    """A run in a list; `archived` when it is kept as Parquet."""

    name: str
    where: str
    archived: bool
    from_ms: float
    to_ms: float
    facts: int
    events: int
    tasks: list[str]
    findings: int


def archive(timeline: Timeline, where: str, name: str, settings: Settings | None = None) -> RunFile:
    """Keeps a run under a name, in a folder or an object storage."""
    storage = open_storage(where, settings)
    with tempfile.TemporaryDirectory(prefix="strata-archive-") as scratch:
        folder = Path(scratch) / "run"
        run = write_parquet(timeline, folder)
        run = msgspec.structs.replace(run, name=name)
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
        return [_local(name, path) for name, path in list(logs_in(Path(where)))[:MAX_RUNS]]
    storage = open_storage(where, settings)
    found = [
        _archived(_described(storage, prefix.strip("/")), where)
        for prefix in storage.list("").folders[:MAX_RUNS]
        if storage.exists(f"{prefix.strip('/')}/{RUN}")
    ]
    storage.close()
    return found


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
    """The timeline of a run in a folder, or of one that an object storage keeps."""
    if "://" not in where:
        return open_timeline(where, run)
    storage = open_storage(where, settings)
    names = [row.name for row in runs_at(where, settings)]
    name = run or (names[0] if len(names) == 1 else "")
    if name not in names:
        raise NotFound(
            f"choose one of the runs at {where}", hint=f"--run one of: {', '.join(names[:10])}"
        )
    folder = tempfile.TemporaryDirectory(prefix="strata-run-")
    target = Path(folder.name)
    for file in storage.walk(name):
        (target / file.name.rpartition("/")[2]).write_bytes(storage.get(file.name))
    storage.close()
    return Timeline(_Fetched(target, folder), name)


class _Fetched(ParquetLog):
    """A fetched run that goes when it is closed."""

    def __init__(self, path: Path, folder: tempfile.TemporaryDirectory[str]) -> None:
        super().__init__(path)
        self._temporary = folder

    def close(self) -> None:
        self._temporary.cleanup()
