"""Which runs there are at a place, by their descriptions; Arrow is not needed for that."""

from itertools import chain, islice
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage
from strata.timeline.answers import RunRow
from strata.timeline.opening import KEPT, logs_in, open_timeline
from strata.timeline.records import MS_NS
from strata.timeline.runfile import RUN, RunFile, read_run

MAX_RUNS = 1_000


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
