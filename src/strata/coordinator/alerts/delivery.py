"""Delivery of messages: one at a time for each channel, with retries, and each outcome recorded.

What has to be sent is in the state: the channels of an alert to which its newest message
is not sent yet.
So a restart continues where the last coordinator stopped. A message may be sent twice only if the
coordinator is killed between the answer of the server and the record of it.

A message is tried `ATTEMPTS` times with growing delays, then its failure is recorded. Until a
channel has taken a message again, the following ones are tried once. Sending runs in a thread of
its own per attempt, which nobody waits for longer than `ATTEMPT_S`: neither a server that never
answers nor the end of the coordinator.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from msgspec import Struct

from strata.coordinator.alerts.channels import MAX_WAIT_S, SEND_TIMEOUT_S, Channel, ChannelError
from strata.coordinator.alerts.messages import Message, message_of, test_message
from strata.coordinator.background import background
from strata.coordinator.engine.engine import Engine
from strata.core.alerts.alert_record import NoteDelivery
from strata.core.state import Alert, AlertMoment, Cluster
from strata.errors import StrataError

log = logging.getLogger(__name__)

ATTEMPTS = 6
DELAYS_S = (1.0, 5.0, 30.0, 120.0, 300.0)
ATTEMPT_S = 2 * SEND_TIMEOUT_S
NOT_SET = "the channel is not set up any more"


class Sent(Struct, frozen=True):
    """The outcome of a test message; `error` is empty if it was taken."""

    channel: str
    target: str
    error: str = ""


class Delivery:
    """Sends what is pending to each channel."""

    def __init__(self, engine: Engine, channels: Sequence[Channel]) -> None:
        self._engine = engine
        self._channels = {channel.name: channel for channel in channels}
        self._news = {name: asyncio.Event() for name in self._channels}

    @property
    def names(self) -> list[str]:
        """The names of the channels."""
        return list(self._channels)

    def wake(self) -> None:
        """Look for pending messages."""
        for news in self._news.values():
            news.set()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Deliver while the context is open."""
        async with AsyncExitStack() as stack:
            gone = self._give_up_removed()
            await stack.enter_async_context(background(gone, "strata-alerts-removed"))
            for name in self._channels:
                work = self._deliver_to(name)
                await stack.enter_async_context(background(work, f"strata-alerts-{name}"))
            yield

    async def test(self) -> list[Sent]:
        """Send a test message to every channel, once."""
        state, now = self._engine.kernel.state, self._engine.kernel.clock()
        message = test_message(state.cluster, now.wall_ns // 1_000_000)
        outcomes = await asyncio.gather(
            *(attempt(channel, message) for channel in self._channels.values())
        )
        return [
            Sent(channel.name, channel.target, str(error) if error else "")
            for channel, error in zip(self._channels.values(), outcomes, strict=True)
        ]

    async def _give_up_removed(self) -> None:
        """Record the failure of messages for channels that were removed from the settings."""
        async with self._engine.settled() as state:
            removed = [
                (alert.id, alert.moment, channel)
                for alert in state.alerts.values()
                for channel in alert.pending
                if channel not in self._channels
            ]
        for alert_id, moment, channel in removed:
            await self._note(alert_id, channel, moment, 0, NOT_SET)

    async def _deliver_to(self, name: str) -> None:
        down = False
        while True:
            self._news[name].clear()
            async with self._engine.settled() as state:
                alert = _next_pending(state, name)
                key = (alert.id, alert.moment) if alert is not None else None
            if key is None:
                await self._news[name].wait()
                continue
            try:
                down = not await self._deliver(name, *key, attempts=1 if down else ATTEMPTS)
            except StrataError as error:  # the outcome could not be recorded: the disk refuses
                log.warning("the delivery of %s could not be recorded: %s", key[0], error)
                await asyncio.sleep(1.0)

    async def _deliver(self, name: str, alert_id: str, moment: AlertMoment, attempts: int) -> bool:
        """Send the newest message of an alert; False if it was given up."""
        for number in range(1, attempts + 1):
            async with self._engine.settled() as state:
                alert = state.alerts.get(alert_id)
                if alert is None or alert.moment != moment or name not in alert.pending:
                    return True  # it was resolved meanwhile, which is another message
                message = message_of(alert, state.cluster)
            error = await attempt(self._channels[name], message)
            if error is None:
                await self._note(alert_id, name, moment, number)
                return True
            log.warning("%s did not take the message of %s: %s", name, alert_id, error)
            if number < attempts:
                delay_s = DELAYS_S[min(number, len(DELAYS_S)) - 1]
                await asyncio.sleep(min(max(delay_s, error.retry_after_s), MAX_WAIT_S))
        await self._note(alert_id, name, moment, attempts, str(error))
        return False

    async def _note(
        self, alert_id: str, channel: str, moment: AlertMoment, attempts: int, error: str = ""
    ) -> None:
        await self._engine.submit(
            NoteDelivery(
                alert=alert_id, channel=channel, moment=moment, attempts=attempts, error=error
            )
        )


def _next_pending(state: Cluster, channel: str) -> Alert | None:
    """The oldest alert whose newest message is not sent to a channel yet."""
    waiting = (alert for alert in state.alerts.values() if channel in alert.pending)
    return min(waiting, key=lambda alert: alert.resolved_ns or alert.raised_ns, default=None)


async def attempt(channel: Channel, message: Message) -> ChannelError | None:
    """Send a message in a thread; returns the error if it was not taken."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[ChannelError | None] = loop.create_future()

    def work() -> None:
        error: ChannelError | None = None
        try:
            channel.send(message)
        except ChannelError as raised:
            error = raised
        except Exception as raised:  # a defect here must not end the delivery
            log.exception("sending to %s failed", channel.name)
            error = ChannelError(type(raised).__name__)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(partial(_settle, done, error))

    threading.Thread(target=work, name=f"strata-send-{channel.name}", daemon=True).start()
    try:
        return await asyncio.wait_for(done, ATTEMPT_S)
    except TimeoutError:
        return ChannelError(f"{channel.target}: no answer within {ATTEMPT_S:g} s")


def _settle(done: "asyncio.Future[ChannelError | None]", error: ChannelError | None) -> None:
    if not done.done():
        done.set_result(error)
