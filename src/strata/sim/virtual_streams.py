"""Calls and streams to the simulated coordinator: the real handlers, without sockets.

A `Line` is a process's side of one stream; a `VirtualStream` is the coordinator's. They carry
encoded messages in order, so a message that is changed after sending arrives as it was sent.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import Message
from msgspec import Struct

from strata.errors import StrataError
from strata.sdk.session.channel import error_of
from strata.sim.virtual_time import Network
from strata.wire.grpc.grpc_call import PREFIX_BYTES, Call, CloseReason, Method
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.grpc.grpc_stream import GrpcStream
from strata.wire.http2.hpack import Outcome
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.virtual_loop import VirtualLoop


class Peer(Protocol):
    """A process that holds a stream."""

    host: str
    name: str

    def hear(self, line: "Line", payload: bytes) -> None:
        """A message of the coordinator arrives."""

    def hung_up(self, line: "Line") -> None:
        """The stream has ended, or the connection broke."""


class Line:
    """A process's side of one stream; `incarnation` is what it claims to be."""

    def __init__(self, network: Network, peer: Peer, path: str, incarnation: int) -> None:
        self.network = network
        self.peer = peer
        self.path = path
        self.incarnation = incarnation
        self.stream: VirtualStream | None = None

    def deliver(self, payload: bytes) -> None:
        """Bring a message of the coordinator to the process."""
        self.peer.hear(self, payload)

    def hang_up(self) -> None:
        """Tell the process that the stream has ended, after everything sent before."""
        self.network.send(self.peer.host, False, self.peer.hung_up, self)


class VirtualStream(GrpcStream[Any, Any]):
    """The coordinator's side of a line.

    `on_send` sees each message before it leaves; `on_defect` gets unexpected errors.
    """

    __slots__ = ("_line", "_loop", "_on_defect", "_on_send", "_server")

    def __init__(
        self,
        server: GrpcServer,
        loop: "VirtualLoop",
        line: Line,
        on_send: Callable[[Line, Message], None],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self.closed = False
        self.identity = None
        self.trailing_metadata = ()
        self._server = server
        self._loop = loop
        self._line = line
        self._on_send = on_send
        self._on_defect = on_defect
        self._method = server.methods[line.path]
        self._listener = self._method.handler(self)

    @property
    def peer(self) -> str:
        """The address of the process, as gRPC writes it."""
        return address_of(self._line.peer.host)

    def take(self, payload: bytes) -> None:
        """Take a message."""
        if not self.closed:
            self._on_message(self._method.decode(payload))

    def send(self, message: Message) -> bool:
        """Send a message; False if the stream has ended."""
        return self._deliver(message, self._method.encode(message))

    def send_raw(self, framed: bytes) -> bool:
        """Send a message that is encoded already."""
        payload = framed[PREFIX_BYTES:]
        return self._deliver(pb.CoordinatorMessage.FromString(payload), payload)

    def _deliver(self, message: Message, payload: bytes) -> bool:
        if self.closed or not self._loop.alive:
            return False
        self._on_send(self._line, message)
        line = self._line
        line.network.send(line.peer.host, False, line.deliver, payload)
        return True

    def fail(self, error: BaseException) -> None:
        """End the stream with the gRPC status of `error`."""
        if not isinstance(error, StrataError):
            self._on_defect(error)
        self._end(self._server.outcome_of(error, self._line.path), CloseReason.FAILED)

    def lose(self) -> None:
        """Break the connection: the handler is error_of, the process is not."""
        self._close(CloseReason.CONNECTION_LOST)

    def _end(self, outcome: Outcome, reason: CloseReason) -> None:
        if not self.closed:
            self._line.hang_up()
            self._close(reason)

    def _close(self, reason: CloseReason) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self._tell_closed, reason)


class VirtualCall(Call[Any, Any]):
    """A unary call, as its handler sees it."""

    __slots__ = ("_host",)

    def __init__(self, host: str) -> None:
        self._host = host
        self.closed = False
        self.identity = None
        self.deadline = None
        self.trailing_metadata = ()

    @property
    def peer(self) -> str:
        """The address of the caller, as gRPC writes it."""
        return address_of(self._host)


class Reply(Struct):
    """The result of a unary call: an encoded answer, or a refusal."""

    payload: bytes = b""
    error: StrataError | None = None


async def answer(server: GrpcServer, method: Method, path: str, host: str, payload: bytes) -> Reply:
    """Run the handler of a unary call to its end."""
    try:
        result = method.handler(method.decode(payload), VirtualCall(host))
        if hasattr(type(result), "__await__"):
            result = await result
        return Reply(method.encode(result))
    except StrataError as error:
        return Reply(error=caller_error(server.outcome_of(error, path)))


def caller_error(outcome: Outcome) -> StrataError:
    """The error that a caller derives from the result of its call."""
    metadata = {name: str(value) for name, value in outcome.metadata}
    code, hint = metadata.get("strata-code", ""), metadata.get("strata-hint", "")
    return error_of(code, outcome.status.name, outcome.message, hint)


def address_of(host: str) -> str:
    """A host's address, as gRPC writes it."""
    return f"ipv4:{host}:40000"
