"""Record the events of this worker without slowing it down.

`emit` reads two clocks, appends to a list and writes the event to the black box (see `blackbox`):
no lock, no I/O, no exception. The heartbeat thread takes the events, numbers them, packs them into
batches, writes these to the spool and then sends them. Events are numbered when they are packed, so
numbers have no gaps: events that do not fit into the buffer are counted, and the count is recorded
as an event.

A fact may contain numbers that the GPU has not computed yet (see `late_numbers`). It keeps its
position and time of `emit`; it and the events after it are packed when the numbers are known.

Everything is bounded: batches in flight, then unsent ones in the spool; if that is full, events
wait in the buffer; if that is full, they are dropped and counted.

`RecordedOperation` records an operation as facts: started, progress from time to time, completed or
failed.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from strata.core.events import Envelope, Event, Fact, event_id
from strata.core.workers.worker_facts import CODEC, EventsDropped
from strata.errors import LimitExceeded
from strata.sdk.record import blackbox
from strata.sdk.record.blackbox import SLOTS, BlackBox
from strata.sdk.record.late_numbers import LateFact
from strata.sdk.record.spool import DEFAULT_MAX_BYTES, Spool
from strata.store.event_batches import pack
from strata.store.event_store import Batch

log = logging.getLogger(__name__)

BUFFER_LIMIT = 200_000
BATCH_EVENTS = 4_096
BATCH_BYTES = 1 * 2**20
IN_FLIGHT_BYTES = 4 * 2**20
IN_FLIGHT_BATCHES = 128
"""The coordinator closes a session of which 256 messages wait for their answers."""

Waiting = tuple[int, int, int, Fact | LateFact, tuple[str, ...], str]
"""Number of the emission, wall clock, monotonic clock, fact, causes and operation."""

Known = tuple[int, int, int, Fact, tuple[str, ...], str]


Unknown = Literal["leave", "wait", "drop"]


class Recorder:
    """The events of one worker. `emit` is for any thread, the rest for the heartbeat thread.

    The progress of an operation is recorded at most every `progress_interval_s`.
    """

    def __init__(self, limit: int = BUFFER_LIMIT, progress_interval_s: float = 5.0) -> None:
        self.limit = limit
        self.progress_interval_s = progress_interval_s
        self._waiting: deque[Waiting] = deque()
        self._numbers = itertools.count()
        self._box: BlackBox | None = None
        self.on_crowded: Callable[[], None] = lambda: None
        self._drops = threading.Lock()
        self._dropped: dict[str, int] = {}
        self._collecting = threading.RLock()
        self._spool: Spool | None = None
        self._worker = ""
        self._incarnation = 0
        self._next_seq = 0
        self._sealed = False
        self._last_kinds: tuple[type[Fact], ...] = ()
        self._sought: Fact | None = None
        self._sought_seq = -1
        self._late: list[LateFact] = []
        self._last_number = -1

    def emit(self, fact: Fact | LateFact, cause: tuple[str, ...] = (), op: str = "") -> None:
        """Record a fact. Only the training thread may pass one with late numbers."""
        if len(self._waiting) < self.limit or isinstance(fact, self._last_kinds):
            number = self._last_number = next(self._numbers)
            event: Waiting = (number, time.time_ns(), time.monotonic_ns(), fact, cause, op)
            self._waiting.append(event)
            if isinstance(fact, LateFact):
                fact.event = event
                self._late.append(fact)
            box = self._box
            if box is not None:
                box.note(number, event if isinstance(fact, Fact) else _as_known(event))
                if box.crowded(number):
                    self.on_crowded()
        else:
            self._drop(1, "the buffer was full")

    def emit_at(self, wall_ns: int, mono_ns: int, fact: Fact, op: str = "") -> None:
        """Record a fact with earlier times, from before the recorder had started."""
        if len(self._waiting) < self.limit:
            number = self._last_number = next(self._numbers)
            event = (number, wall_ns, mono_ns, fact, (), op)
            self._waiting.append(event)
            if self._box is not None:
                self._box.note(number, event)
        else:
            self._drop(1, "the buffer was full")

    def settle(self) -> None:
        """Wait for the late numbers of all facts so far. For the training thread."""
        late, self._late = self._late, []
        for each in late:
            each.settle(wait=True)
            number = each.event[0]
            if self._box is not None and self._last_number - number < SLOTS:
                self._box.note(number, _as_known(each.event))

    def record(self, fact: Fact) -> str:
        """Record a fact and return its event id, for another node's event to name as its cause.

        Events are numbered when they are packed, so this packs all events now: use it only for rare
        events. Returns an empty string if the fact could not be recorded.
        """
        with self._collecting:
            self._sought, self._sought_seq = fact, -1
            self.emit(fact)
            self.collect("wait")
            self._sought = None
            if self._sought_seq < 0:
                return ""
            return event_id(self._worker, self._incarnation, self._sought_seq)

    def begin(
        self, folder: Path, worker: str, incarnation: int, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Start the record of an incarnation.

        Undelivered events of an earlier incarnation stay on disk: its session has ended, and with
        another incarnation's numbers they might be stored twice.
        """
        with self._collecting:
            old = self._spool
            if old is not None:
                left = self._next_seq - 1 - old.stored_seq
                if not old.empty:
                    self._drop(left, f"incarnation {self._incarnation} was fenced before it sent")
                old.close()
            self._end_box(keep=False)
            self._spool = Spool(folder, worker, incarnation, max_bytes)
            newest = self._spool.path.with_suffix(blackbox.SUFFIX)
            self._box = BlackBox(newest, worker, incarnation)
            self._worker, self._incarnation, self._next_seq = worker, incarnation, 0

    def collect(self, unknown: Unknown = "leave") -> None:
        """Pack the recorded events and write them to the spool.

        `unknown` selects what to do with a fact whose late numbers are not known yet: leave it and
        the later events for the next call, wait, or pack it without the numbers.
        """
        with self._collecting:
            spool = self._spool
            while spool is not None and not spool.full and (self._waiting or self._dropped):
                events, number = self._take(BATCH_EVENTS, unknown)
                if not events and not self._dropped:
                    return
                try:
                    self._spool_up(spool, events)
                    if self._box is not None:
                        self._box.collected(number, self._next_seq)
                except OSError as error:
                    log.warning("events cannot be written to %s: %s", spool.path, error)
                    for event in events[self._next_seq - events[0].seq :]:
                        self._drop_event(event, f"the spool failed: {error.strerror}")
                    return

    def to_send(self) -> Batch | None:
        """The next batch to send; None if there is none, or too much is in flight."""
        with self._collecting:
            spool = self._spool
            if spool is None or spool.in_flight_bytes >= IN_FLIGHT_BYTES:
                return None
            if spool.in_flight_batches >= IN_FLIGHT_BATCHES:
                return None
            return spool.next_unsent()

    def reattached(self, stored_seq: int) -> None:
        """Prepare a new connection, on which the coordinator reported its last stored event."""
        with self._collecting:
            if self._spool is not None:
                self._spool.stored(stored_seq)
                self._spool.resend()

    def stored(self, seq: int) -> None:
        """Note that the coordinator has stored everything up to `seq`."""
        with self._collecting:
            if self._spool is not None:
                self._spool.stored(seq)

    @property
    def delivered(self) -> bool:
        """Whether all recorded events are stored."""
        spool = self._spool
        return not self._waiting and (spool is None or spool.empty)

    def refused(self, first_seq: int, reason: str) -> None:
        """Drop a batch that the coordinator rejects for good, and record that it is missing."""
        with self._collecting:
            count = self._spool.discard(first_seq) if self._spool is not None else 0
            if count:
                self._drop(count, f"refused by the coordinator: {reason}"[:200])

    def seal(self, but: tuple[type[Fact], ...] = ()) -> None:
        """Record only these kinds from now on; earlier events are still delivered."""
        self.limit, self._sealed, self._last_kinds = 0, True, but

    def close(self) -> None:
        """Stop recording; undelivered events stay in the spool."""
        with self._collecting:
            self.collect("drop")
            self.seal()
            self._end_box(keep=False)
            if self._spool is not None:
                self._spool.close()
                self._spool = None

    def became_child(self) -> None:
        """Disable the recorder: the file and the numbers belong to the forked child's parent."""
        self.seal()
        self._waiting = deque()
        self._drops = threading.Lock()
        self._collecting = threading.RLock()
        self._end_box(keep=True)
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None

    def _end_box(self, *, keep: bool) -> None:
        box, self._box = self._box, None
        if box is not None:
            box.close(keep=keep)

    def _drop(self, count: int, reason: str) -> None:
        if self._sealed:
            return
        with self._drops:
            self._dropped[reason] = self._dropped.get(reason, 0) + count

    def _drop_event(self, event: Event, reason: str) -> None:
        body = event.body
        if isinstance(body, EventsDropped):
            self._drop(body.count, body.reason)
        else:
            self._drop(1, reason)

    def _take(self, most: int, unknown: Unknown) -> tuple[list[Event], int]:
        """The next events, after an event for dropped ones, and their last emission number."""
        taken: list[Known] = []
        with self._drops:
            dropped, self._dropped = self._dropped, {}
        for reason, count in dropped.items():
            fact = EventsDropped(count=count, reason=reason)
            taken.append((-1, time.time_ns(), time.monotonic_ns(), fact, (), ""))
        gathered = self._waiting
        for _ in range(min(most, len(gathered))):
            if unknown != "drop" and not _settled(gathered[0], wait=unknown == "wait"):
                break
            waiting = _as_known(gathered.popleft())
            if isinstance(waiting[3], Fact):
                taken.append(waiting)
            else:
                self._drop(1, f"a {type(waiting[3]).__name__} is not a Fact")
        events: list[Event] = [
            Envelope(seq=seq, wall_ns=wall_ns, mono_ns=mono_ns, body=fact, cause=cause, op=op)
            for seq, (_, wall_ns, mono_ns, fact, cause, op) in enumerate(taken, self._next_seq)
        ]
        return events, max((waiting[0] for waiting in taken), default=-1)

    def _spool_up(self, spool: Spool, events: Sequence[Event]) -> None:
        """Write events as batches that are small enough to send."""
        if not events:
            return
        try:
            batch = pack(CODEC, self._worker, self._incarnation, events)
            if len(batch.payload) > BATCH_BYTES:
                raise LimitExceeded(f"a batch takes {len(batch.payload)} bytes")
        except Exception as error:
            # A user's fact may contain anything: drop only those that cannot be encoded.
            self._spool_parts(spool, events, error)
            return
        spool.add(batch)
        self._next_seq = batch.stop_seq
        if self._sought is not None:
            found = (event.seq for event in events if event.body is self._sought)
            self._sought_seq = next(found, self._sought_seq)

    def _spool_parts(self, spool: Spool, events: Sequence[Event], error: Exception) -> None:
        if len(events) == 1:
            kind = type(events[0].body).__name__
            log.warning("an event %s cannot be recorded: %s", kind, error)
            self._drop(1, f"a {kind} could not be packed")
            return
        middle = len(events) // 2
        for half in (events[:middle], events[middle:]):
            renumbered = enumerate(half, self._next_seq)
            self._spool_up(
                spool,
                [
                    Envelope(
                        seq=s,
                        wall_ns=e.wall_ns,
                        mono_ns=e.mono_ns,
                        body=e.body,
                        cause=e.cause,
                        op=e.op,
                    )
                    for s, e in renumbered
                ],
            )


def _settled(event: Waiting, *, wait: bool) -> bool:
    fact = event[3]
    return not isinstance(fact, LateFact) or fact.settle(wait=wait)


def _as_known(event: Waiting) -> Known:
    """The event with the known part of its fact."""
    number, wall_ns, mono_ns, fact, cause, op = event
    known = fact.fact if isinstance(fact, LateFact) else fact
    return (number, wall_ns, mono_ns, known, cause, op)


_numbers = itertools.count(1)


class RecordedOperation:
    """Records one operation; `progress` may be called often, from any thread.

    The recorded `op` is `op` and a number, since an operation may be repeated: a blob is downloaded
    again when a round is repeated.
    """

    def __init__(
        self,
        recorder: Recorder,
        op: str,
        started: Fact,
        progress: Callable[[int], Fact],
        completed: Callable[[bool, str], Fact],
    ) -> None:
        self.done_bytes = 0
        self._recorder, self._op = recorder, f"{op}-{next(_numbers)}"
        self._progress, self._completed = progress, completed
        self._next_s = time.monotonic() + recorder.progress_interval_s
        recorder.emit(started, op=self._op)

    def progress(self, done_bytes: int) -> None:
        """Record the progress, at most once per interval."""
        self.done_bytes = done_bytes
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._recorder.progress_interval_s
            self._recorder.emit(self._progress(done_bytes), op=self._op)

    def end(self, error: BaseException | None = None) -> None:
        """Record the end, with the error if it failed."""
        why = "" if error is None else f"{type(error).__name__}: {error}"[:500]
        self._recorder.emit(self._completed(error is None, why), op=self._op)
