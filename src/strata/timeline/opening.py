"""Finding a run's log: a coordinator's data folder, live or finished, or a folder of exports.

What is damaged is opened as far as it can be read, and says so. A folder with more than one run is
never taken for one: the caller is told which there are.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from strata.core.catalogue import CODEC
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.store.base import EventReader
from strata.store.sqlite import SqliteReader, salvage
from strata.timeline.timeline import Timeline

LOG = "log.db"
RUN = "run.json"


def open_timeline(path: str | Path, run: str = "") -> Timeline:
    """The timeline of the one run in a folder, or of the run of that name."""
    place = Path(path)
    found = dict(logs_in(place))
    if not found:
        raise NotFound(
            f"there is no run at {place}",
            hint=f"name a coordinator's data folder (it holds {LOG}) or an exported run",
        )
    if run and run not in found:
        raise NotFound(f"there is no run {run!r} at {place}", hint=f"there are: {_named(found)}")
    if not run and len(found) > 1:
        raise InvalidArgument(
            f"{place} holds {len(found)} runs: {_named(found)}", hint="choose one with --run"
        )
    name = run or next(iter(found))
    return _open(found[name], name)


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


def _named(found: dict[str, Path]) -> str:
    names = sorted(found)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _open(path: Path, name: str) -> Timeline:
    if path.is_dir():
        # Imported here: a log in SQLite is opened without Arrow.
        from strata.timeline.parquet import ParquetLog

        return Timeline(ParquetLog(path), name)
    try:
        reader: EventReader = SqliteReader(path, CODEC)
    except Corrupt as damage:
        return _salvaged(path, name, damage)
    return Timeline(reader, name, live=True)


def _salvaged(path: Path, name: str, damage: Corrupt) -> Timeline:
    """What is readable of a damaged log, copied to where nothing can be harmed."""
    folder = tempfile.TemporaryDirectory(prefix="strata-salvage-")
    copy = Path(folder.name) / LOG
    salvage(path, copy)
    timeline = Timeline(_Kept(copy, folder), name)
    timeline.notes.append(f"{damage.message}; shown is what could still be read")
    return timeline


class _Kept(SqliteReader):
    """A reader of a copy that goes when the reader does."""

    def __init__(self, path: Path, folder: tempfile.TemporaryDirectory[str]) -> None:
        super().__init__(path, CODEC)
        self._folder = folder

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
