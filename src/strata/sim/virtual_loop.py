"""An asyncio event loop in virtual time, on which the coordinator runs in the simulation.

Its clock is the world's. Callbacks that are ready run at once and in order; a timer is an entry of
the world's queue. Work for a thread (`asyncio.to_thread`) is done at one virtual time and answered
at a later one; both are drawn from the seed, so that other messages arrive before and in between.
Nothing here sleeps or starts a thread.

A loop ends with its coordinator. Callbacks, timers and thread work that are pending then never run,
as in a process that was killed: no `except` or `finally` of the coordinator runs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

from strata.sim.virtual_time import SECOND_NS, World

if TYPE_CHECKING:
    from collections.abc import Coroutine

Arguments = TypeVarTuple("Arguments")


class VirtualHandle(asyncio.TimerHandle):
    """A callback that is ready, or that waits for `moment_s` on the loop's clock."""

    __slots__ = ("action", "arguments", "dropped", "moment_s", "where")

    def __init__(
        self,
        action: Callable[..., object],
        arguments: tuple[Any, ...],
        where: Context | None,
        moment_s: float = 0.0,
    ) -> None:
        self.action = action
        self.arguments = arguments
        self.where = where
        self.moment_s = moment_s
        self.dropped = False

    def when(self) -> float:
        """The time at which the callback is due."""
        return self.moment_s

    def cancel(self) -> None:
        """Drop the callback."""
        self.dropped = True

    def cancelled(self) -> bool:
        """Whether the callback was dropped."""
        return self.dropped

    def run(self) -> None:
        """Run the callback, in its context if it has one."""
        if self.dropped:
            return
        if self.where is None:
            self.action(*self.arguments)
        else:
            self.where.run(self.action, *self.arguments)


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs one process of the coordinator.

    `work_s` returns the duration of work in a thread. `crashed` is called after such work and
    returns whether the process ended during it; then the result is discarded.
    """

    def __init__(
        self, world: World, work_s: Callable[[], float], crashed: Callable[[], bool]
    ) -> None:
        self.world = world
        self.alive = True
        self._began_ns = world.now_ns
        self._work_s = work_s
        self._crashed = crashed
        self._ready: deque[VirtualHandle] = deque()

    def end(self) -> None:
        """End the process: discard all pending callbacks."""
        self.alive = False
        self._ready.clear()

    def enter(self, action: Callable[[Unpack[Arguments]], object], *args: *Arguments) -> None:
        """Run an action from outside, such as an arriving message, then all ready callbacks."""
        if not self.alive:
            return
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            action(*args)
            ready = self._ready
            while ready:
                ready.popleft().run()
        finally:
            asyncio._set_running_loop(outer)

    def time(self) -> float:
        """Virtual seconds since the process began; small enough for nanoseconds in a float."""
        return (self.world.now_ns - self._began_ns) / SECOND_NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback before virtual time advances."""
        handle = VirtualHandle(callback, args, context)
        if self.alive:
            self._ready.append(handle)
            if asyncio._get_running_loop() is not self:
                self.world.after(0.0, self.enter, _nothing)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after a delay."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time of the loop's clock."""
        timer = VirtualHandle(callback, args, context, when)
        if self.alive:
            self.world.at(self._began_ns + ceil(when * SECOND_NS), self._due, timer)
        return timer

    def _due(self, timer: VirtualHandle) -> None:
        if not timer.dropped:
            self.enter(timer.run)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run work after a delay, as a thread would, and return its result after another one."""
        future = self.create_future()
        self.world.after(self._work_s(), self._work, future, func, args)
        return future

    def _work(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if not self.alive:
            return
        result: Any = None
        failure: BaseException | None = None
        try:
            result = func(*args)
        except BaseException as error:
            failure = error
        if not self._crashed():
            self.world.after(self._work_s() / 2, self.enter, self._answer, future, result, failure)

    def _answer(
        self, future: asyncio.Future[Any], result: object, failure: BaseException | None
    ) -> None:
        if future.done():
            return
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: "Coroutine[Any, Any, Any]",
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        """A task of this loop."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Whether debug mode is on: never."""
        return False

    def is_running(self) -> bool:
        """Whether a callback of this loop is running."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return not self.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that was never awaited, unless the process has ended."""
        error = context.get("exception")
        if self.alive and isinstance(error, Exception):
            self.world.fail(error, str(context.get("message", "")))


def _nothing() -> None:
    pass
