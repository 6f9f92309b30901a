"""The agent's session with the coordinator: receives duties; sends heartbeats, exits and output.

A broken connection is replaced, with growing, jittered delays and no limit. The coordinator
recognizes the agent by its nonce. Exits, output and the events of ended workers are sent again
until they are acknowledged.
"""

import asyncio
import itertools
import logging
import time

from google.protobuf.message import Message

from strata.agent.agent_records import Exit
from strata.agent.worker_plan import Start
from strata.agent.worker_supervisor import WorkerSupervisor
from strata.config import Settings
from strata.core.hosts.host_health import HostHealth
from strata.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.sdk.record.host_reporter import LOOK_S, HostReporter
from strata.sdk.session.channel import (
    SERVICE,
    Address,
    delays_s,
    error_of,
    options_for,
    parse_addresses,
)
from strata.wire.client_certificates import client_certificates
from strata.wire.grpc_credentials import Credentials
from strata.wire.grpc_library import aio, grpc
from strata.wire.messages.host_messages import host_health_message
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

PERMANENT = (Unauthenticated, PermissionDenied, InvalidArgument)
"""Errors that a retry would get too."""

PASSING = (Unavailable, DeadlineExceeded, Overloaded)
"""Errors of a read that a retry may not get."""

READ_TIMEOUT_S = 60.0

Call = aio.StreamStreamCall[Message, pb.AgentOrder]


class CoordinatorLink:
    """One agent's session with the coordinator."""

    def __init__(
        self, supervisor: WorkerSupervisor, settings: Settings, hello: pb.AgentHello
    ) -> None:
        self.attached = asyncio.Event()
        self._supervisor = supervisor
        self._hello = hello
        self._addresses = parse_addresses(settings.coordinator_addr)
        self._address = self._addresses[0]
        self._settings = settings
        self._news = asyncio.Event()
        self._sent_exits: set[Start] = set()
        self._reporter = HostReporter(settings.resource_interval_s, supervisor.folder)
        self._health: HostHealth | None = None
        self._interval_s = settings.heartbeat_interval_s
        self._channel: aio.Channel | None = None
        self._credentials = credentials_of(settings)
        supervisor.on_news = self._news.set
        supervisor.folders.read = self.read_workdir

    async def run(self) -> None:
        """Keep the session open; raises only errors that a retry cannot fix."""
        delays, logged_code = delays_s(), ""
        credentials = self._credentials
        for number, address in enumerate(itertools.cycle(self._addresses), 1):
            self._address = address
            options = options_for(len(self._addresses))
            async with channel_to(address, credentials, options) as channel:
                self._channel = channel
                error = await self._converse(channel)
                self._channel = None
            if isinstance(error, PERMANENT):
                raise error
            if self.attached.is_set():
                self.attached.clear()
                delays, logged_code = delays_s(), ""
                log.info("the session with the coordinator ended: %s", error)
            elif error.code != logged_code:
                logged_code = error.code
                log.warning("cannot connect to the coordinator yet, retrying: %s", error)
            if number % len(self._addresses) == 0:
                await asyncio.sleep(next(delays))

    async def read_workdir(self, workdir: str, piece: str) -> bytes:
        """A piece of the folder of a task, or its list of files if the piece is empty."""
        if self._channel is None:
            raise Unavailable("there is no connection to the coordinator yet")
        call = self._channel.unary_unary(
            f"{SERVICE}ReadWorkdir",
            request_serializer=pb.ReadWorkdirRequest.SerializeToString,
            response_deserializer=pb.ReadWorkdirResponse.FromString,
        )
        request = pb.ReadWorkdirRequest(workdir=workdir, piece=piece)
        try:
            answer: pb.ReadWorkdirResponse = await call(
                request, metadata=self._metadata(), timeout=READ_TIMEOUT_S
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable("the connection was closed") from None  # which cancels its calls
        except aio.UsageError as error:
            raise Unavailable(f"the connection was closed: {error}") from error
        except grpc.RpcError as error:
            found = self._error_of(error)
            raise Unavailable(found.message) if isinstance(found, PASSING) else found from error
        return answer.content

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._settings.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    async def _converse(self, channel: aio.Channel) -> StrataError:
        """Run one connection; returns why it ended."""
        open_session = channel.stream_stream(
            f"{SERVICE}AgentSession",
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.AgentOrder.FromString,
        )
        call: Call = open_session(metadata=self._metadata())
        speaking: list[asyncio.Task[None]] = []
        try:
            await call.write(pb.AgentMessage(hello=self._hello))
            while (order := await call.read()) is not aio.EOF:
                assert isinstance(order, pb.AgentOrder)
                self._handle(order)
                if not speaking:
                    self.attached.set()
                    offered = (self._hello.slots, self._hello.agent_id, self._address.target)
                    log.info("offering %d slots as %s to the coordinator at %s", *offered)
                    speaking = [asyncio.create_task(self._send(call))]
                    speaking.append(asyncio.create_task(self._measure()))
            return Unavailable("the coordinator ended the session")
        except StrataError as refusal:
            return refusal
        except grpc.RpcError as error:
            return self._error_of(error)
        finally:
            call.cancel()
            for each in speaking:
                each.cancel()
            if speaking:
                await asyncio.wait(speaking)

    def _handle(self, order: pb.AgentOrder) -> None:
        kind = order.WhichOneof("body")
        if kind == "duties":
            self._interval_s = order.duties.heartbeat_interval_ms / 1000 or self._interval_s
            self._supervisor.apply_duties(order.duties)
        elif kind == "exit_stored":
            stored = order.exit_stored
            start = Start(stored.task_id, stored.worker_id, stored.start)
            self._sent_exits.discard(start)
            self._supervisor.settled(start)
            self._news.set()
        elif kind == "output_taken":
            self._supervisor.output_taken(order.output_taken)
            self._news.set()
        elif kind == "collect_stacks":
            self._supervisor.collect_stacks(order.collect_stacks)
        elif kind == "left_settled":
            self._supervisor.leftovers.settled(order.left_settled)
            self._news.set()
        elif kind == "refused":
            refused = order.refused
            raise error_of(refused.code, "", refused.message, refused.hint)

    async def _send(self, call: Call) -> None:
        """Send heartbeats on time and everything else between them, until the connection ends."""
        self._sent_exits = set()
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

    async def _measure(self) -> None:
        """Measure the host and send its health when it is due, until the connection ends."""
        while True:
            try:
                health = await asyncio.to_thread(self._reporter.due)
            except Exception:
                log.exception("the health of this host cannot be measured")
                return
            if health is not None:
                self._health = health
                self._news.set()
            await asyncio.sleep(min(LOOK_S, self._settings.resource_interval_s))

    def _next_message(self) -> pb.AgentMessage | None:
        if self._health is not None:
            health, self._health = self._health, None
            return pb.AgentMessage(health=host_health_message(health))
        for task in self._supervisor.failed_tests:
            test = self._supervisor.failed_tests.pop(task)
            failed = pb.SelfTestFailed(task_id=task, reason=test.reason, gpu=test.gpu)
            return pb.AgentMessage(self_test_failed=failed)
        for start, ended in self._supervisor.exits.items():
            if start not in self._sent_exits:
                self._sent_exits.add(start)
                return pb.AgentMessage(exited=_message(ended))
        if self._supervisor.stacks:
            return pb.AgentMessage(stacks=self._supervisor.stacks.popleft())
        output = self._supervisor.take_output()
        if output is not None:
            return pb.AgentMessage(output=output)
        left = self._supervisor.leftovers.next_message()
        return None if left is None else pb.AgentMessage(left=left)

    def _error_of(self, error: grpc.RpcError) -> StrataError:
        """The Strata error of a broken call."""
        if not isinstance(error, aio.AioRpcError):
            return Unavailable(f"the connection broke: {error}")
        trailers = {str(name): str(value) for name, value in error.trailing_metadata() or ()}
        code, details = trailers.get("strata-code", ""), error.details() or ""
        hint = trailers.get("strata-hint", "")
        if self._credentials is not None and not code:
            hint = hint or self._credentials.tls.advice(details)
        found = error_of(code, error.code().name, details, hint)
        return Unavailable(found.message) if isinstance(found, Fenced) else found


def credentials_of(settings: Settings) -> Credentials | None:
    """The credentials of channels to the coordinator; None without TLS."""
    tls = client_certificates(settings)
    return Credentials(tls) if tls.encrypts(settings.coordinator_addr) else None


def channel_to(
    address: Address, credentials: Credentials | None, options: list[tuple[str, int]]
) -> aio.Channel:
    """A channel to the coordinator, connected when first used."""
    if credentials is None:
        return aio.insecure_channel(address.target, options)
    return aio.secure_channel(address.target, credentials.newest(), options)


def _message(ended: Exit) -> pb.ProcessExited:
    return pb.ProcessExited(
        task_id=ended.start.task,
        worker_id=ended.start.worker,
        start=ended.start.number,
        code=ended.code,
        signal=ended.signal,
        gpus=ended.gpus,
    )
