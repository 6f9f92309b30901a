"""Streams: order, flow control in both directions, limits for slow readers, many at once."""

import asyncio

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from strata.errors import NotFound
from strata.wire.grpc.grpc_call import CloseReason, frame
from strata.wire.http2.hpack import Status
from strata.wire.http2.http2_frames import (
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Limits,
)
from tests.wire import harness
from tests.wire.harness import (
    Echo,
    Outbox,
    RawClient,
    Recorders,
    bidirectional,
    bytes_value,
    server_stream,
    text,
)

CODE = grpc.StatusCode
UNLIMITED = {"max_receive_message_length": -1, "max_send_message_length": -1}


def test_stream_messages_keep_their_order(server):
    listeners = Recorders(Echo)
    server.stream("Echo", listeners)
    with server.channel() as channel:
        sent = [str(number) for number in range(1_000)]
        received = bidirectional(channel, "Echo")(text(each) for each in sent)
        assert [each.value for each in received] == sent
    assert listeners.next().next() is CloseReason.FINISHED


def test_either_side_may_send_first(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        server.on_loop(listener.stream.send, text("welcome"))
        assert next(call).value == "welcome"
        outbox.send(text("thanks"))
        assert listener.next() == "thanks"
        outbox.end()
        assert listener.next() == "half-closed"
        server.on_loop(lambda: listener.stream.finish(metadata=[("count", "1")]))
        assert list(call) == []
        assert dict(call.trailing_metadata())["count"] == "1"


def test_headers_arrive_before_the_first_message(server):
    server.stream("Talk", Recorders())

    async def talk():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = bidirectional(channel, "Talk")()
            await asyncio.wait_for(call.initial_metadata(), harness.TIMEOUT_S)
            call.cancel()

    asyncio.run(talk())


def test_server_may_end_a_stream_while_the_client_sends(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        server.on_loop(lambda: listener.stream.finish(Status.ABORTED, "enough"))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        outbox.end()
    assert (caught.value.code(), caught.value.details()) == (CODE.ABORTED, "enough")
    assert listener.next() is CloseReason.FINISHED
    assert server.on_loop(listener.stream.send, text("late")) is False


def refuse(stream):
    raise NotFound("no such session")


class Fragile(harness.Recorder):
    def on_message(self, message) -> None:
        raise NotFound("no such session")


@pytest.mark.parametrize("handler", [refuse, Fragile])
def test_exception_of_a_handler_ends_the_stream_with_its_status(server, handler):
    server.stream("Talk", handler)
    with server.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        list(bidirectional(channel, "Talk")(iter([text("")])))
    assert (caught.value.code(), caught.value.details()) == (CODE.NOT_FOUND, "no such session")


def test_server_stream_from_a_coroutine(server):
    async def count(request, stream):
        for number in range(int(request.value)):
            stream.send(text(str(number)))
            await asyncio.sleep(0)

    server.server_stream("Count", count)
    with server.channel() as channel:
        received = server_stream(channel, "Count")(text("20"))
        assert [each.value for each in received] == [str(number) for number in range(20)]


def test_server_stream_ends_with_the_error_of_its_coroutine(server):
    async def count(request, stream):
        stream.send(text("one"))
        raise NotFound("no two")

    server.server_stream("Count", count)
    with server.channel() as channel:
        call = server_stream(channel, "Count")(text(""))
        assert next(call).value == "one"
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is CODE.NOT_FOUND


def test_flushed_allows_sending_more_than_the_queue_limit(start):
    server = start(max_outgoing_bytes=100_000)

    async def pour(request, stream):
        for _ in range(60):
            stream.send(bytes_value(100_000))
            await stream.flushed()

    server.server_stream("Pour", pour, BytesValue)
    with server.channel(http2_bdp_probe=0) as channel:
        received = server_stream(channel, "Pour", BytesValue)(bytes_value(0))
        assert sum(len(each.value) for each in received) == 6_000_000


def test_large_messages_cross_small_windows_in_both_directions(start):
    windows = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535)
    server = start(max_message_bytes=20_000_000, limits=windows)
    server.stream("Echo", Echo, BytesValue)
    with server.channel(http2_bdp_probe=0, **UNLIMITED) as channel:
        message = BytesValue(value=bytes(range(256)) * 24_000)
        received = list(bidirectional(channel, "Echo", BytesValue)(iter([message] * 3)))
        assert received == [message] * 3


def tiny_window_client(port: int) -> RawClient:
    """A client with a window of ten bytes per stream that never grows."""
    settings = harness.frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 10))
    return RawClient(port, PREFACE + settings)


def test_stream_of_a_client_that_does_not_read_ends(start):
    limit = 1_000_000
    server = start(max_outgoing_bytes=limit)
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = tiny_window_client(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    listener = listeners.next()
    connection = listener.stream._connection

    def flood() -> int:
        peak = 0
        for _ in range(200):
            listener.stream.send(text("x" * 50_000))
            peak = max(peak, connection.http2.waiting_bytes)
        return peak

    assert server.on_loop(flood) < limit + 60_000
    assert listener.next() is CloseReason.PEER_SLOW
    assert connection.http2.waiting_bytes == 0
    assert client.is_served()
    client.close()


def test_slow_grpcio_reader_gets_resource_exhausted(start):
    server = start(max_outgoing_bytes=1_000_000)
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel(http2_bdp_probe=0) as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        while server.on_loop(listener.stream.send, text("x" * 500_000)):
            pass
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        outbox.end()
    assert caught.value.code() is CODE.RESOURCE_EXHAUSTED


def test_queued_bytes_of_a_connection_are_bounded(start):
    server = start(max_outgoing_bytes=1_000_000, max_buffered_bytes=2_000_000)
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = tiny_window_client(server.port)
    opened = []
    for number in range(10):
        client.send(client.headers(2 * number + 1, "/test.Test/Talk"))
        opened.append(listeners.next())
    connection = opened[0].stream._connection

    def flood() -> None:
        for _ in range(20):
            for listener in opened:
                listener.stream.send(text("x" * 50_000))
                assert connection.http2.waiting_bytes < 2_060_000

    server.on_loop(flood)
    reasons = {listener.heard.get_nowait() for listener in opened if not listener.heard.empty()}
    assert reasons == {CloseReason.PEER_SLOW}
    client.close()


def test_unread_unary_answers_are_bounded(start):
    server = start(max_buffered_bytes=2_000_000)
    server.unary("Large", lambda request, call: text("x" * 500_000))
    client = tiny_window_client(server.port)
    for stream_id in range(1, 21, 2):
        message = harness.frame(DATA, END_STREAM, stream_id, b"\0\0\0\0\0")
        client.send(client.headers(stream_id, "/test.Test/Large") + message)
    statuses = []
    while len(statuses) < 5:
        fields = dict(client.decoder.decode(client.next_of(HEADERS)[3]))
        statuses += [fields["grpc-status"]] if "grpc-status" in fields else []
    assert set(statuses) == {str(int(Status.RESOURCE_EXHAUSTED))}
    client.close()


def test_unsent_bytes_of_a_blocked_socket_are_bounded(start):
    """Its windows are large, so only the socket limits it."""
    limit = 1_000_000
    server = start(max_outgoing_bytes=limit)
    listeners = Recorders()
    server.stream("Talk", listeners)
    settings = harness.frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 2**31 - 1))
    window = harness.frame(WINDOW_UPDATE, 0, 0, (2**31 - 70_000).to_bytes(4, "big"))
    client = RawClient(server.port, PREFACE + settings + window)
    client.send(client.headers(1, "/test.Test/Talk"))
    listener = listeners.next()
    connection = listener.stream._connection
    while server.on_loop(listener.stream.send, text("x" * 50_000)):
        held = connection.http2.waiting_bytes + connection.transport.get_write_buffer_size()
        assert held < 2 * limit
    assert listener.next() is CloseReason.PEER_SLOW
    client.close()


def test_incomplete_messages_of_a_connection_are_bounded(start):
    server = start(max_message_bytes=1_000_000, max_buffered_bytes=1_500_000)
    server.unary("Echo", lambda request, call: request)
    client = RawClient(server.port)
    for stream_id in range(1, 9, 2):
        client.send(client.headers(stream_id, "/test.Test/Echo"))
        prefix = b"\0" + (1_000_000).to_bytes(4, "big")
        client.send(harness.frame(DATA, 0, stream_id, prefix))
        client.send(harness.frame(DATA, 0, stream_id, bytes(16_000)) * 50)
    trailers = dict(client.decoder.decode(client.next_of(HEADERS)[3]))
    assert trailers["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED))
    assert client.is_served()
    client.close()


def test_broadcast_to_a_thousand_streams(server):
    listeners = Recorders()
    server.stream("Wait", listeners)

    def release() -> None:
        opened = [listeners.next() for _ in range(1_000)]
        assert {listener.next() for listener in opened} == {"here"}
        message = frame(StringValue.SerializeToString(text("go")))
        server.on_loop(lambda: [listener.stream.send_raw(message) for listener in opened])

    async def wait(channel) -> str:
        call = bidirectional(channel, "Wait")()
        await call.write(text("here"))
        message = await call.read()
        call.cancel()
        return message.value

    async def main() -> list[str]:
        target, own = f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(target, options=own) for _ in range(10)]
        released = asyncio.get_running_loop().run_in_executor(None, release)
        values = await asyncio.gather(*(wait(channels[n % 10]) for n in range(1_000)))
        await released
        for channel in channels:
            await channel.close()
        return values

    assert asyncio.run(main()) == ["go"] * 1_000


def test_messages_of_one_turn_are_one_write(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    with server.channel() as channel:
        outboxes = [Outbox() for _ in range(5)]
        calls = [bidirectional(channel, "Talk")(outbox) for outbox in outboxes]
        opened = [listeners.next() for _ in calls]
        connection = opened[0].stream._connection

        def send_all() -> tuple[int, int]:
            connection.flush()
            for listener in opened:
                for number in range(10):
                    listener.stream.send(text(str(number)))
            gathered = b"".join(connection.http2.outgoing)
            return len(harness.split_frames(gathered)[0]), server.server._awake.count(connection)

        assert server.on_loop(send_all) == (50, 1)
        for call in calls:
            assert [next(call).value for _ in range(10)] == [str(number) for number in range(10)]
            call.cancel()
        for outbox in outboxes:
            outbox.end()
