"""The connection to the coordinator: its address, the gRPC channel, errors, forks, own address.

An error is sent as a gRPC status with the stable code in the trailing metadata `strata-code` and
the hint in `strata-hint`; here it becomes the same class again. A status without them (from a proxy
or a broken connection) becomes the first class of that status in the table of errors.

A child made by `os.fork` (a data loader's worker, for example) has a copy of every object but none
of the threads that serve it, and a lock may be held by a thread that does not exist there. So every
object that depends on threads registers here and is disabled in the child before any other code
runs.

`MeetingPlace` is the listening socket on which a worker with rank 0 accepts the other members of
its generation. It is opened when the worker joins, and its address is sent whenever a generation is
entered. No connection is accepted until the first exchange.
"""

import logging
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from google.protobuf.message import Message
from msgspec import Struct

from strata.errors import (
    STATUS,
    DeadlineExceeded,
    InvalidArgument,
    NotLeading,
    Overloaded,
    StrataError,
    Unavailable,
)
from strata.wire.client_certificates import ClientCertificates
from strata.wire.grpc_credentials import Credentials
from strata.wire.grpc_library import grpc
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

SERVICE = "/strata.v1.Coordinator/"
DEFAULT_PORT = 50051
CALL_TIMEOUT_S = 30.0
LOG_INTERVAL_S = 10.0
READY_S = 0.5
"""Longest wait for one of several coordinators before the next one is tried."""
UNREACHABLE_HINT = (
    "check COORDINATOR_ADDR, that the coordinator is running (strata up), "
    "and that its gRPC port (50051) is open"
)

OPTIONS: list[tuple[str, int]] = [
    # `delays_s` controls retries; gRPC's own start at a second and grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
]

SOONER = {
    "grpc.keepalive_time_ms": 5_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.min_reconnect_backoff_ms": 3_000,  # how long an attempt to connect may take
}
"""A coordinator that does not answer is given up sooner where another one may lead."""

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class NoAnswer(Unavailable):
    """The coordinator did not answer in time."""


TRANSIENT = (Unavailable, Overloaded)
"""Transient errors: the same request succeeds later."""


class SessionStream(Protocol):
    """The messages of the coordinator in one session."""

    def __iter__(self) -> Iterator[pb.CoordinatorMessage]: ...

    def cancel(self) -> bool: ...


class Address(Struct, frozen=True):
    """The address of a coordinator; `https` means TLS."""

    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """The address in gRPC's syntax."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host:port` or `http://host:port`; the default port is 50051."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _bad_address(text, str(error)) from error
    if parts.scheme not in ("http", "https", "grpc", "grpcs"):
        raise _bad_address(text, f"scheme {parts.scheme!r} is not supported")
    if not host or parts.username or parts.path.strip("/") or parts.query or parts.fragment:
        raise _bad_address(text, "it is not a host and a port")
    return Address(host, port or DEFAULT_PORT, parts.scheme in ("https", "grpcs"))


def parse_addresses(text: str) -> list[Address]:
    """Parse the addresses of coordinators that share a store, separated by commas."""
    return [parse_address(part) for part in text.split(",") if part.strip()] or [
        parse_address(text)
    ]


def _bad_address(text: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{text[:200]!r} is not a coordinator address: {reason}",
        hint="use host:port or http://host:port, for example 127.0.0.1:50051",
    )


class CoordinatorConnection:
    """A channel to the coordinator, connected when first used. Thread-safe.

    Of several addresses one is in use. When it does not answer, or does not lead, the next one is
    used: only the coordinator that leads accepts connections.
    """

    def __init__(
        self, address: str, *, token: str = "", tls: ClientCertificates | None = None
    ) -> None:
        self._addresses = parse_addresses(address)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._tls = tls = tls or ClientCertificates()
        self.encrypted = tls.encrypts(address)
        self._credentials = Credentials(tls) if self.encrypted else None
        self._used_credentials, self._channels = self._opened()
        self._used = self._failed = 0
        self._moving = threading.Lock()

    def _opened(self) -> tuple[grpc.ChannelCredentials | None, list[grpc.Channel]]:
        """The newest credentials, and a channel to each address that uses them."""
        options = options_for(len(self._addresses))
        credentials = self._credentials.newest() if self._credentials is not None else None
        targets = [each.target for each in self._addresses]
        if credentials is None:
            return None, [grpc.insecure_channel(target, options) for target in targets]
        return credentials, [grpc.secure_channel(each, credentials, options) for each in targets]

    def renew(self) -> None:
        """Use new channels if the files of the certificates have changed; for a reconnect.

        An old channel closes when the calls that use it have ended.
        """
        if self._credentials and self._credentials.newest() is not self._used_credentials:
            self._used_credentials, self._channels = self._opened()

    @property
    def address(self) -> Address:
        """The address in use."""
        return self._addresses[self._used]

    def _channel_to(self, address: Address) -> grpc.Channel:
        return self._channels[self._addresses.index(address)]

    @property
    def tried_all(self) -> bool:
        """Whether every address was tried as often as the others: a pause is due."""
        return self._failed % len(self._addresses) == 0

    @property
    def has_others(self) -> bool:
        """Whether there is more than one address."""
        return len(self._addresses) > 1

    def unanswered(self, used: Address) -> Unavailable:
        """The error for an address from which nothing arrives; the next one is used."""
        self._use_next(used)
        return Unavailable(f"the coordinator at {used.target} does not answer")

    def _use_next(self, failed: Address) -> None:
        """Use the next address, unless another thread has changed it already."""
        with self._moving:
            if self.address == failed:
                self._used = (self._used + 1) % len(self._addresses)
                self._failed += 1

    def call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Answer:
        """Make a unary call; raises the coordinator's error, or `NoAnswer`."""
        used = self.address
        rpc = self._channel_to(used).unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return apart(lambda: rpc(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raised = self.error_from(error, used)
            if type(raised) is DeadlineExceeded and timeout_s is not None:
                raised = NoAnswer(
                    f"the coordinator at {used.target} did not answer within {timeout_s:g} s",
                    hint=UNREACHABLE_HINT,
                )
                self._use_next(used)
            raise raised from None

    def session(
        self, messages: Iterator[pb.WorkerMessage], address: Address | None = None
    ) -> "SessionStream":
        """Open the stream of a worker; it ends with `messages`."""
        rpc = self._channel_to(address or self.address).stream_stream(
            SERVICE + "Session",
            request_serializer=pb.WorkerMessage.SerializeToString,
            response_deserializer=pb.CoordinatorMessage.FromString,
        )
        stream: SessionStream = rpc(messages, metadata=self._metadata)
        return stream

    def error_from(self, error: grpc.RpcError, used: Address | None = None) -> StrataError:
        """The Strata error of a failed call to an address, by default the one in use."""
        used = used or self.address
        assert isinstance(error, grpc.Call), "every failed call has a status"
        status, details = error.code(), error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        code, hint = _text(trailers.get("strata-code")), _text(trailers.get("strata-hint"))
        if status is grpc.StatusCode.UNAVAILABLE and code in ("", NotLeading.code):
            self._use_next(used)
        if not code and status is grpc.StatusCode.UNAVAILABLE:
            return Unavailable(
                f"the coordinator at {used.target} cannot be reached: {details}",
                hint=(self.encrypted and self._tls.advice(details)) or UNREACHABLE_HINT,
            )
        return error_of(code, status.name, details or status.name.lower(), hint)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until a coordinator can be reached."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            wait_s = min(left_s, READY_S) if len(self._addresses) > 1 else left_s
            used = self.address
            ready = grpc.channel_ready_future(self._channel_to(used))
            try:
                ready.result(timeout=wait_s)
                return
            except grpc.FutureTimeoutError:
                if time.monotonic() < deadline_s:
                    self._use_next(used)
                    continue
            finally:
                ready.cancel()
            raise Unavailable(
                f"the coordinator at {used.target} cannot be reached", hint=UNREACHABLE_HINT
            )

    def close(self) -> None:
        """Close the channels and end every call."""
        for channel in self._channels:
            channel.close()


def options_for(addresses: int) -> list[tuple[str, int]]:
    """The options of a channel to one of several addresses."""
    return list((dict(OPTIONS) | (SOONER if addresses > 1 else {})).items())


def apart(act: Callable[[], Result]) -> Result:
    """Call `act`; if this is the main thread, in another thread.

    Ctrl-C raises `KeyboardInterrupt` anywhere in the main thread. Inside gRPC that can leave a lock
    of the channel held, and then every other call blocks.
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
    """A message with these fields; raises `InvalidArgument` for a value of the wrong type."""
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
            hint="use Unicode strings, and whole numbers of at most 64 bits",
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
    """The error with a stable code, or else with a gRPC status."""
    return (BY_CODE.get(code) or BY_STATUS.get(status) or StrataError)(message, hint=hint)


def delays_s(first_s: float = 0.05, limit_s: float = 5.0) -> Iterator[float]:
    """Seconds to wait before each retry: growing, with jitter."""
    delay_s = first_s
    while True:
        yield delay_s * random.uniform(0.5, 1.0)
        delay_s = min(delay_s * 2, limit_s)


def persist(attempt: Callable[[float], Result], timeout_s: float) -> Result:
    """Retry for up to `timeout_s` while the coordinator cannot be reached.

    Each attempt gets the seconds that it may take.
    """
    deadline_s = time.monotonic() + timeout_s
    for delay_s in delays_s(limit_s=1.0):
        try:
            return attempt(min(max(deadline_s - time.monotonic(), 1.0), CALL_TIMEOUT_S))
        except TRANSIENT:
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
    """Retry while the coordinator is unreachable; `require_usable` raises to end that."""
    began_s = say_at_s = time.monotonic()
    for delay_s in delays_s(0.1):
        require_usable()
        try:
            return attempt(CALL_TIMEOUT_S)
        except TRANSIENT as error:
            now_s = time.monotonic()
            if now_s >= say_at_s:
                say_at_s = now_s + LOG_INTERVAL_S
                log.warning("still waiting for %s after %.0f s: %s", what, now_s - began_s, error)
        pause(delay_s)
    raise AssertionError("the delays never end")


INERT = "this process was forked from the one that joined the run and cannot use its session"
INERT_HINT = "use the run in the parent only; a child that trains calls strata.join after the fork"


class Forkable(Protocol):
    """An object that a forked child must not use."""

    def became_child(self) -> None:
        """Disable the object; called in the child, in its only thread."""


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def register(thing: Forkable) -> None:
    """Call `thing.became_child` in every forked child."""
    _registered.add(thing)


def _after_fork() -> None:
    for thing in list(_registered):
        thing.became_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


BACKLOG = 1_024


class MeetingPlace:
    """A listening socket on the interface that leads to the coordinator."""

    def __init__(self, coordinator: Address) -> None:
        host = own_host(coordinator.host, coordinator.port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self.address = f"{host}:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Close the socket: no more connections are accepted."""
        self.listener.close()


def own_host(towards: str, port: int) -> str:
    """This host's address on the route to another host; sends no packet."""
    family, kind, protocol, _, place = socket.getaddrinfo(towards, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        host: str = probe.getsockname()[0]
        return host
