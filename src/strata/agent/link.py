"""The agent's session with the coordinator: duties come in; beats, exits and output go out.

When the connection breaks a new one is made, after delays that grow and vary, for ever. The
coordinator recognises the agent by its nonce. Exits, output and events that dead workers left are
told again until they are acknowledged.
"""

import asyncio
import logging
import time
from pathlib import Path

from google.protobuf.message import Message

from strata.agent.plan import Start
from strata.agent.records import Exit
from strata.agent.supervisor import Supervisor
from strata.config import Settings
from strata.errors import (
    Fenced,
    InvalidArgument,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.sdk.channel import OPTIONS, SERVICE, Address, delays_s, error_of, parse_address
from strata.wire.certificates import date_problem
from strata.wire.grpc_library import aio, grpc
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

HOPELESS = (Unauthenticated, PermissionDenied, InvalidArgument)
"""Refusals that the next attempt would get as well."""

Call = aio.StreamStreamCall[Message, pb.AgentOrder]


class Link:
    """One agent's way to the coordinator."""

    def __init__(self, supervisor: Supervisor, settings: Settings, hello: pb.AgentHello) -> None:
        self.attached = asyncio.Event()
        self._supervisor = supervisor
        self._hello = hello
        self._address = parse_address(settings.coordinator_addr)
        self._settings = settings
        self._news = asyncio.Event()
        self._told: set[Start] = set()
        self._interval_s = settings.heartbeat_interval_s
        supervisor.on_news = self._news.set

    async def run(self) -> None:
        """Keeps the session open; raises only what no new attempt could mend."""
        delays, told = delays_s(), ""
        async with channel_to(self._address, self._settings) as channel:
            while True:
                error = await self._converse(channel)
                if isinstance(error, HOPELESS):
                    raise error
                if self.attached.is_set():
                    self.attached.clear()
                    delays, told = delays_s(), ""
                    log.info("the session with the coordinator ended: %s", error)
                elif error.code != told:
                    told = error.code
                    log.warning("not at the coordinator yet, trying on: %s", error)
                await asyncio.sleep(next(delays))

    async def _converse(self, channel: aio.Channel) -> StrataError:
        """One connection, from Hello to its end: why it ended."""
        open_session = channel.stream_stream(
            f"{SERVICE}AgentSession",
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.AgentOrder.FromString,
        )
        token = self._settings.token
        call: Call = open_session(metadata=(("authorization", f"Bearer {token}"),) if token else ())
        speaking: asyncio.Task[None] | None = None
        try:
            await call.write(pb.AgentMessage(hello=self._hello))
            while (order := await call.read()) is not aio.EOF:
                assert isinstance(order, pb.AgentOrder)
                self._obey(order)
                if speaking is None:
                    self.attached.set()
                    offered = (self._hello.slots, self._hello.agent_id, self._address.target)
                    log.info("offers %d slots as %s to the coordinator at %s", *offered)
                    speaking = asyncio.create_task(self._speak(call))
            return Unavailable("the coordinator ended the session")
        except StrataError as refusal:
            return refusal
        except grpc.RpcError as error:
            return _meaning(error)
        finally:
            call.cancel()
            if speaking is not None:
                speaking.cancel()
                await asyncio.wait([speaking])

    def _obey(self, order: pb.AgentOrder) -> None:
        kind = order.WhichOneof("body")
        if kind == "duties":
            self._interval_s = order.duties.heartbeat_interval_ms / 1000 or self._interval_s
            self._supervisor.told(order.duties)
        elif kind == "exit_stored":
            stored = order.exit_stored
            start = Start(stored.task_id, stored.worker_id, stored.start)
            self._told.discard(start)
            self._supervisor.settled(start)
            self._news.set()
        elif kind == "output_taken":
            self._supervisor.output_taken(order.output_taken)
            self._news.set()
        elif kind == "left_settled":
            self._supervisor.leftovers.settled(order.left_settled)
            self._news.set()
        elif kind == "refused":
            refused = order.refused
            raise error_of(refused.code, "", refused.message, refused.hint)

    async def _speak(self, call: Call) -> None:
        """Beats on time, whatever else there is to say; ends with the connection."""
        self._told = set()
        self._supervisor.resend()
        beat_at_s = 0.0
        try:
            while True:
                self._news.clear()
                now_s = time.monotonic()
                if now_s >= beat_at_s:
                    beat_at_s = now_s + self._interval_s
                    await call.write(pb.AgentMessage(beat=pb.AgentBeat()))
                message = self._next_message()
                if message is not None:
                    await call.write(message)
                    continue
                try:
                    async with asyncio.timeout(beat_at_s - time.monotonic()):
                        await self._news.wait()
                except TimeoutError:
                    continue
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            log.debug("cannot write to the coordinator: %s", error)

    def _next_message(self) -> pb.AgentMessage | None:
        for start, ended in self._supervisor.exits.items():
            if start not in self._told:
                self._told.add(start)
                return pb.AgentMessage(exited=_message(ended))
        output = self._supervisor.take_output()
        if output is not None:
            return pb.AgentMessage(output=output)
        left = self._supervisor.leftovers.next_message()
        return None if left is None else pb.AgentMessage(left=left)


def channel_to(address: Address, settings: Settings) -> aio.Channel:
    """A channel to the coordinator; it connects when first used."""
    if not (address.tls or settings.tls_cert):
        return aio.insecure_channel(address.target, OPTIONS)
    roots = Path(settings.tls_cert).read_bytes() if settings.tls_cert else None
    if problem := date_problem(settings.tls_cert, whole=True):
        log.warning("%s", problem)
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    return aio.secure_channel(address.target, credentials, OPTIONS)


def _message(ended: Exit) -> pb.ProcessExited:
    return pb.ProcessExited(
        task_id=ended.start.task,
        worker_id=ended.start.worker,
        start=ended.start.number,
        code=ended.code,
        signal=ended.signal,
    )


def _meaning(error: grpc.RpcError) -> StrataError:
    """The error that a broken call means."""
    if not isinstance(error, aio.AioRpcError):
        return Unavailable(f"the connection broke: {error}")
    told = {str(name): str(value) for name, value in error.trailing_metadata() or ()}
    found = error_of(
        told.get("strata-code", ""),
        error.code().name,
        error.details() or "",
        told.get("strata-hint", ""),
    )
    return Unavailable(found.message) if isinstance(found, Fenced) else found
