"""The protocol of event stores.

A store holds one log:

- *Facts* of the coordinator, numbered by their position, dense from 0 across restarts. One call of
  `append` is one row: the facts of a call are compressed together and become durable together.
  `compact` joins the rows of older facts to segments, which take a fraction of the space.
- *Batches* of worker events, kept as the bytes the worker sent. They are known by their header
  (node, incarnation, range of seq, span of time, kinds) and decoded only when they are read. Once
  they are stored elsewhere they may be released; their seqs stay known.
- *Snapshots* of the state at a position, so that reading the past need not start at 0. They are
  derived: a lost snapshot costs time, never truth (but see `core/record/log_salvage` for the one
  exception).

Guarantees. When `append` returns, its facts and batches survive a crash; when it raises, none of
them is stored. Two writers cannot both win: `expected` must be the store's position. Bytes that are
not what was written raise `Corrupt`; they are never handed out as facts.

Time. Facts keep the wall clock they were recorded at, and wall clocks jump. The *log clock* is the
highest wall clock seen so far: it never runs backwards, so every moment is one cut through the log.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self, TypeAlias

from msgspec import Struct

from strata.core.events import Event
from strata.errors import Corrupt

QUERY_LIMIT = 10_000
NEVER_NS = -(2**63)
FOREVER_NS = 2**63 - 1

Range: TypeAlias = tuple[int, int]
"""First and stop of consecutive numbers; the stop is exclusive."""

Found: TypeAlias = tuple[str, int, Event]
"""An event with the node and incarnation that recorded it."""

OnDamage: TypeAlias = Callable[[Corrupt], None]


class Batch(Struct, frozen=True, gc=False):
    """Consecutive events of one node and incarnation; `payload` is what `pack` makes of them."""

    node: str
    incarnation: int
    first_seq: int
    count: int
    wall_from_ns: int
    wall_to_ns: int
    kinds: tuple[str, ...]
    payload: bytes

    @property
    def stop_seq(self) -> int:
        """The seq after the last one."""
        return self.first_seq + self.count


class Snapshot(Struct, frozen=True):
    """The state after the first `position` facts; `schema` says which releases can load it."""

    position: int
    wall_ns: int
    schema: str
    state: bytes


class Tally(Struct, frozen=True):
    """The stored events of one worker's incarnation: their number, kinds and span of wall clock."""

    node: str
    incarnation: int
    events: int
    wall_from_ns: int
    wall_to_ns: int
    kinds: frozenset[str]


class Window(Struct, frozen=True):
    """A filter for events: `since_ns <= wall < until_ns`, of one node or all, of some kinds or
    all."""

    since_ns: int = NEVER_NS
    until_ns: int = FOREVER_NS
    node: str | None = None
    kinds: frozenset[str] = frozenset()

    def holds(self, event: Event) -> bool:
        """Whether an event of the node passes the filter."""
        within = self.since_ns <= event.wall_ns < self.until_ns
        return within and (not self.kinds or event.kind in self.kinds)

    def touches(self, batch: Batch) -> bool:
        """Whether a batch may hold an event that passes the filter."""
        return (
            self.node in (None, batch.node)
            and batch.wall_from_ns < self.until_ns
            and batch.wall_to_ns >= self.since_ns
            and (not self.kinds or not self.kinds.isdisjoint(batch.kinds))
        )


EVERYTHING = Window()


class Closing:
    """Closed at the end of a `with` block."""

    def close(self) -> None:
        """Release files and locks; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventReader(Protocol):
    """The reading side of a log, for any number of callers at a time; iterators hold no lock and
    may be left unfinished."""

    @property
    def first(self) -> int:
        """The position of the first stored fact: 0, or more if this is a part of a log."""

    @property
    def position(self) -> int:
        """How many facts were ever stored: the position of the next one."""

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """The facts at positions [start, stop) in order, loaded row by row."""

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        """Facts and worker events in the order of their wall clocks.

        A damaged batch raises `Corrupt`; with `on_damage` it is reported there and skipped.
        """

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        """The undecoded batches that a `query` looks into, by the start of their span of time."""

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        """What `batches` yields with empty payloads, which makes it much quicker; unchecked."""

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        """The events of a worker's incarnation with seqs in [start, stop); gaps are skipped."""

    def check(self, on_damage: OnDamage) -> None:
        """Verifies the checksums of all workers' events and reports each damaged piece."""

    def tallies(self) -> list[Tally]:
        """The stored events of each worker's incarnation, sorted by node and incarnation."""

    def streams(self) -> list[tuple[str, int]]:
        """The workers' nodes and incarnations that sent events, also released since; sorted."""

    def last_seq(self, node: str, incarnation: int) -> int | None:
        """The highest seq known of a worker's incarnation, also when released since."""

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        """The ranges of seq below `last_seq` that never arrived."""

    def position_at(self, wall_ns: int) -> int:
        """The position of the first fact recorded later than that moment.

        Facts before it are the log as it was when the log clock passed `wall_ns`. After a backward
        jump of the wall clock facts belong to the moment the clock had already reached.
        """

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        """The newest undamaged snapshot of a schema at or before position `at`."""

    def close(self) -> None:
        """Release files and locks; closing twice is harmless."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class EventStore(EventReader, Protocol):
    """A log open for writing, by one caller at a time."""

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        """Store facts and worker batches in one durable step; return the new position.

        Raises `Conflict` when the store's position is not `expected`. What is known of a worker
        batch (by node, incarnation and seq) is not stored again: a resend is ignored, and from a
        batch that is partly known only the new events are kept. The first writing of a seq wins.
        Nothing at all is stored when a batch has an invalid header (`InvalidArgument`) or is
        partly known and cannot be cut (`Corrupt`): leave it out and try again.
        """

    def sizes(self) -> dict[tuple[str, int], int]:
        """The bytes that the kept events of each worker's incarnation take, compressed."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot, replacing one at the same position; older ones are thinned out."""

    def compact(self, stop: int) -> int:
        """Join some of the oldest facts before position `stop` that are stored one append a row.

        Return how many facts were joined; 0 when there are not enough for one more segment. The
        facts, their positions and all answers stay what they are.
        """

    def release(self, node: str, incarnation: int, stop: int, start: int = 0) -> int:
        """Delete a worker's batches with seqs in [start, stop); return how many events.

        The caller has stored them elsewhere. Their seqs stay known: a resend is recognised, and
        `gaps` and `last_seq` answer as before. If interrupted, some are deleted; repeating deletes
        the rest.
        """
