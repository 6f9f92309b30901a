"""List the runs in a folder or object storage, without Arrow."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from strata.config import Settings
from strata.errors import Corrupt, NotFound, StrataError
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage
from strata.timeline.answers import RunRow
from strata.timeline.archive.run_file import RUN, RunFile, decode_run, read_run
from strata.timeline.archive.run_lookup import KEPT, logs_in, open_timeline
from strata.timeline.read.branches import forks_of
from strata.timeline.read.records import ms

MAX_RUNS = 1_000


OnUnreadable: TypeAlias = Callable[[str, StrataError], None]


def runs_at(
    where: str, settings: Settings | None = None, on_unreadable: OnUnreadable | None = None
) -> list[RunRow]:
    """The runs in a data folder, a folder of runs, or an object storage.

    A log in a folder that cannot be read raises; with `on_unreadable` it is reported and left out.
    """
    if "://" not in where:
        found = chain(logs_in(Path(where)), logs_in(Path(where) / KEPT))
        return list(_readable(islice(found, MAX_RUNS), on_unreadable))
    storage = open_storage(where, settings)
    described = [
        _archived(_described(storage, prefix.strip("/")), where)
        for prefix in storage.list("").folders[-MAX_RUNS:]
        if storage.exists(f"{prefix.strip('/')}/{RUN}")
    ]
    storage.close()
    return described


def _readable(
    logs: Iterable[tuple[str, Path]], on_unreadable: OnUnreadable | None
) -> Iterator[RunRow]:
    for name, path in logs:
        try:
            yield _local(name, path)
        except (Corrupt, NotFound) as error:
            if on_unreadable is None:
                raise
            on_unreadable(name, error)


def _local(name: str, path: Path) -> RunRow:
    if path.is_dir():
        return _archived(read_run(path), str(path))
    with open_timeline(path) as timeline:
        extent = timeline.extent()
        submitted = timeline.records(node="coordinator", kinds={"TaskSubmitted"})
        return RunRow(
            name=name,
            where=str(path),
            archived=False,
            from_ms=ms(extent.from_ns),
            to_ms=ms(extent.to_ns),
            facts=extent.last - extent.first,
            events=sum(tally.events for tally in timeline.tallies()),
            tasks=[record.text("task") for record in submitted],
            forks=forks_of(timeline),
            findings=len(timeline.notes),
        )


def _described(storage: StorageBackend, name: str) -> RunFile:
    file = f"{name}/{RUN}"
    return decode_run(storage.get(file), f"{storage.url}/{file}", RunFile)


def _archived(run: RunFile, where: str) -> RunRow:
    return RunRow(
        name=run.name,
        where=where,
        archived=True,
        from_ms=run.from_ms,
        to_ms=run.to_ms,
        facts=run.position - run.first_position,
        events=sum(stream.events for stream in run.streams),
        tasks=run.tasks,
        forks=run.forks,
        findings=len(run.findings),
    )
