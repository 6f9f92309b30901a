"""Which of a worker's events are here: so that a resend is recognised before it costs anything.

A worker numbers its events densely and sends them in batches, again after a break. A batch is new,
or fills a gap, or is known; one that is known in part is refused: to keep only its new part the
store would have to look into bytes that nobody has checked.

A batch that the disk did not take is owed: it will come again, and until then nothing that came
after it is told as stored, since a worker forgets everything before what is.

A worker sends its own events, and after its death its agent may send what it left. Both ways go
through the same intake, for as long as either is open, has a batch on its way to the disk, or owes
one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from strata.errors import InvalidArgument, Overloaded, Unavailable
from strata.store.base import Batch, EventStore, Range
from strata.store.batches import validate
from strata.wire.v1 import coordinator_pb2 as pb

PASSING = (Unavailable, Overloaded)
"""Refusals after which the same is worth another attempt."""


def batch_of(message: pb.EventBatch, worker: str, incarnation: int) -> Batch:
    """A worker's events as they are stored; refuses what is no batch."""
    batch = Batch(
        worker,
        incarnation,
        message.first_seq,
        message.count,
        message.wall_from_ns,
        message.wall_to_ns,
        tuple(message.kinds),
        message.payload,
    )
    validate(batch)
    return batch


class Intake:
    """What was taken of one worker's incarnation; `owing` holds those that owe a batch."""

    def __init__(
        self, store: EventStore, worker: str, incarnation: int, owing: set["Intake"]
    ) -> None:
        last = store.last_seq(worker, incarnation)
        self._highest_seq = self._taken_seq = -1 if last is None else last
        self._gaps: list[Range] = store.gaps(worker, incarnation)
        self._owed: set[Range] = set()
        self._owing = owing

    @property
    def stored_seq(self) -> int:
        """The highest that is on disk and has nothing owed before it."""
        return min([self._highest_seq, *(first - 1 for first, _ in self._owed)])

    def take(self, batch: Batch) -> bool:
        """Whether a batch has to be stored; it counts as taken from now on."""
        first, stop = batch.first_seq, batch.stop_seq
        if first > self._taken_seq:
            if first > self._taken_seq + 1:
                self._gaps.append((self._taken_seq + 1, first))
            self._taken_seq = stop - 1
            return True
        for gap in self._gaps:
            if gap[0] <= first and stop <= gap[1]:
                self._fill(gap, first, stop)
                return True
        if stop - 1 <= self._taken_seq and all(stop <= a or b <= first for a, b in self._gaps):
            return False
        raise InvalidArgument(
            f"events {first} to {stop - 1} are known in part",
            hint="send batches again as they were, or from the next event on",
        )

    def stored(self, batch: Batch) -> None:
        """A batch is on disk."""
        self._highest_seq = max(self._highest_seq, batch.stop_seq - 1)
        self._owed.discard((batch.first_seq, batch.stop_seq))
        if not self._owed:
            self._owing.discard(self)

    @contextmanager
    def owing(self, batch: Batch) -> Iterator[None]:
        """A batch that was taken is owed if nobody can take it further now."""
        try:
            yield
        except PASSING:
            self.owe(batch)
            raise

    def owe(self, batch: Batch) -> None:
        """A batch that was taken could not be stored for now: it has to come again."""
        span = (batch.first_seq, batch.stop_seq)
        self._gaps.append(span)
        self._owed.add(span)
        self._owing.add(self)

    def _fill(self, gap: Range, first: int, stop: int) -> None:
        self._gaps.remove(gap)
        self._gaps += [part for part in ((gap[0], first), (stop, gap[1])) if part[0] < part[1]]


class Intakes:
    """The intakes in use, by worker and incarnation."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._used: WeakValueDictionary[tuple[str, int], Intake] = WeakValueDictionary()
        self._owing: set[Intake] = set()

    def of(self, worker: str, incarnation: int) -> Intake:
        """The intake of an incarnation; it is the same one until nobody holds it."""
        key = (worker, incarnation)
        found = self._used.get(key)
        if found is None:
            found = self._used[key] = Intake(self._store, worker, incarnation, self._owing)
        return found
