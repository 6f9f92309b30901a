"""Records what happens in this worker without slowing it.

`emit` reads two clocks, appends to a list and notes the event in the black box (see `blackbox`): no
lock, no I/O, no exception. The session's pulse thread collects what has gathered, numbers it, packs
it into batches, writes them to the spool and only then sends them. Numbers are given when events
are packed, so they are dense whatever was dropped before: what does not fit into the buffer is
counted, and the count is an event of its own.

A fact may have numbers that a GPU has yet to compute (see `late_numbers`). It has its place and its
time from `emit`, and it and what comes after it are packed when the numbers are known.

The chain has one valve. Sent batches are bounded in flight; unsent ones wait in the spool; when
that is full events wait in the buffer; when that is full they are dropped and counted.
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
from strata.core.worker_facts import CODEC, EventsDropped
from strata.errors import LimitExceeded
from strata.sdk import blackbox
from strata.sdk.blackbox import SLOTS, BlackBox
from strata.sdk.late_numbers import LateFact
from strata.sdk.spool import DEFAULT_MAX_BYTES, Spool
from strata.store.base import Batch
from strata.store.batches import pack

log = logging.getLogger(__name__)

BUFFER_LIMIT = 200_000
BATCH_EVENTS = 4_096
BATCH_BYTES = 1 * 2**20
IN_FLIGHT_BYTES = 4 * 2**20

Waiting = tuple[int, int, int, Fact | LateFact, tuple[str, ...], str]
"""The number of its emission, wall clock, monotonic clock, fact, causes and operation."""

Known = tuple[int, int, int, Fact, tuple[str, ...], str]


Unknown = Literal["leave", "wait", "drop"]


class Recorder:
    """The events of one worker. `emit` from any thread; the rest from the pulse thread.

    How far an operation is, is recorded every `progress_interval_s` at most.
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
        """Records a fact. One with late numbers is for the training thread alone."""
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
        """Records a fact of an earlier moment, which had no log to go into then."""
        if len(self._waiting) < self.limit:
            number = self._last_number = next(self._numbers)
            event = (number, wall_ns, mono_ns, fact, (), op)
            self._waiting.append(event)
            if self._box is not None:
                self._box.note(number, event)
        else:
            self._drop(1, "the buffer was full")

    def settle(self) -> None:
        """Waits for the late numbers of all facts so far. For the training thread."""
        late, self._late = self._late, []
        for each in late:
            each.settle(wait=True)
            number = each.event[0]
            if self._box is not None and self._last_number - number < SLOTS:
                self._box.note(number, _as_known(each.event))

    def record(self, fact: Fact) -> str:
        """Records a fact that another node's event will name as its cause; how that is called.

        Events get their numbers when they are written, so what has gathered is written now: it is
        for what happens now and then. Empty when it could not be recorded.
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
        """Starts the numbering of an incarnation.

        What an earlier one had not delivered stays on disk: its session is over, and under
        another incarnation's numbers it might be stored twice.
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
        """Packs what has gathered and writes it to the spool.

        `unknown` says what becomes of a fact whose late numbers are not known yet: it and what
        comes after it are left for the next time, waited for, or packed without the numbers.
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
        """The next batch to send, unless enough is under way."""
        with self._collecting:
            spool = self._spool
            if spool is None or spool.in_flight_bytes >= IN_FLIGHT_BYTES:
                return None
            return spool.next_unsent()

    def reattached(self, stored_seq: int) -> None:
        """A new connection: the coordinator said up to where it has everything."""
        with self._collecting:
            if self._spool is not None:
                self._spool.stored(stored_seq)
                self._spool.resend()

    def stored(self, seq: int) -> None:
        """The coordinator has stored everything up to `seq`."""
        with self._collecting:
            if self._spool is not None:
                self._spool.stored(seq)

    @property
    def delivered(self) -> bool:
        """Whether everything that was recorded is stored."""
        spool = self._spool
        return not self._waiting and (spool is None or spool.empty)

    def refused(self, first_seq: int, reason: str) -> None:
        """The coordinator will never store that batch: it leaves a gap, and a word about it."""
        with self._collecting:
            count = self._spool.discard(first_seq) if self._spool is not None else 0
            if count:
                self._drop(count, f"refused by the coordinator: {reason}"[:200])

    def seal(self, but: tuple[type[Fact], ...] = ()) -> None:
        """Records nothing from now on, except these kinds; what was recorded is still delivered."""
        self.limit, self._sealed, self._last_kinds = 0, True, but

    def close(self) -> None:
        """Ends the recording; what was not delivered stays in the spool."""
        with self._collecting:
            self.collect("drop")
            self.seal()
            self._end_box(keep=False)
            if self._spool is not None:
                self._spool.close()
                self._spool = None

    def became_child(self) -> None:
        """In a forked child nothing is recorded: the file and the numbers are the parent's."""
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
        """The next events with their seqs, after a word about those that were dropped; and the
        highest number of an emission among them."""
        taken: list[Known] = []
        with self._drops:
            dropped, self._dropped = self._dropped, {}
        for reason, count in dropped.items():
            fact = EventsDropped(count, reason)
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
            Envelope(seq, wall_ns, mono_ns, fact, cause, op)
            for seq, (_, wall_ns, mono_ns, fact, cause, op) in enumerate(taken, self._next_seq)
        ]
        return events, max((waiting[0] for waiting in taken), default=-1)

    def _spool_up(self, spool: Spool, events: Sequence[Event]) -> None:
        """Writes events as batches that are small enough to travel."""
        if not events:
            return
        try:
            batch = pack(CODEC, self._worker, self._incarnation, events)
            if len(batch.payload) > BATCH_BYTES:
                raise LimitExceeded(f"a batch takes {len(batch.payload)} bytes")
        except Exception as error:
            # A user's fact may hold anything: only the one that cannot travel is left out.
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
                [Envelope(s, e.wall_ns, e.mono_ns, e.body, e.cause, e.op) for s, e in renumbered],
            )


def _settled(event: Waiting, *, wait: bool) -> bool:
    fact = event[3]
    return not isinstance(fact, LateFact) or fact.settle(wait=wait)


def _as_known(event: Waiting) -> Known:
    """The event with its fact as far as that is known."""
    number, wall_ns, mono_ns, fact, cause, op = event
    known = fact.fact if isinstance(fact, LateFact) else fact
    return (number, wall_ns, mono_ns, known, cause, op)
