"""Recovers the readable part of a damaged log, into a new data folder or in place.

The readable rows are copied to a new log with the same positions (`store/sqlite/sqlite_salvage`).
The rules then record what is lost, raise every counter beyond the lost numbers and declare all
workers lost (`core/record/log_salvage`), and a snapshot of the result is stored. The damaged files
are never changed; in place, they move to `damaged/<time>` in the data folder.

In place, the new file replaces the damaged one atomically, and the old mark stays until then: if
the process dies in between, the next start finds either the damaged log or the new one.
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from strata.coordinator.engine.clock import read_clock
from strata.core.cluster import CODEC, decide, fold
from strata.core.events import Event, Now
from strata.core.record import snapshot_versions
from strata.core.record.log_salvage import FactLost, SalvageLog
from strata.core.state import Cluster
from strata.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound, UnknownKind
from strata.store import seq_ranges
from strata.store.event_store import Range, Snapshot
from strata.store.snapshots import newest_state
from strata.store.sqlite import Filling, Salvaged, SqliteReader, SqliteStore, salvage
from strata.timeline.archive.moved_facts import fetching

LOG = "log.db"
ASIDE = "damaged"
APPENDED = 10_000
FILLING = Filling(CODEC, FactLost)
_OWN = ("", "-wal", "-shm", ".mark", ".lock")
_FREED = "the log is damaged"


class LostFacts(Struct, frozen=True):
    """A range of lost positions, `first` to `stop`, exclusive.

    They were recorded between `from_ms` and `to_ms`, which are None if no fact is left on that
    side. `kinds` are read from the damaged rows and not verified.
    """

    first: int
    stop: int
    from_ms: int | None
    to_ms: int | None
    kinds: list[str] = field(default_factory=list)


class LostEvents(Struct, frozen=True):
    """Missing events of a worker's incarnation, numbers `first` to `stop`, exclusive."""

    worker: str
    incarnation: int
    first: int
    stop: int


class Report(Struct, frozen=True):
    """What was recovered and what is lost.

    The new state includes the first `base` facts; `unfolded` are readable facts after these, which
    it does not include. `lost_batches` is None if the number is unknown. `certain` means that no
    other fact is lost: the number of acknowledged facts was readable.
    """

    log: str
    damaged: str
    facts: int
    lost: list[LostFacts]
    unfolded: list[Range]
    base: int
    position: int
    batches: int
    lost_batches: int | None
    lost_events: list[LostEvents]
    certain: bool


def damage_of(folder: Path) -> list[str]:
    """Read the whole log of a data folder and list its damage; empty if there is none.

    Raises `NotFound` if there is no log.
    """
    try:
        with SqliteReader(folder / LOG, CODEC, fetch=fetching()) as reader:
            found = reader.verify()
            if not found and _base_of(reader).unknown_from is not None:
                found = ["its state cannot be restored: the snapshot after a lost part is missing"]
            return found
    except Corrupt as error:
        return [error.message]


def salvage_to(folder: Path, to: Path) -> Report:
    """Create a new data folder with the recovered log and a copy of all other files."""
    _require_log(folder)
    if to.exists():
        raise AlreadyExists(f"{to} exists already", hint="give --to a folder that does not exist")
    if to.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgument(f"{to} is inside {folder}", hint="give --to a folder outside of it")
    draft = to.with_name(f".{to.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(folder, draft, ignore=_left_out)
        report = _salvaged(folder / LOG, draft / LOG, shown=to / LOG)
        draft.rename(to)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return report


def salvage_in_place(folder: Path) -> Report:
    """Replace a damaged log by the recovered one; the damaged files are kept beside it."""
    _require_log(folder)
    aside = folder / ASIDE / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name}-{number}")
    aside.mkdir(parents=True)
    draft = aside / "new"
    draft.mkdir()
    report = _salvaged(folder / LOG, draft / LOG, shown=folder / LOG, damaged=aside / LOG)
    for suffix in ("", "-wal", ".mark"):
        if (folder / f"{LOG}{suffix}").exists():
            _link_or_copy(folder / f"{LOG}{suffix}", aside / f"{LOG}{suffix}")
    for suffix in ("-wal", "-shm"):
        (folder / f"{LOG}{suffix}").unlink(missing_ok=True)
    (draft / LOG).replace(folder / LOG)
    (draft / f"{LOG}.mark").replace(folder / f"{LOG}.mark")
    shutil.rmtree(draft)
    return report


def _require_log(folder: Path) -> None:
    if not any((folder / f"{LOG}{suffix}").exists() for suffix in ("", "-wal", ".mark")):
        raise NotFound(
            f"{folder} is not a coordinator's data folder: it has no {LOG}",
            hint="give the folder that `strata up` printed as data",
        )


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Names that are not copied: the log itself, locks, sockets, earlier damaged logs."""
    own = {f"{LOG}{suffix}" for suffix in _OWN} | {"lock", ASIDE}
    special = {name for name in names if (Path(folder) / name).is_socket()}
    return special | (own & set(names))


def _link_or_copy(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:  # another file system, or one without links
        shutil.copy2(file, to)


def _salvaged(path: Path, to: Path, shown: Path, damaged: Path | None = None) -> Report:
    """Recover a log into a file that a coordinator can continue."""
    found = salvage(path, to, fill=FILLING)
    with SqliteStore(to, CODEC, fetching()) as store:
        state = _base_of(store)
        base = state.position if state.unknown_from is None else state.unknown_from
        lost = [_described(store, found, each) for each in found.missing_facts]
        missing = seq_ranges.missing(found.missing_facts, base, store.position)
        state.position = store.position
        state.unknown_from = None if base == store.position else base
        _record(store, state, base, found)
    with suppress(FileNotFoundError):
        to.with_name(f"{to.name}.lock").unlink()
    return Report(
        log=str(shown),
        damaged=str(damaged or path),
        facts=found.facts,
        lost=lost,
        unfolded=missing,
        base=base,
        position=state.position,
        batches=found.batches,
        lost_batches=found.missing_batches,
        lost_events=[
            LostEvents(worker=worker, incarnation=incarnation, first=first, stop=stop)
            for (worker, incarnation), holes in sorted(found.missing_seqs.items())
            for first, stop in holes
        ],
        certain=found.certain,
    )


def _base_of(reader: SqliteReader) -> Cluster:
    """The newest state that can be folded; `unknown_from` is set if later facts are lost."""
    state = newest_state(reader)
    if state.position >= reader.position:
        return state
    try:
        return fold(state, reader.read(state.position))
    except UnknownKind:
        raise
    except Corrupt:
        state.unknown_from = state.position
        return state


def _record(store: SqliteStore, state: Cluster, base: int, found: Salvaged) -> None:
    """Record the salvage after the last fact, and store a snapshot of the new state."""
    unknown = -1 if found.missing_batches is None else found.missing_batches
    end = max([store.position, *(stop for _, stop in found.missing_facts)])
    command = SalvageLog(
        base=base,
        end=end,
        lost=found.missing_facts,
        lost_batches=unknown,
        certain=found.certain,
        reason=_FREED,
    )
    incarnation = state.coordinator_incarnation
    outcome = decide(state, command, _moment(_last(store)))
    for at in range(0, len(outcome.events), APPENDED):
        some = outcome.events[at : at + APPENDED]
        store.append(some, incarnation=incarnation, expected=some[0].seq)
    store.save_snapshot(
        Snapshot(
            position=state.position,
            wall_ns=outcome.events[-1].wall_ns,
            schema=snapshot_versions.SCHEMA,
            state=snapshot_versions.encode(state),
        )
    )


def _last(store: SqliteStore) -> Event | None:
    if store.position == 0:
        return None
    return next(iter(store.read(store.position - 1)))


def _moment(last: Event | None) -> Now:
    """The present moment on the clocks of the coordinator that recorded the last fact, which may
    have run before a reboot, with another monotonic clock."""
    now = read_clock()
    if last is None:
        return now
    wall_ns = max(now.wall_ns, last.wall_ns)
    return Now(wall_ns, last.mono_ns + wall_ns - last.wall_ns)


def _described(store: SqliteStore, found: Salvaged, lost: Range) -> LostFacts:
    first, stop = lost
    before = next(iter(store.read(first - 1, first)), None) if first else None
    after = next(iter(store.read(stop, stop + 1)), None) if stop < store.position else None
    named = (found.kinds[at].split() for at in sorted(found.kinds) if first <= at < stop)
    return LostFacts(
        first=first,
        stop=stop,
        from_ms=before.wall_ns // 1_000_000 if before else None,
        to_ms=after.wall_ns // 1_000_000 if after else None,
        kinds=list(dict.fromkeys(kind for kinds in named for kind in kinds)),
    )
