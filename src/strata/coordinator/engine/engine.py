"""The engine: the single asyncio task that owns the state, and the API to reach it.

All requests go through the inbox in order of arrival: commands from RPCs and REST calls, and
signals (heartbeats and broken connections). The engine processes all queued requests as one turn:
decide, store, answer, publish. While the disk is busy the inbox fills, so turns grow under load:
group commit without a timer. At its end a turn decides which workers and agents have passed their
deadlines.

If the coordinator itself did not run for a while (it was stopped, or a turn took that long), it
could not receive heartbeats. A timer that fires late detects this, and all deadlines are extended.

Answers are sent when the facts are on disk. Callers run before the next turn is decided, so the
state that they read is durable; `settled` guarantees the same to readers.

The release of a barrier does not wait for the disk. A turn with nothing but arrivals and releases
stays open for 2 ms, so that workers which arrive together are stored in one append, and a release
is sent as soon as it is decided. A release that follows from anything else, such as a loss, is sent
after the append. If the disk refuses the turn, the next turn decides that release again before
anything else. If the coordinator dies before the append, it learns of the release from the workers
when they connect again (see `core/barriers/barrier_rules`).

If the state cannot be read again after a failed append, as while a PostgreSQL server restarts, the
requests wait until it can.

An unexpected exception in a rule ends the engine and the coordinator, because its state in memory
may be wrong. The facts on disk are consistent, and a restart continues from them. So does an append
that is refused because another coordinator leads.

Subscribers have no queue here: each has a position and reads the facts from there to the durable
end, from a window of recent facts, or from the store if it has fallen behind.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TypeAlias

from strata.coordinator.engine.inbox import Inbox, Reply, Request
from strata.coordinator.engine.kernel import Kernel, KernelInput, Turn
from strata.core.barriers.barrier_rules import (
    BarrierArrived,
    BarrierOpened,
    BarrierReleased,
    LeftBarrier,
    NoteRelease,
)
from strata.core.events import Command, Event, Fact
from strata.core.record.store_outages import NoteStoreRefused
from strata.core.state import Cluster
from strata.core.task_state import Barrier
from strata.core.workers.heartbeats import AgentDisconnected, Signal, WorkerDisconnected
from strata.errors import Conflict, NotLeading, StrataError, Unavailable
from strata.store.event_store import Batch

log = logging.getLogger(__name__)

MAX_TURN = 4096
RECENT_FACTS = 16_384
IDLE_LOOK_S = 1.0
GATHER_S = 0.002
REFUSED_S = 0.1
"""Delay after a failed append."""

REFUSED_EVERY_S = 10.0
"""Interval of the log line while appends keep failing."""

MAX_REASON = 500
NOTED_S = 1.0
"""Time without a stored fact that is recorded when facts are stored again."""

TICK_S = 0.5
ASLEEP_S = 1.0
"""A gap between two ticks of this length means that the process did not run."""

QUIET = frozenset({BarrierOpened, BarrierArrived, BarrierReleased})
"""A turn with only these facts stays open for `GATHER_S`; its releases are sent at once."""

DISCONNECTED = (WorkerDisconnected, AgentDisconnected)

AnswerFuture = asyncio.Future[object]
Observer: TypeAlias = Callable[[Sequence[Event]], None]


class Engine:
    """Runs a kernel in an event loop."""

    def __init__(self, kernel: Kernel, inbox_limit: int = 65_536) -> None:
        self.kernel = kernel
        self.inbox = Inbox(inbox_limit)
        self.recent: deque[Event] = deque(maxlen=RECENT_FACTS)
        self._observers: list[tuple[Observer, frozenset[type[Fact]]]] = []
        self._early: list[Callable[[str, Barrier], None]] = []
        self._announced: list[tuple[str, Barrier]] = []
        self._awake_ns = 0
        self._asleep_ns = 0
        self._refused = 0
        self._refused_s = self._refused_since_s = 0.0
        self._refused_for = ""
        self._published = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="strata-disk")
        self._position = kernel.durable
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def follow_releases(self, observer: Callable[[str, Barrier], None]) -> None:
        """Call the observer with each released barrier and its task, before it is durable."""
        self._early.append(observer)

    def follow(self, observer: Observer, *kinds: type[Fact], first: bool = False) -> None:
        """Call the observer with the durable facts of each turn, of these kinds or of all.

        With `first` it is called before the present observers.
        """
        self._observers.insert(0 if first else len(self._observers), (observer, frozenset(kinds)))

    @property
    def position(self) -> int:
        """Number of published facts; facts are published in the turn that makes them durable."""
        return self._position

    def inbox_depth(self) -> int:
        """Number of requests in the queue."""
        return len(self.inbox)

    def start(self) -> None:
        """Start processing requests."""
        self._awake_ns = self.kernel.clock().mono_ns
        self._task = asyncio.create_task(self._run(), name="strata-engine")

    async def ended(self) -> None:
        """Wait until the engine was stopped; raises the exception that ended it."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Process the queued requests, then stop."""
        self._stopping = True
        self.inbox.news.set()
        if self._task is not None:
            await self._task
        self._disk.shutdown()

    def ask(self, command: Command, reply: Reply, early: bool = False) -> None:
        """Submit a command; calls `reply` when its facts are on disk or it is refused.

        An arrival at a barrier may be answered `early`: when the barrier is released, before the
        release is on disk. The callback runs inside the turn and must not raise.
        """
        self._put(Request(asked=command, batch=None, reply=reply, early=early))

    async def submit(self, asked: KernelInput) -> object:
        """Submit a command or signal and wait for the answer; raises its refusal.

        A command is answered when its facts are on disk, a signal when it was processed.
        """
        answer: AnswerFuture = asyncio.get_running_loop().create_future()
        self._put(Request(asked=asked, batch=None, reply=partial(_resolve, answer)))
        return await answer

    def post(self, command: Command) -> None:
        """Submit a command without waiting for its answer."""
        self._put(Request(asked=command))

    def ingest(self, batch: Batch, reply: Reply) -> None:
        """Store a worker's batch of events; calls `reply` when it is on disk or refused."""
        self._put(Request(asked=None, batch=batch, reply=reply))

    def notice(self, signal: Signal, reply: Reply | None = None) -> None:
        """Queue a signal; calls `reply` when it was processed or refused, unless a newer heartbeat
        of the same worker replaced it."""
        self.inbox.notice(signal, reply)

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[Cluster]:
        """The state while all of it is on disk."""
        async with self._turn:
            if self.kernel.outdated:
                raise Unavailable(
                    "the state is being read again after a failed append", hint="try again"
                )
            yield self.kernel.state

    async def subscribe(self, position: int) -> AsyncIterator[list[Event]]:
        """Durable facts from a position on; ends when the engine stops."""
        while True:
            published = self._published
            if position < self.position:
                events = await self._between(position, self.position)
                yield events
                position += len(events)
            elif self._stopping:
                return
            else:
                await published.wait()

    async def _between(self, start: int, stop: int) -> list[Event]:
        if self.recent and start >= self.recent[0].seq:
            first = start - self.recent[0].seq
            return list(islice(self.recent, first, min(first + MAX_TURN, len(self.recent))))
        return await self._stored(start, min(stop, start + MAX_TURN))

    async def _stored(self, start: int, stop: int) -> list[Event]:
        return await asyncio.to_thread(lambda: list(self.kernel.store.read(start, stop)))

    def _put(self, request: Request) -> None:
        if self._stopping:
            raise Unavailable("the coordinator is stopping", hint="try again when it has restarted")
        self.inbox.put(request)

    def _tick(self) -> None:
        """Detect pauses of this process: called every `TICK_S`, and before every turn."""
        now_ns = self.kernel.clock().mono_ns
        gap_ns = now_ns - self._awake_ns
        self._awake_ns = now_ns
        if gap_ns >= ASLEEP_S * 1e9:
            log.warning("the coordinator did not run for %.1f s", gap_ns / 1e9)
            self._asleep_ns += gap_ns

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick()

    async def _run(self) -> None:
        ticking = asyncio.create_task(self._keep_time(), name="strata-engine-clock")
        try:
            while self.inbox or not self._stopping:
                await self._wait()
                await self._take_turn()
                # Callers read the durable state before the next turn changes it.
                await asyncio.sleep(0)
        finally:
            ticking.cancel()
        self._published.set()

    async def _wait(self) -> None:
        """Wait for a request or the next deadline."""
        if self.inbox or self._stopping:
            return
        delay_s = IDLE_LOOK_S
        next_ns = self.kernel.watch.next_ns()
        if next_ns is not None:
            delay_s = min(max((next_ns - self.kernel.clock().mono_ns) / 1e9, 0.0), IDLE_LOOK_S)
        await self.inbox.wait(delay_s)

    async def _take_turn(self) -> None:
        async with self._turn:
            self._tick()
            if not await self._caught_up():
                return
            if self._asleep_ns:
                self.kernel.watch.credit(self._asleep_ns)
                self._asleep_ns = 0
            taken, turn = self._take()
            if turn.events and _is_quiet(turn):
                self._announce_releases(taken, turn, turn)
                await self._gather(taken, turn)
            batches = [request.batch for request in taken if request.batch is not None]
            try:
                refusals = await self._store(turn, batches)
            except StrataError as error:
                self._refuse(taken, error)
                await asyncio.sleep(REFUSED_S)
                return
            self._announced.clear()
            if self._refused and turn.events:
                self._stored_again()
            self._publish(turn)
            self._answer(taken, turn, refusals)

    async def _caught_up(self) -> bool:
        """Repair what a failed append left: read the state again if it could not be read, and
        publish facts that are stored although the append failed. False if that is not possible yet.
        """
        if not self.kernel.outdated and self._position >= self.kernel.durable:
            return True
        try:
            if self.kernel.outdated:
                await asyncio.to_thread(self.kernel.load)
            while self._position < self.kernel.durable:
                stop = min(self.kernel.durable, self._position + MAX_TURN)
                self._publish(Turn(events=await self._stored(self._position, stop)))
        except Unavailable as error:
            if self._stopping:
                self._refuse(self.inbox.take(MAX_TURN), error)
            self._say_refused(error)
            await asyncio.sleep(REFUSED_S)
            return False
        return True

    def _take(self) -> tuple[list[Request], Turn]:
        """Take the queued requests and decide them."""
        taken = self.inbox.take(MAX_TURN)
        asked = [request.asked for request in taken if request.asked is not None]
        return taken, self.kernel.decide(asked, check_deadlines=not self.inbox)

    def _announce_releases(self, taken: list[Request], turn: Turn, decided: Turn) -> None:
        """Announce released barriers before they are on disk.

        `decided` is the newest part of the turn. The released barriers are kept, because the state
        may have deleted them by now.
        """
        rounds = [
            (event.body.task, outcome.answer)
            for outcome in decided.outcomes
            for event in outcome.events
            if isinstance(event.body, BarrierReleased) and isinstance(outcome.answer, Barrier)
        ]
        self._announced += rounds
        for observer in self._early:
            for task, barrier in rounds:
                observer(task, barrier)
        outcomes = iter(turn.outcomes if rounds else ())
        for request in taken if rounds else ():
            if request.asked is None:
                continue
            outcome = next(outcomes)
            if request.early and request.reply is not None and _is_released(outcome.answer):
                request.reply(outcome.answer, None)
                request.reply = None

    async def _gather(self, taken: list[Request], turn: Turn) -> None:
        """Add requests that arrive within `GATHER_S`, until one has to be stored at once."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + GATHER_S
        urgent = False
        while not (urgent or self._stopping) and len(taken) < MAX_TURN:
            if not await self.inbox.wait(deadline_s - loop.time()):
                return
            more, decided = self._take()
            taken += more
            turn.outcomes += decided.outcomes
            turn.events += decided.events
            if _is_quiet(decided):
                self._announce_releases(taken, turn, decided)
                urgent = any(request.batch is not None for request in more)
            else:
                urgent = True

    async def _store(self, turn: Turn, batches: list[Batch]) -> list[StrataError | None]:
        """Write facts, then batches of events, in a thread because both block on the disk."""
        if not turn.events and not batches:
            return []

        def work() -> list[StrataError | None]:
            self.kernel.commit(turn)
            return self.kernel.ingest(batches)

        # A thread of its own: reads of clients may fill all threads of the event loop.
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _refuse(self, taken: list[Request], error: StrataError) -> None:
        """Refuse all requests of a turn that could not be stored.

        Broken connections and announced releases cannot be undone: they are first in the next
        turn.
        """
        self._say_refused(error)
        refusal = Unavailable(f"the facts could not be stored: {error.message}", hint=error.hint)
        for request in taken:
            if request.reply is not None:
                request.reply(None, refusal)
        if isinstance(error, (Conflict, NotLeading)):
            raise error
        repeated = [Request(asked=_noted(*released)) for released in self._announced]
        repeated += [each for each in taken if isinstance(each.asked, DISCONNECTED)]
        self.inbox.put_first(repeated)
        self._announced.clear()

    def _stored_again(self) -> None:
        """Log and record that facts are stored again."""
        log.warning("facts are stored again after %d failed turns", self._refused)
        lasted_s = round(self.kernel.clock().mono_ns / 1e9 - self._refused_since_s, 3)
        if lasted_s >= NOTED_S and not self._stopping:
            noted = NoteStoreRefused(
                lasted_s=lasted_s, turns=self._refused, reason=self._refused_for
            )
            self.inbox.put_first([Request(asked=noted)])
        self._refused = 0

    def _say_refused(self, error: StrataError) -> None:
        now_s = self.kernel.clock().mono_ns / 1e9
        if not self._refused:
            self._refused_since_s = now_s
        self._refused += 1
        self._refused_for = error.message[:MAX_REASON]
        if self._refused == 1 or now_s - self._refused_s >= REFUSED_EVERY_S:
            self._refused_s = now_s
            log.error("facts could not be stored (%d turns failed): %s", self._refused, error)

    def _answer(self, taken: list[Request], turn: Turn, refusals: list[StrataError | None]) -> None:
        outcomes, batches = iter(turn.outcomes), iter(refusals)
        for request in taken:
            if request.asked is None:
                answer, refusal = None, next(batches)
            else:
                outcome = next(outcomes)
                answer, refusal = outcome.answer, outcome.refusal
            if request.reply is not None:
                request.reply(answer, refusal)

    def _publish(self, turn: Turn) -> None:
        if not turn.events:
            return
        self.recent.extend(turn.events)
        self._position = turn.events[-1].seq + 1
        for observer, kinds in self._observers:
            wanted = [e for e in turn.events if type(e.body) in kinds] if kinds else turn.events
            if wanted:
                observer(wanted)
        published, self._published = self._published, asyncio.Event()
        published.set()


def _noted(task: str, barrier: Barrier) -> NoteRelease:
    left = LeftBarrier(
        barrier=barrier.name,
        round=barrier.round,
        generation=barrier.generation,
        participants=barrier.met,
        step=barrier.step,
    )
    return NoteRelease(task=task, left=left, arrived=barrier.arrived)


def _is_quiet(turn: Turn) -> bool:
    return all(type(event.body) in QUIET for event in turn.events)


def _is_released(answer: object) -> bool:
    return isinstance(answer, Barrier) and answer.state == "released"


def _resolve(answer: AnswerFuture, result: object, refusal: StrataError | None) -> None:
    if answer.done():
        return  # the caller was cancelled
    if refusal is not None:
        answer.set_exception(refusal)
    else:
        answer.set_result(result)
