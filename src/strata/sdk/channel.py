"""The way to the coordinator: its address, the gRPC channel, and what its errors mean here.

An error crosses the wire as a gRPC status with the stable code in the trailing metadata
`strata-code` and the hint in `strata-hint`; here it becomes the same class again. A status
without them (a proxy's, a broken connection's) becomes the first class of that status in the table
of errors.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from google.protobuf.message import Message
from msgspec import Struct

from strata.errors import (
    STATUS,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    StrataError,
    Unavailable,
)
from strata.wire.certificates import date_problem
from strata.wire.grpc_library import grpc
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

SERVICE = "/strata.v1.Coordinator/"
DEFAULT_PORT = 50051
CALL_TIMEOUT_S = 30.0
SAY_EVERY_S = 10.0
UNREACHABLE_HINT = (
    "check COORDINATOR_ADDR, that the coordinator runs (strata up), "
    "and that its gRPC port (50051) is open"
)

OPTIONS: list[tuple[str, int]] = [
    # Our own delays decide when to try again; gRPC's start at a second and grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
]

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class NoAnswer(Unavailable):
    """The coordinator may be there, but has not answered in time."""


PASSING = (Unavailable, Overloaded)
"""Refusals that end by themselves: the same request is answered later."""


class Stream(Protocol):
    """What the coordinator says in one session."""

    def __iter__(self) -> Iterator[pb.CoordinatorMessage]: ...

    def cancel(self) -> bool: ...


class Address(Struct, frozen=True):
    """Where the coordinator listens; `https` means TLS."""

    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """As gRPC wants it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads `host:port` or `http://host:port`; without a port it is 50051."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _bad_address(text, str(error)) from error
    if parts.scheme not in ("http", "https", "grpc", "grpcs"):
        raise _bad_address(text, f"{parts.scheme} is not a way to reach it")
    if not host or parts.username or parts.path.strip("/") or parts.query or parts.fragment:
        raise _bad_address(text, "it is not a host and a port")
    return Address(host, port or DEFAULT_PORT, parts.scheme in ("https", "grpcs"))


def _bad_address(text: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{text[:200]!r} is not the address of a coordinator: {reason}",
        hint="write host:port or http://host:port, for example 127.0.0.1:50051",
    )


class Connection:
    """A channel to one coordinator; calls from any thread. It connects when first used."""

    def __init__(self, address: str, *, token: str = "", ca_file: str = "") -> None:
        self.address = parse_address(address)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        target = self.address.target
        if self.address.tls or ca_file:
            roots = Path(ca_file).read_bytes() if ca_file else None
            if problem := date_problem(ca_file, whole=True):
                log.warning("%s", problem)
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.secure_channel(target, credentials, OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, OPTIONS)

    def call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Answer:
        """One unary call; raises the error that the coordinator answered with, or `NoAnswer`."""
        rpc = self._channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return apart(lambda: rpc(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raised = self.error_from(error)
            if type(raised) is DeadlineExceeded and timeout_s is not None:
                where = self.address.target
                raised = NoAnswer(
                    f"the coordinator at {where} did not answer within {timeout_s:g} s",
                    hint=UNREACHABLE_HINT,
                )
            raise raised from None

    def session(self, messages: Iterator[pb.WorkerMessage]) -> "Stream":
        """Opens the stream of a worker; it ends when `messages` do."""
        rpc = self._channel.stream_stream(
            SERVICE + "Session",
            request_serializer=pb.WorkerMessage.SerializeToString,
            response_deserializer=pb.CoordinatorMessage.FromString,
        )
        stream: Stream = rpc(messages, metadata=self._metadata)
        return stream

    def error_from(self, error: grpc.RpcError) -> StrataError:
        """The error that a failed call means."""
        assert isinstance(error, grpc.Call), "every failed call tells its status"
        status, details = error.code(), error.details() or ""
        told = dict(error.trailing_metadata() or ())
        code, hint = _text(told.get("strata-code")), _text(told.get("strata-hint"))
        if not code and status is grpc.StatusCode.UNAVAILABLE:
            where = self.address.target
            return Unavailable(
                f"the coordinator at {where} cannot be reached: {details}", hint=UNREACHABLE_HINT
            )
        return error_of(code, status.name, details or status.name.lower(), hint)

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until the coordinator can be reached."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise Unavailable(
                f"the coordinator at {self.address.target} cannot be reached",
                hint=UNREACHABLE_HINT,
            ) from None

    def close(self) -> None:
        """Ends every call."""
        self._channel.close()


def apart(act: Callable[[], Result]) -> Result:
    """The result of an act, which the main thread leaves to another one.

    Ctrl-C raises `KeyboardInterrupt` in the main thread wherever it is. Inside gRPC that can leave
    a lock of the channel taken, and then every other call waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="strata-call", daemon=True).start()
    return done.result()


def build(kind: type[Answer], **fields: object) -> Answer:
    """A message with these fields; what does not fit into it is the caller's mistake."""
    try:
        return kind(**fields)
    except (TypeError, ValueError, OverflowError) as error:
        unfit = (
            f"{name} is {value!r:.80}"
            for name, value in fields.items()
            if _unfit(kind, name, value)
        )
        raise InvalidArgument(
            next(unfit, f"{kind.DESCRIPTOR.name} cannot be sent: {error}"),
            hint="texts are Unicode, counts are whole numbers of 64 bits at most",
        ) from error


def _unfit(kind: type[Answer], name: str, value: object) -> bool:
    try:
        kind(**{name: value})
    except (TypeError, ValueError, OverflowError):
        return True
    return False


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


BY_CODE = {each.code: each for each in STATUS}
BY_STATUS = {STATUS[each].grpc: each for each in reversed(STATUS)}


def error_of(code: str, status: str, message: str, hint: str) -> StrataError:
    """The error of a stable code, or else of a gRPC status."""
    return (BY_CODE.get(code) or BY_STATUS.get(status) or StrataError)(message, hint=hint)


def delays_s(first_s: float = 0.05, limit_s: float = 5.0) -> Iterator[float]:
    """How long to wait before each next attempt: growing, and never in step with others."""
    delay_s = first_s
    while True:
        yield delay_s * random.uniform(0.5, 1.0)
        delay_s = min(delay_s * 2, limit_s)


def persist(attempt: Callable[[float], Result], timeout_s: float) -> Result:
    """Tries again while the coordinator cannot be reached, for so long.

    Each attempt is told how many seconds it may take.
    """
    deadline_s = time.monotonic() + timeout_s
    for delay_s in delays_s(limit_s=1.0):
        try:
            return attempt(min(max(deadline_s - time.monotonic(), 1.0), CALL_TIMEOUT_S))
        except PASSING:
            if time.monotonic() + delay_s > deadline_s:
                raise
        time.sleep(delay_s)
    raise AssertionError("the delays never end")


def until_answered(
    attempt: Callable[[float], Result],
    require_usable: Callable[[], None],
    pause: Callable[[float], object],
    what: str,
) -> Result:
    """Tries again for as long as the coordinator is away; `require_usable` raises to end that."""
    began_s = say_at_s = time.monotonic()
    for delay_s in delays_s(0.1):
        require_usable()
        try:
            return attempt(CALL_TIMEOUT_S)
        except PASSING as error:
            now_s = time.monotonic()
            if now_s >= say_at_s:
                say_at_s = now_s + SAY_EVERY_S
                log.warning("waiting for %.0f s now for %s: %s", now_s - began_s, what, error)
        pause(delay_s)
    raise AssertionError("the delays never end")
