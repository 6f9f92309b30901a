"""Finding a run's log: a coordinator's data folder, live or finished, or a folder of exports.

What is damaged is opened as far as it can be read, and says so. A folder with more than one run is
never taken for one: the caller is told which there are.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from strata.config import Settings
from strata.core.catalogue import CODEC
from strata.core.salvage import FactLost
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.store.base import EventReader
from strata.store.sqlite import Filling, SqliteReader, salvage
from strata.timeline.moved_facts import fetching
from strata.timeline.runfile import RUN, read_run
from strata.timeline.stretched_log import STRETCHES, StretchedLog, open_log
from strata.timeline.timeline import Timeline

LOG = "log.db"
KEPT = "runs"
"""The folder beneath a coordinator's where its finished runs go, unless the settings say where."""

RECORDED = "demo"
"""The run that comes with the package: what a simulated cluster went through."""


def open_recorded() -> Timeline:
    """The recorded run of the demo."""
    return _open(Path(__file__).with_name(RECORDED), RECORDED)


def open_timeline(path: str | Path, run: str = "", settings: Settings | None = None) -> Timeline:
    """The timeline of the one run in a folder, or of the run of that name.

    Runs that a coordinator has archived lie beneath its data folder, and are asked for by name.
    """
    place = Path(path)
    found = dict(logs_in(place))
    if run and run not in found:
        found |= dict(logs_in(place / KEPT))
    if not found:
        raise NotFound(
            f"there is no run at {place}",
            hint=f"name a coordinator's data folder (it holds {LOG}) or an exported run",
        )
    name = chosen(run, {name: tasks_of(log) for name, log in found.items()}, str(place))
    return _open(found[name], name, settings)


def chosen(run: str, there: Mapping[str, list[str]], where: str) -> str:
    """The name of the run that is meant, of those at a place with their tasks."""
    meant = [name for name, tasks in there.items() if run in (name, *tasks)]
    if run in meant:
        return run
    if not run and len(there) == 1:
        return next(iter(there))
    if len(meant) == 1:
        return meant[0]
    if not run:
        raise InvalidArgument(
            f"{where} holds {len(there)} runs: {_named(there)}", hint="choose one with --run"
        )
    raise NotFound(f"there is no run {run!r} at {where}", hint=f"there are: {_named(there)}")


def tasks_of(log: Path) -> list[str]:
    """The tasks that an archived run is called by; a log that may grow has a name only."""
    return read_run(log).tasks if log.is_dir() else []


def kept_at(settings: Settings) -> str:
    """Where a coordinator keeps its finished runs: a folder, or an address of object storage."""
    return settings.archive_to or str(Path(settings.data_dir) / KEPT)


def logs_in(place: Path) -> Iterator[tuple[str, Path]]:
    """Every run at a place, by name: the place itself, or what lies directly in it."""
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
    """Whether a folder holds an exported run."""
    return (folder / RUN).is_file()


def _named(found: Iterable[str]) -> str:
    names = sorted(found)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _open(path: Path, name: str, settings: Settings | None = None) -> Timeline:
    if path.is_dir():
        # Imported here: a log in SQLite is opened without Arrow.
        from strata.timeline.parquet import ParquetLog

        kept = ParquetLog(path)
        return Timeline(kept, name, task=kept.run.task)
    try:
        reader: EventReader = open_log(path, settings=settings)
    except Corrupt as damage:
        return _salvaged(path, name, damage, settings)
    return Timeline(reader, name, live=True)


def _salvaged(path: Path, name: str, damage: Corrupt, settings: Settings | None) -> Timeline:
    """What is readable of a damaged log, copied to where nothing can be harmed."""
    folder = tempfile.TemporaryDirectory(prefix="strata-salvage-")
    copy = Path(folder.name) / LOG
    salvage(path, copy, fill=Filling(CODEC, FactLost, end=True))
    stretches = path.parent / STRETCHES
    timeline = Timeline(StretchedLog(_Kept(copy, folder, settings), stretches), name)
    timeline.notes.append(f"{damage.message}; shown is what could still be read")
    return timeline


class _Kept(SqliteReader):
    """A reader of a copy that goes when the reader does."""

    def __init__(
        self, path: Path, folder: tempfile.TemporaryDirectory[str], settings: Settings | None
    ) -> None:
        super().__init__(path, CODEC, fetch=fetching(settings))
        self._folder = folder

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
