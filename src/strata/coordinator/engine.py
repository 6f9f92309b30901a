"""The engine: the one task that owns the state, and the doors to it.

Everything enters by the inbox, in the order in which it came: commands of RPCs and REST calls, and
signals, which are beats and broken connections. The engine takes whatever is waiting as one turn:
decide, store, answer, publish. While the disk works the inbox fills, so under load turns grow by
themselves: group commit without a timer. After its last request, a turn decides which workers and
agents have passed their deadlines.

If the coordinator itself did not run for a while (it was stopped, or a turn took that long), no
worker could be heard. A timer that fires late shows this, and all deadlines are moved by that time.

Answers go out when the facts are on disk. Callers run before the next turn is decided, so what
they read of the state is durable; `settled` gives the same promise to readers.

The release of a barrier does not wait for the disk. A turn with nothing but arrivals and releases
stays open for 2 ms, so that workers which arrive together are stored in one append, and a release
is sent as soon as it is decided. A release that follows from anything else, such as a loss, is sent
after the append. If the disk refuses the turn, the next turn decides that release again before
anything else. If the coordinator dies before the append, it learns of the release from the workers
when they connect again (see `core.barriers`).

A rule that fails in a way it should not ends the engine, and with it the coordinator: a state that
nobody understands must not be built upon. What is on disk is sound, and a restart begins there.

Subscribers hold no queue here; each has a position, and reads what lies between it and the durable
end from a window of recent facts, or from the store when it has fallen behind.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TypeAlias

from strata.coordinator.inbox import Inbox, Reply, Request
from strata.coordinator.kernel import Asked, Kernel, Turn
from strata.core.barriers import (
    Barrier,
    BarrierArrived,
    BarrierOpened,
    BarrierReleased,
    LeftBarrier,
    NoteRelease,
)
from strata.core.events import Command, Event, Fact
from strata.core.signals import AgentDisconnected, Signal, WorkerDisconnected
from strata.core.state import Cluster
from strata.errors import Conflict, StrataError, Unavailable
from strata.store.base import Batch

log = logging.getLogger(__name__)

MAX_TURN = 4096
RECENT_FACTS = 16_384
IDLE_LOOK_S = 1.0
GATHER_S = 0.002
REFUSED_S = 0.1
"""How long the engine waits after the disk refused a turn."""

REFUSED_EVERY_S = 10.0
"""How often it is said that the disk still refuses."""

TICK_S = 0.5
ASLEEP_S = 1.0
"""A tick that comes so much later than the one before it shows that nothing ran in between."""

QUIET = frozenset({BarrierOpened, BarrierArrived, BarrierReleased})
"""A turn with only these facts stays open for `GATHER_S`; a release among them is told at once."""

DISCONNECTED = (WorkerDisconnected, AgentDisconnected)

Answer = asyncio.Future[object]
Observer: TypeAlias = Callable[[Sequence[Event]], None]


class Engine:
    """Drives a kernel from an event loop."""

    def __init__(self, kernel: Kernel, inbox_limit: int = 65_536) -> None:
        self.kernel = kernel
        self.inbox = Inbox(inbox_limit)
        self.recent: deque[Event] = deque(maxlen=RECENT_FACTS)
        self._observers: list[tuple[Observer, frozenset[type[Fact]]]] = []
        self._early: list[Callable[[str, Barrier], None]] = []
        self._told: list[tuple[str, Barrier]] = []
        self._awake_ns = 0
        self._asleep_ns = 0
        self._refused = 0
        self._refused_s = 0.0
        self._published = asyncio.Event()
        self._position = kernel.durable
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def follow_releases(self, observer: Callable[[str, Barrier], None]) -> None:
        """Shows the observer each round that is released, with its task, before it is durable."""
        self._early.append(observer)

    def follow(self, observer: Observer, *kinds: type[Fact], first: bool = False) -> None:
        """Shows the observer the facts of those kinds, or all, turn by turn, when they are durable;
        `first` before anyone who follows already."""
        self._observers.insert(0 if first else len(self._observers), (observer, frozenset(kinds)))

    @property
    def position(self) -> int:
        """Up to where the facts are published; what is durable is published in the same turn."""
        return self._position

    def inbox_depth(self) -> int:
        """How many requests wait for the next turn."""
        return len(self.inbox)

    def start(self) -> None:
        """Begins to take turns."""
        self._awake_ns = self.kernel.clock().mono_ns
        self._task = asyncio.create_task(self._run(), name="strata-engine")

    async def ended(self) -> None:
        """Returns when the engine was stopped; raises what ended it otherwise."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Finishes what is in the inbox, then ends."""
        self._stopping = True
        self.inbox.news.set()
        if self._task is not None:
            await self._task

    def ask(self, command: Command, reply: Reply, early: bool = False) -> None:
        """Submits a command; calls back once its facts are on disk or it is refused.

        An arrival at a barrier may be answered `early`: when the round is released, before that is
        on disk. A callback runs inside the turn and must not raise.
        """
        self._put(Request(command, None, reply, early))

    async def submit(self, asked: Asked) -> object:
        """The answer to a command, once its facts are on disk, or to a signal, once it is heard;
        raises its refusal."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._put(Request(asked, None, partial(_resolve, answer)))
        return await answer

    def post(self, command: Command) -> None:
        """Submits a command whose answer nobody waits for."""
        self._put(Request(command))

    def ingest(self, batch: Batch, reply: Reply) -> None:
        """Stores a worker's batch of events; calls back when it is on disk, or refused."""
        self._put(Request(None, batch, reply))

    def notice(self, signal: Signal, reply: Reply | None = None) -> None:
        """Takes a signal in; calls back when it was heard, or refused, unless a newer beat of the
        same worker came before that."""
        self.inbox.notice(signal, reply)

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[Cluster]:
        """The state at a moment when all of it is on disk."""
        async with self._turn:
            yield self.kernel.state

    async def subscribe(self, position: int) -> AsyncIterator[list[Event]]:
        """The facts from a position on, as they become durable; never ends by itself."""
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
        stop = min(stop, start + MAX_TURN)
        return await asyncio.to_thread(lambda: list(self.kernel.store.read(start, stop)))

    def _put(self, request: Request) -> None:
        if self._stopping:
            raise Unavailable("the coordinator is stopping", hint="try again when it is back")
        self.inbox.put(request)

    def _tick(self) -> None:
        """Measures whether the coordinator runs: called every `TICK_S`, and before every turn."""
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
                # Let the callers read the state that is durable now, before it moves on.
                await asyncio.sleep(0)
        finally:
            ticking.cancel()
        self._published.set()

    async def _wait(self) -> None:
        """Until there is something in the inbox, or silence has to be looked at."""
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
            if self._asleep_ns:
                self.kernel.watch.credit(self._asleep_ns)
                self._asleep_ns = 0
            taken, turn = self._take()
            if turn.events and _is_quiet(turn):
                self._tell_released(taken, turn, turn)
                await self._gather(taken, turn)
            batches = [request.batch for request in taken if request.batch is not None]
            try:
                refusals = await self._store(turn, batches)
            except StrataError as error:
                self._refuse(taken, error)
                await asyncio.sleep(REFUSED_S)
                return
            self._told.clear()
            if self._refused and turn.events:
                log.warning("facts are stored again, after %d turns that were not", self._refused)
                self._refused = 0
            self._publish(turn)
            self._answer(taken, turn, refusals)

    def _take(self) -> tuple[list[Request], Turn]:
        """What waits, decided."""
        taken = self.inbox.take(MAX_TURN)
        asked = [request.asked for request in taken if request.asked is not None]
        return taken, self.kernel.decide(asked, judge=not self.inbox)

    def _tell_released(self, taken: list[Request], turn: Turn, decided: Turn) -> None:
        """Lets go those whose barrier is complete, without waiting for the disk.

        `decided` is the newest part of the turn. The state may have forgotten the round by now, so
        the round itself is kept.
        """
        rounds = [
            (event.body.task, outcome.answer)
            for outcome in decided.outcomes
            for event in outcome.events
            if isinstance(event.body, BarrierReleased) and isinstance(outcome.answer, Barrier)
        ]
        self._told += rounds
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
        """Takes up what comes meanwhile, until there is something that somebody waits for."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + GATHER_S
        loud = False
        while not (loud or self._stopping) and len(taken) < MAX_TURN:
            if not await self.inbox.wait(deadline_s - loop.time()):
                return
            more, decided = self._take()
            taken += more
            turn.outcomes += decided.outcomes
            turn.events += decided.events
            if _is_quiet(decided):
                self._tell_released(taken, turn, decided)
                loud = any(request.batch is not None for request in more)
            else:
                loud = True

    async def _store(self, turn: Turn, batches: list[Batch]) -> list[StrataError | None]:
        """Makes facts durable, then batches; in a thread, since both wait for the disk."""
        if not turn.events and not batches:
            return []

        def work() -> list[StrataError | None]:
            self.kernel.commit(turn)
            return self.kernel.ingest(batches)

        return await asyncio.to_thread(work)

    def _refuse(self, taken: list[Request], error: StrataError) -> None:
        """The disk did not take the turn: nothing happened, and every caller is told so.

        A connection that broke in this turn stays broken, and a barrier that was released stays
        released: both come first in the next turn.
        """
        self._say_refused(error)
        refusal = Unavailable(f"nothing was recorded: {error.message}", hint=error.hint)
        for request in taken:
            if request.reply is not None:
                request.reply(None, refusal)
        if isinstance(error, Conflict):
            raise error
        stays = [Request(_noted(*told)) for told in self._told]
        stays += [each for each in taken if isinstance(each.asked, DISCONNECTED)]
        self.inbox.put_first(stays)
        self._told.clear()

    def _say_refused(self, error: StrataError) -> None:
        self._refused += 1
        now_s = self.kernel.clock().mono_ns / 1e9
        if self._refused == 1 or now_s - self._refused_s >= REFUSED_EVERY_S:
            self._refused_s = now_s
            log.error("facts could not be stored (%d turns so far): %s", self._refused, error)

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


def _resolve(answer: Answer, result: object, refusal: StrataError | None) -> None:
    if answer.done():
        return  # whoever asked is gone
    if refusal is not None:
        answer.set_exception(refusal)
    else:
        answer.set_result(result)
