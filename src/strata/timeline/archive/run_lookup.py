"""Open a run: a coordinator's data folder, live or finished, or a folder with exported runs.

A damaged log is opened as far as it is readable, with a note. In a folder with several runs the
caller must choose one.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from strata.config import Settings
from strata.core.record.event_codec import CODEC
from strata.core.record.log_salvage import FactLost
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.store.event_store import EventReader
from strata.store.sqlite import Filling, SqliteReader, salvage
from strata.timeline.archive.moved_facts import fetching
from strata.timeline.archive.run_file import RUN, read_run
from strata.timeline.archive.segmented_log import LOG, STRETCHES, SegmentedLog, log_place, open_log
from strata.timeline.read.run_timeline import Timeline

KEPT = "runs"
"""The folder in a data folder for finished runs, unless the setting `archive_to` is set."""

RECORDED = "demo"
"""The recorded run in this package, of a simulated cluster."""


def open_recorded() -> Timeline:
    """Open the recorded run of the demo."""
    return _open(Path(__file__).with_name(RECORDED), RECORDED)


def open_timeline(path: str | Path, run: str = "", settings: Settings | None = None) -> Timeline:
    """Open the only run in a folder, or the run with a name.

    Archived runs in a data folder are opened by name.
    """
    place = Path(path)
    found = dict(logs_in(place))
    if run and run not in found:
        found |= dict(logs_in(place / KEPT))
    if not found:
        raise NotFound(
            f"no run found in {place}" if place.exists() else f"the run {place} does not exist",
            hint=f"use a coordinator's data folder (it has {LOG}) or an exported run",
        )
    name = chosen(run, {name: tasks_of(log) for name, log in found.items()}, str(place))
    return _open(found[name], name, settings)


def open_own(settings: Settings) -> Timeline:
    """Open the log of the coordinator with these settings."""
    place = log_place(settings)
    if isinstance(place, Path):
        return open_timeline(place, settings=settings)
    return open_shared(place, settings)


def open_shared(address: str, settings: Settings | None = None) -> Timeline:
    """Open a log in a PostgreSQL store."""
    return Timeline(open_log(address, settings=settings), "log", live=True)


def chosen(run: str, there: Mapping[str, list[str]], where: str) -> str:
    """Choose a run by its name or its task, from the runs at a place with their tasks."""
    meant = [name for name, tasks in there.items() if run in (name, *tasks)]
    if run in meant:
        return run
    if not run and len(there) == 1:
        return next(iter(there))
    if len(meant) == 1:
        return meant[0]
    if not run:
        raise InvalidArgument(
            f"{where} has {len(there)} runs: {_named(there)}", hint="choose one with --run"
        )
    raise NotFound(f"{where} has no run {run!r}", hint=f"it has {_named(there)}")


def tasks_of(log: Path) -> list[str]:
    """The tasks by which an archived run can be opened; a live log has only its name."""
    return read_run(log).tasks if log.is_dir() else []


def kept_at(settings: Settings) -> str:
    """Where a coordinator archives finished runs: a folder or an object storage URL."""
    return settings.archive_to or str(Path(settings.data_dir) / KEPT)


def logs_in(place: Path) -> Iterator[tuple[str, Path]]:
    """Every run at a place by name: the place itself, or directly in it."""
    if place.is_file() and place.suffix == ".db":
        yield place.stem, place
        return
    if is_export(place):
        yield place.name, place
    for file in sorted(place.glob("*.db")) if place.is_dir() else []:
        yield (place.name if file.name == LOG else file.stem), file
    for folder in sorted(place.iterdir()) if place.is_dir() else []:
        if (folder / LOG).is_file():
            yield folder.name, folder / LOG
        elif is_export(folder):
            yield folder.name, folder


def is_export(folder: Path) -> bool:
    """Whether a folder is an exported run."""
    return (folder / RUN).is_file()


def _named(found: Iterable[str]) -> str:
    names = sorted(found)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _open(path: Path, name: str, settings: Settings | None = None) -> Timeline:
    if path.is_dir():
        # Imported here: a log in SQLite does not need Arrow.
        from strata.timeline.archive.parquet_log import ParquetLog

        kept = ParquetLog(path)
        return Timeline(kept, name, task=kept.run.task)
    try:
        reader: EventReader = open_log(path, settings=settings)
    except Corrupt as damage:
        return _salvaged(path, name, damage, settings)
    return Timeline(reader, name, live=True)


def _salvaged(path: Path, name: str, damage: Corrupt, settings: Settings | None) -> Timeline:
    """Open the readable part of a damaged log, copied to a temporary folder."""
    folder = tempfile.TemporaryDirectory(prefix="strata-salvage-")
    copy = Path(folder.name) / LOG
    salvage(path, copy, fill=Filling(CODEC, FactLost, end=True))
    stretches = path.parent / STRETCHES
    timeline = Timeline(SegmentedLog(_TemporaryCopy(copy, folder, settings), stretches), name)
    if not timeline.position and not timeline.tallies():
        timeline.close()
        raise damage
    timeline.notes.append(f"{damage.message}; only the readable part is shown")
    return timeline


class _TemporaryCopy(SqliteReader):
    """A reader that deletes its temporary copy when it is closed."""

    def __init__(
        self, path: Path, folder: tempfile.TemporaryDirectory[str], settings: Settings | None
    ) -> None:
        super().__init__(path, CODEC, fetch=fetching(settings))
        self._folder = folder

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
