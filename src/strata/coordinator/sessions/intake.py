"""Intake of events and log lines: what is sent again is stored once.

Events. A worker numbers its events without gaps and sends them in batches, again after a broken
connection. A batch is new, or fills a gap, or is known; a batch that is known in part is refused,
because the payload is not decoded here and cannot be split. A batch that could not be stored is
owed: the worker will send it again. Until then no later batch is acknowledged, because a worker
deletes everything up to the acknowledged number. A worker sends its own events; after its death its
agent may send the rest. Both use the same intake while either is connected, has a batch on its way
to the disk, or owes one.

Log lines. A sender (a worker's SDK, or the agent that reads a worker's pipes) numbers its lines,
and after a broken connection sends unacknowledged lines again. The last number of each sender is
kept in memory only: after a crash of the coordinator, lines that it had stored but not
acknowledged, a few seconds at most, are stored twice.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_store import LogStore
from strata.errors import InvalidArgument, LimitExceeded, Overloaded, Unavailable
from strata.store.event_batches import validate
from strata.store.event_store import Batch, EventStore, Range
from strata.wire.v1 import coordinator_pb2 as pb

PASSING = (Unavailable, Overloaded)
"""Temporary refusals: the same request may succeed later."""


def batch_of(message: pb.EventBatch, worker: str, incarnation: int) -> Batch:
    """Convert a message to a batch; raises if it is invalid."""
    batch = Batch(
        node=worker,
        incarnation=incarnation,
        first_seq=message.first_seq,
        count=message.count,
        wall_from_ns=message.wall_from_ns,
        wall_to_ns=message.wall_to_ns,
        kinds=tuple(message.kinds),
        payload=message.payload,
    )
    validate(batch)
    return batch


class Intake:
    """Received event numbers of one incarnation; `owing` is the set of intakes that owe a batch."""

    def __init__(
        self,
        store: EventStore,
        worker: str,
        incarnation: int,
        owing: set["Intake"],
        follow: Callable[[Batch], None] | None,
    ) -> None:
        last = store.last_seq(worker, incarnation)
        self._highest_seq = self._taken_seq = -1 if last is None else last
        self._gaps: list[Range] = store.gaps(worker, incarnation)
        self._owed: set[Range] = set()
        self._owing = owing
        self._follow = follow

    @property
    def stored_seq(self) -> int:
        """Highest number on disk without an owed batch before it."""
        return min([self._highest_seq, *(first - 1 for first, _ in self._owed)])

    def take(self, batch: Batch) -> bool:
        """Whether a batch has to be stored; it counts as received from now on."""
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
            f"events {first} to {stop - 1} were received in part",
            hint="send batches again unchanged, or start with the next event",
        )

    def stored(self, batch: Batch) -> None:
        """Note that a batch is on disk."""
        self._highest_seq = max(self._highest_seq, batch.stop_seq - 1)
        self._owed.discard((batch.first_seq, batch.stop_seq))
        if not self._owed:
            self._owing.discard(self)
        if self._follow is not None:
            self._follow(batch)

    @contextmanager
    def owing(self, batch: Batch) -> Iterator[None]:
        """Mark a batch as owed if submitting it is refused temporarily."""
        try:
            yield
        except PASSING:
            self.owe(batch)
            raise

    def owe(self, batch: Batch) -> None:
        """Mark a batch as owed: it could not be stored, and the worker has to send it again."""
        span = (batch.first_seq, batch.stop_seq)
        self._gaps.append(span)
        self._owed.add(span)
        self._owing.add(self)

    def _fill(self, gap: Range, first: int, stop: int) -> None:
        self._gaps.remove(gap)
        self._gaps += [part for part in ((gap[0], first), (stop, gap[1])) if part[0] < part[1]]


class Intakes:
    """The intakes in use, by worker and incarnation; `follow` gets each batch that was stored."""

    def __init__(self, store: EventStore, follow: Callable[[Batch], None] | None = None) -> None:
        self._store = store
        self._follow = follow
        self._used: WeakValueDictionary[tuple[str, int], Intake] = WeakValueDictionary()
        self._owing: set[Intake] = set()

    def of(self, worker: str, incarnation: int) -> Intake:
        """The intake of an incarnation; the same object while it is in use."""
        key = (worker, incarnation)
        found = self._used.get(key)
        if found is None:
            found = self._used[key] = Intake(
                self._store, worker, incarnation, self._owing, self._follow
            )
        return found


MAX_LINES = 10_000
MAX_SENDERS = 50_000
MAX_SENDER_CHARACTERS = 64
MAX_NUMBER = 2**62


class LineIntake:
    """Stores the lines of numbered senders."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self._taken: OrderedDict[str, int] = OrderedDict()

    def take(self, sent: pb.LogLines, task: str, worker: str) -> int:
        """Store new lines; returns the last number of the sender, 0 for lines without numbers."""
        _check(sent)
        known = self._taken.get(sent.sender, 0) if sent.first else 0
        lines = sent.lines[max(known + 1 - sent.first, 0) :] if sent.first else sent.lines
        self.logs.extend(
            LogLine(
                level=line.level,
                message=line.message,
                source="worker",
                task_id=task,
                worker_id=worker,
                stream=line.stream,
                timestamp=line.timestamp_ms,
            )
            for line in lines
        )
        last = sent.first + len(sent.lines) - 1 + bool(sent.dropped)
        if sent.dropped and (last > known or not sent.first):
            text = f"{sent.dropped} lines were dropped: the process wrote too fast"
            self.logs.append(
                LogLine(level="warn", message=text, source="worker", task_id=task, worker_id=worker)
            )
        if not sent.first:
            return 0
        self._remember(sent.sender, max(known, last))
        return max(known, last)

    def _remember(self, sender: str, number: int) -> None:
        self._taken[sender] = number
        self._taken.move_to_end(sender)
        if len(self._taken) > MAX_SENDERS:
            self._taken.popitem(last=False)


def _check(sent: pb.LogLines) -> None:
    if len(sent.lines) > MAX_LINES:
        raise LimitExceeded(
            f"{len(sent.lines)} log lines in one message", hint=f"send at most {MAX_LINES}"
        )
    if not 0 <= sent.first <= MAX_NUMBER or len(sent.sender) > MAX_SENDER_CHARACTERS:
        raise InvalidArgument(
            f"invalid line number {sent.first} or sender {sent.sender[:40]!r}",
            hint=f"number lines from 1, and use a sender of at most {MAX_SENDER_CHARACTERS} "
            "characters",
        )
