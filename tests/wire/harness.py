"""A real server on a loopback port, run by an event loop in a thread, and clients."""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import grpc
import uvloop
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hpack import Decoder, Encoder

from strata.errors import STATUS, StrataError
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.http2.hpack import Outcome, Status
from strata.wire.http2.http2_frames import (
    ACK,
    END_HEADERS,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
)

TIMEOUT_S = 20.0


def text(value: str) -> StringValue:
    return StringValue(value=value)


def status_of(error: BaseException) -> Outcome | None:
    """`status_of` as the coordinator defines it."""
    if not isinstance(error, StrataError):
        return None
    return Outcome(Status[STATUS[type(error)].grpc], str(error), [("strata-code", error.code)])


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up, "the condition never came true"
        time.sleep(0.005)


class Running:
    """A running GrpcServer; `on_loop` runs a function in its event loop."""

    def __init__(self, tls=None, new_loop=uvloop.new_event_loop, **options) -> None:
        self._loop = new_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.loop_errors: list[dict] = []
        self.server = GrpcServer(status_of=status_of, **options)
        self.port = self.wait(self.server.listen("127.0.0.1", 0, tls))

    def _on_loop_error(self, loop, context) -> None:
        self.loop_errors.append(context)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def on_loop(self, function, *arguments):
        async def run():
            return function(*arguments)

        return self.wait(run())

    def unary(self, name: str, handler, message_type=StringValue) -> None:
        encode = message_type.SerializeToString
        self.server.unary(f"/test.Test/{name}", message_type.FromString, encode, handler)

    def stream(self, name: str, handler, message_type=StringValue) -> None:
        encode = message_type.SerializeToString
        self.server.stream(f"/test.Test/{name}", message_type.FromString, encode, handler)

    def server_stream(self, name: str, handler, message_type=StringValue) -> None:
        encode = message_type.SerializeToString
        self.server.server_stream(f"/test.Test/{name}", message_type.FromString, encode, handler)

    @contextmanager
    def channel(self, **options):
        """A channel with its own connection."""
        pairs = [(f"grpc.{key}", value) for key, value in options.items()]
        pairs.append(("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", options=pairs) as channel:
            yield channel

    @property
    def connection_count(self) -> int:
        return len(self.server._connections)

    def stop(self) -> None:
        self.wait(self.server.close(grace_s=0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert self.loop_errors == []


def unary(channel, name: str, message_type=StringValue):
    encode = message_type.SerializeToString
    return channel.unary_unary(f"/test.Test/{name}", encode, message_type.FromString)


def bidirectional(channel, name: str, message_type=StringValue):
    encode = message_type.SerializeToString
    return channel.stream_stream(f"/test.Test/{name}", encode, message_type.FromString)


def server_stream(channel, name: str, message_type=StringValue):
    encode = message_type.SerializeToString
    return channel.unary_stream(f"/test.Test/{name}", encode, message_type.FromString)


class Outbox:
    """Requests of a stream, sent one by one by the test."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue = queue.SimpleQueue()

    def send(self, *messages) -> None:
        for message in messages:
            self._queue.put(message)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        message = self._queue.get()
        if message is None:
            raise StopIteration
        return message


class Recorder:
    """A listener that records its calls, for the test to wait for."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.heard: queue.SimpleQueue = queue.SimpleQueue()

    def on_message(self, message) -> None:
        self.heard.put(message.value)

    def on_half_close(self) -> None:
        self.heard.put("half-closed")

    def on_close(self, reason) -> None:
        self.heard.put(reason)

    def next(self, timeout_s: float = TIMEOUT_S):
        return self.heard.get(timeout=timeout_s)


class Recorders:
    """Creates a Recorder for each new stream."""

    def __init__(self, listener=Recorder) -> None:
        self._listener = listener
        self._made: queue.SimpleQueue = queue.SimpleQueue()

    def __call__(self, stream) -> Recorder:
        recorder = self._listener(stream)
        self._made.put(recorder)
        return recorder

    def next(self) -> Recorder:
        return self._made.get(timeout=TIMEOUT_S)


class Echo(Recorder):
    def on_message(self, message) -> None:
        self.stream.send(message)

    def on_half_close(self) -> None:
        self.stream.finish()


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def split_frames(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], bytes]:
    """Complete frames as (kind, flags, stream, payload), and the remaining bytes."""
    frames = []
    while len(data) >= FRAME_HEADER_BYTES:
        high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data)
        end = FRAME_HEADER_BYTES + (high << 16 | low)
        if len(data) < end:
            break
        frames.append((kind, flags, stream_id, data[FRAME_HEADER_BYTES:end]))
        data = data[end:]
    return frames, data


GREETING = PREFACE + frame(SETTINGS, 0, 0)


def request_fields(path: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("content-type", "application/grpc"),
        *more,
    ]


class RawClient:
    """A client that sends exactly the given frames."""

    def __init__(self, port: int, greeting: bytes = GREETING) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._rest = b""
        self._frames: list[tuple[int, int, int, bytes]] = []
        self.send(greeting)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_cut_off(self, data: bytes, times: int) -> None:
        """Send repeatedly; the server may close the connection."""
        try:
            for _ in range(times):
                self.socket.sendall(data)
        except OSError:
            pass

    def headers(self, stream_id: int, path: str, *more: tuple[str, str], flags: int = 0) -> bytes:
        block = self.encoder.encode(request_fields(path, *more))
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)

    def next_frame(self) -> tuple[int, int, int, bytes] | None:
        """The next frame, None if the server has closed."""
        while not self._frames:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames, self._rest = split_frames(self._rest + data)
        return self._frames.pop(0)

    def next_of(self, kind: int) -> tuple[int, int, int, bytes]:
        while (received := self.next_frame()) is not None:
            if received[0] == kind:
                return received
        raise AssertionError(f"closed before a frame of kind {kind}")

    def goaway_code(self) -> int | None:
        """The error code with which the server ends the connection; it must then close."""
        code = None
        while (received := self.next_frame()) is not None:
            if received[0] == GOAWAY:
                code = int.from_bytes(received[3][4:8], "big")
        return code

    def is_served(self) -> bool:
        """Whether the server still answers on this connection."""
        self.send(frame(PING, 0, 0, b"are you?"))
        while (received := self.next_frame()) is not None:
            if received[:2] == (PING, ACK) and received[3] == b"are you?":
                return True
        return False

    def close(self) -> None:
        self.socket.close()


def bytes_value(size: int) -> BytesValue:
    return BytesValue(value=bytes(size))
