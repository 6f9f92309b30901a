"""Moving the old part of a log into a file of its own: copy, verify, and only then forget.

The source forgets in one transaction, after the archive is complete, verified and on disk. So a
reader finds each fact in the source or is told of the archive; a crash in between leaves a fact in
both; and a repeated run finds it there and copies only what is missing. The file carries the
log's id: the archive of another log is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from strata.errors import Conflict
from strata.store import ranges
from strata.store.base import Batch, Range, Snapshot

if TYPE_CHECKING:
    from strata.store.sqlite.store import SqliteStore

COPY_ROWS = 512

Moved: TypeAlias = dict[tuple[str, int], list[Range]]
"""The ranges of seq that went into the archive, by node and incarnation."""


class Move(NamedTuple):
    """What to move of a log: facts [first, stop), some worker batches, the snapshots up to there.

    Each source can be walked more than once; `facts` takes the position to start at.
    """

    log: str
    first: int
    stop: int
    facts: Callable[[int], Iterable[Batch]]
    batches: Callable[[], Iterable[Batch]]
    snapshots: Callable[[], Iterable[Snapshot]]


def fill(target: "SqliteStore", move: Move) -> Moved:
    """Copies what the archive lacks and compares all of it with the source."""
    target.require_log(move.log, move.first)
    for facts in _chunks(move.facts(target.position) if target.position < move.stop else ()):
        target.load(facts, ())
    for batches in _chunks(move.batches()):
        target.load((), batches)
    for snapshot in move.snapshots():
        target.save_snapshot(snapshot)
    return _verify(target, move)


def _chunks(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    rest = iter(batches)
    while chunk := list(islice(rest, COPY_ROWS)):
        yield chunk


def _verify(target: "SqliteStore", move: Move) -> Moved:
    copies = target.fact_rows(move.first, move.stop)
    for facts in move.facts(move.first):
        _require_same(facts, next(copies, None), target)
    moved: Moved = {}
    for batch in move.batches():
        _require_same(
            batch, target.batch_at(batch.node, batch.incarnation, batch.first_seq), target
        )
        seqs = moved.setdefault((batch.node, batch.incarnation), [])
        ranges.add(seqs, batch.first_seq, batch.stop_seq)
    return moved


def _require_same(original: Batch, copy: Batch | None, target: "SqliteStore") -> None:
    if original != copy:
        raise Conflict(
            f"the archive {target.path} does not hold what the log holds; nothing was removed",
            hint="archive to a new file",
        )
