"""Many gRPC clients in one light process: bare sockets, one epoll, frames made in advance.

A thousand channels of a gRPC library would measure the library. Here a client is a socket and the
number of its newest stream; received bytes are cut into frames, and decoded after the measurement.
Received header blocks are not decoded.

By default each client has its own connection, as a worker has. With `per_connection` several
clients share one, each with its own stream.
"""

import select
import socket
import time

from strata.wire.grpc.grpc_call import frame
from strata.wire.http2.hpack import encode_fields
from strata.wire.http2.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_WINDOW_BYTES,
    PING,
    PREFACE,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
)

RECEIVE_BYTES = 1 << 20


def frames(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """The bytes of one HTTP/2 frame."""
    size = len(payload)
    return FRAME_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


GREETING = (
    PREFACE
    + frames(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, MAX_WINDOW_BYTES))
    + frames(WINDOW_UPDATE, 0, 0, (MAX_WINDOW_BYTES - 65_535).to_bytes(4, "big"))
)


def head(path: str) -> bytes:
    """The header block of a call."""
    return encode_fields(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )


class Connection:
    """A socket, and the bytes of a frame that has not arrived completely."""

    __slots__ = ("index", "last_stream", "rest", "socket")

    def __init__(self, port: int, index: int) -> None:
        self.index = index
        self.last_stream = -1
        self.rest = b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(GREETING)

    def next_stream(self) -> int:
        self.last_stream += 2
        return self.last_stream


class Swarm:
    """Clients by number. `taken` has the received frames: (connection, stream, bytes)."""

    def __init__(self, port: int, clients: int, per_connection: int = 1) -> None:
        self.clients = clients
        self.taken: list[tuple[int, int, bytes]] = []
        self.ended = 0
        self._per = per_connection
        self._epoll = select.epoll()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._by_fd: dict[int, Connection] = {}
        self._connections = [
            Connection(port, index) for index in range(-(-clients // per_connection))
        ]
        for each in self._connections:
            self._by_fd[each.socket.fileno()] = each
            self._epoll.register(each.socket, select.EPOLLIN)

    def of(self, client: int) -> Connection:
        """The connection of a client."""
        return self._connections[client // self._per]

    def open(self, client: int, path_head: bytes) -> int:
        """Open a stream; returns its number."""
        connection = self.of(client)
        stream = connection.next_stream()
        connection.socket.sendall(frames(HEADERS, END_HEADERS, stream, path_head))
        return stream

    def call(self, client: int, path_head: bytes, message: bytes) -> tuple[int, bytes]:
        """The frames of a unary call, to be sent, and the number of its stream."""
        stream = self.of(client).next_stream()
        request = frames(HEADERS, END_HEADERS, stream, path_head)
        return stream, request + frames(DATA, END_STREAM, stream, frame(message))

    def send(self, client: int, data: bytes) -> None:
        """Send frames."""
        self._connections[client // self._per].socket.sendall(data)

    def receive(self, messages: int = 0, ends: int = 0, timeout_s: float = 60.0) -> float:
        """Read until `taken` has this many DATA frames and this many more streams have ended;
        returns the time of the last one."""
        until = messages
        ends += self.ended
        deadline = time.perf_counter() + timeout_s
        while len(self.taken) < until or self.ended < ends:
            self._once(max(deadline - time.perf_counter(), 0.0))
            if time.perf_counter() >= deadline:
                got = f"{len(self.taken)} of {until} messages, {self.ended} of {ends} ends"
                raise TimeoutError(f"only {got} within {timeout_s:g} s")
        return time.perf_counter()

    def settle(self, quiet_s: float = 0.3) -> None:
        """Read until nothing more arrives."""
        while self._once(quiet_s):
            pass

    def answer_pings(self, seconds: float) -> None:
        """Read for a while."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            self._once(left)

    def _once(self, timeout_s: float) -> bool:
        ready = self._epoll.poll(timeout_s)
        for fd, _ in ready:
            connection = self._by_fd[fd]
            size = connection.socket.recv_into(self._buffer)
            if not size:
                raise ConnectionError(f"connection {connection.index} was closed by the server")
            data = bytes(self._buffer[:size])
            self._take(connection, connection.rest + data if connection.rest else data)
        return bool(ready)

    def _take(self, connection: Connection, data: bytes) -> None:
        position, end = 0, len(data)
        while end - position >= FRAME_HEADER_BYTES:
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(data, position)
            start = position + FRAME_HEADER_BYTES
            stop = start + (high << 16 | low)
            if stop > end:
                break
            position = stop
            if kind == DATA:
                if stop > start:
                    self.taken.append((connection.index, stream, data[start:stop]))
                self.ended += flags & END_STREAM
            elif kind == HEADERS:
                self.ended += flags & END_STREAM
            elif kind in (PING, SETTINGS) and not flags & ACK:
                payload = data[start:stop] if kind == PING else b""
                connection.socket.sendall(frames(kind, ACK, 0, payload))
        connection.rest = data[position:]

    def close(self) -> None:
        for each in self._connections:
            each.socket.close()
        self._epoll.close()
