"""The bytes of a gRPC connection: a peer that breaks the protocol ends its own connection only."""

import asyncio
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from hpack import Encoder

from strata.coordinator.sessions.unary_calls import decoder
from strata.wire.grpc.grpc_connection import TURN_BYTES, Connection
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.http2.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS
from tests.wire.harness import GREETING, frame, request_fields, status_of, text

HELD_BYTES = 6 * 2**20
SENT_BYTES = 6 * 2**20


class Pipe(asyncio.Transport):
    """The server's end of a connection whose other end reads everything."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        self.sent += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Reading goes on when the server asks for it."""

    def resume_reading(self) -> None:
        """The rest of the input is read."""


class Echo:
    """Answers each message of a stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def on_message(self, message: StringValue) -> None:
        self.stream.send(message)

    def on_half_close(self) -> None:
        self.stream.finish()

    def on_close(self, reason: object) -> None:
        """Nothing is left to do."""


def seeds() -> list[bytes]:
    message = text("hello").SerializeToString()
    framed = b"\x00" + len(message).to_bytes(4, "big") + message
    found = []
    for path in ("/test.Test/Echo", "/test.Test/Talk", "/grpc.health.v1.Health/Check"):
        block = Encoder().encode(request_fields(path, ("grpc-timeout", "1S")))
        request = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, framed)
        found.append(GREETING + request)
        found.append(GREETING + frame(PING, 0, 0, bytes(8)) + request + frame(SETTINGS, 1, 0))
    return found


def check(data: bytes) -> None:
    loop = asyncio.new_event_loop()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    try:
        loop.run_until_complete(_feed(data))
    finally:
        loop.close()
    assert not failures, failures


async def _feed(data: bytes) -> None:
    server = GrpcServer(status_of=status_of)
    read, write = decoder(StringValue), StringValue.SerializeToString
    server.unary("/test.Test/Echo", read, write, lambda request, call: request, public=True)
    server.stream("/test.Test/Talk", read, write, Echo)
    pipe, connection = Pipe(), Connection(server)
    connection.connection_made(pipe)
    size = 1 + data[-1] * 16 if data else 1
    for first in range(0, len(data), min(size, TURN_BYTES)):
        piece = data[first : first + min(size, TURN_BYTES)]
        if pipe.closed:
            break
        server.read_buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        await asyncio.sleep(0)
        assert connection.measure() <= HELD_BYTES, "it holds too much for one connection"
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert pipe.sent <= SENT_BYTES
