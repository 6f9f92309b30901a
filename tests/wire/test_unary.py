"""Unary calls with real clients: answers, statuses, metadata, deadlines, limits."""

import asyncio
import threading

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from strata.errors import Fenced, LimitExceeded
from strata.wire.grpc.grpc_call import RpcError, frame
from strata.wire.http2.hpack import Status
from tests.wire.harness import bytes_value, text, unary, wait_until

CODE = grpc.StatusCode


def refused(call, *arguments, **options) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value


def test_handler_may_be_a_function(server):
    server.unary("Greet", lambda request, call: text(f"hello {request.value}"))
    with server.channel() as channel:
        greet = unary(channel, "Greet")
        assert [greet(text(name)).value for name in ("a", "b")] == ["hello a", "hello b"]


def test_handler_may_be_a_coroutine(server):
    async def greet(request, call):
        await asyncio.sleep(0)
        return text(f"hello {request.value}")

    server.unary("Greet", greet)
    with server.channel() as channel:
        assert unary(channel, "Greet")(text("c")).value == "hello c"


def test_shared_future_is_not_cancelled_by_one_call(server):
    shared = server.on_loop(lambda: asyncio.get_running_loop().create_future())
    waiting = []

    def wait(request, call):
        waiting.append(call)
        return shared

    server.unary("Wait", wait)
    with server.channel() as channel:
        first, second = (unary(channel, "Wait").future(text("")) for _ in range(2))
        wait_until(lambda: len(waiting) == 2)
        first.cancel()
        wait_until(lambda: any(call.closed for call in waiting))
        server.on_loop(shared.set_result, text("released"))
        assert second.result().value == "released"


def test_many_calls_at_once(server):
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        calls = [unary(channel, "Echo").future(text(str(number))) for number in range(500)]
        assert [call.result().value for call in calls] == [str(number) for number in range(500)]


def test_grpc_aio_client(server):
    server.unary("Echo", lambda request, call: request)

    async def talk():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            echo = unary(channel, "Echo")
            return [(await echo(text(str(number)))).value for number in range(20)]

    assert asyncio.run(talk()) == [str(number) for number in range(20)]


def test_strata_error_becomes_its_status_and_code(server):
    def handler(request, call):
        raise Fenced("incarnation 3 is over", hint="join again")

    server.unary("Do", handler)
    with server.channel() as channel:
        error = refused(unary(channel, "Do"), text(""))
    assert error.code() is CODE.FAILED_PRECONDITION
    assert error.details() == "incarnation 3 is over (join again)"
    assert ("strata-code", "fenced") in error.trailing_metadata()


def test_messages_of_errors_keep_any_character(server):
    def handler(request, call):
        raise RpcError(Status.NOT_FOUND, "100 % größer\n→ ?")

    server.unary("Do", handler)
    with server.channel() as channel:
        error = refused(unary(channel, "Do"), text(""))
    assert (error.code(), error.details()) == (CODE.NOT_FOUND, "100 % größer\n→ ?")


@pytest.mark.parametrize("late", [False, True])
def test_unexpected_exception_is_logged_and_hidden(server, caplog, late):
    def plain(request, call):
        raise ZeroDivisionError("secret detail")

    async def later(request, call):
        raise ZeroDivisionError("secret detail")

    server.unary("Do", later if late else plain)
    with server.channel() as channel:
        error = refused(unary(channel, "Do"), text(""))
    assert (error.code(), error.details()) == (CODE.INTERNAL, "internal error")
    assert "secret detail" in caplog.text


def test_unencodable_response_is_internal(server):
    server.unary("Do", lambda request, call: "not a message")
    with server.channel() as channel:
        assert refused(unary(channel, "Do"), text("")).code() is CODE.INTERNAL


def test_unknown_method_is_unimplemented(server):
    with server.channel() as channel:
        assert refused(unary(channel, "Nothing"), text("")).code() is CODE.UNIMPLEMENTED


def test_undecodable_request_is_invalid_argument(server):
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        assert refused(channel.unary_unary("/test.Test/Echo"), b"\xff").code() is (
            CODE.INVALID_ARGUMENT
        )


def test_decoder_may_raise_its_own_error(server):
    def decode(payload):
        raise LimitExceeded("a name has at most 64 characters")

    server.server.unary("/test.Test/Name", decode, bytes, lambda request, call: b"")
    with server.channel() as channel:
        error = refused(channel.unary_unary("/test.Test/Name"), b"")
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    assert error.details() == "a name has at most 64 characters"


@pytest.mark.parametrize("count", [0, 2])
def test_unary_method_takes_exactly_one_request(server, count):
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        call = channel.stream_unary("/test.Test/Echo")
        assert refused(call, iter([b""] * count)).code() is CODE.UNIMPLEMENTED


def test_metadata_travels_both_ways(server):
    seen = {}

    def handler(request, call):
        seen.update(call.metadata, peer=call.peer)
        call.trailing_metadata = [("answer", "42"), ("raw-bin", b"\x00\xff")]
        return request

    server.unary("Echo", handler)
    with server.channel() as channel:
        sent = [("token", "abc"), ("twice", "1"), ("twice", "2"), ("key-bin", b"\x01\xfe\x80")]
        _, call = unary(channel, "Echo").with_call(text(""), metadata=sent)
        trailers = dict(call.trailing_metadata())
    assert (seen["token"], seen["twice"], seen["key-bin"]) == ("abc", "1,2", b"\x01\xfe\x80")
    assert seen["peer"].startswith("ipv4:127.0.0.1:")
    assert "grpc-accept-encoding" not in seen
    assert (trailers["answer"], trailers["raw-bin"]) == ("42", b"\x00\xff")


def test_changing_metadata_is_never_mixed_up(server):
    server.unary("Who", lambda request, call: text(call.metadata["who"]))
    with server.channel() as channel:
        who = unary(channel, "Who")
        names = [f"client {number % 90}" for number in range(300)]
        assert [who(text(""), metadata=[("who", name)]).value for name in names] == names


def test_deadline_ends_the_call_on_both_sides(server):
    cancelled = threading.Event()
    deadlines = []

    async def never(request, call):
        deadlines.append(call.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server.unary("Never", never)
    with server.channel() as channel:
        error = refused(unary(channel, "Never"), text(""), timeout=0.2)
    assert error.code() is CODE.DEADLINE_EXCEEDED
    assert cancelled.wait(5)
    assert 0 < deadlines[0] <= 0.25


def test_call_without_deadline(server):
    server.unary("Deadline", lambda request, call: text(str(call.deadline)))
    with server.channel() as channel:
        assert unary(channel, "Deadline")(text("")).value == "None"


def test_cancelled_call_cancels_its_coroutine(server):
    started, cancelled = threading.Event(), threading.Event()

    async def never(request, call):
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server.unary("Never", never)
    with server.channel() as channel:
        call = unary(channel, "Never").future(text(""))
        assert started.wait(5)
        call.cancel()
        assert cancelled.wait(5)


def test_gzip_request_is_decompressed(server):
    server.unary("Length", lambda request, call: text(str(len(request.value))))
    with server.channel() as channel:
        length = unary(channel, "Length")
        answer = length(text("x" * 100_000), compression=grpc.Compression.Gzip)
    assert answer.value == "100000"


def test_decompressed_message_size_is_limited(start):
    server = start(max_message_bytes=100_000)
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        error = refused(
            unary(channel, "Echo"), text("x" * 200_000), compression=grpc.Compression.Gzip
        )
    assert error.code() is CODE.RESOURCE_EXHAUSTED


def test_other_compression_is_unimplemented(server):
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        error = refused(
            unary(channel, "Echo"), text("x" * 9_000), compression=grpc.Compression.Deflate
        )
    assert error.code() is CODE.UNIMPLEMENTED


def test_message_above_the_limit_is_refused_and_connection_stays(start):
    server = start(max_message_bytes=1_000)
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        echo = unary(channel, "Echo")
        assert refused(echo, text("x" * 1_001)).code() is CODE.RESOURCE_EXHAUSTED
        assert echo(text("x" * 900)).value == "x" * 900
        assert server.connection_count == 1


def test_megabytes_travel_both_ways(start):
    server = start(max_message_bytes=20_000_000)
    server.unary("Echo", lambda request, call: request, BytesValue)
    unlimited = {"max_receive_message_length": -1, "max_send_message_length": -1}
    with server.channel(**unlimited) as channel:
        message = BytesValue(value=bytes(range(256)) * 40_000)
        assert unary(channel, "Echo", BytesValue)(message) == message


def test_many_large_answers_to_one_client_share_its_windows(server):
    server.unary("Large", lambda request, call: bytes_value(1_000_000), BytesValue)
    with server.channel(http2_bdp_probe=0) as channel:
        calls = [unary(channel, "Large", BytesValue).future(bytes_value(0)) for _ in range(20)]
        assert [len(call.result().value) for call in calls] == [1_000_000] * 20


def test_authorize_sees_the_metadata_and_may_refuse(start):
    def authorize(head, caller):
        if head.metadata.get("authorization") != "Bearer right":
            raise RpcError(Status.UNAUTHENTICATED, "no valid token")

    server = start(authorize=authorize)
    server.unary("Echo", lambda request, call: request)
    with server.channel() as channel:
        echo = unary(channel, "Echo")
        right, wrong = (("authorization", f"Bearer {token}") for token in ("right", "wrong"))
        assert refused(echo, text("")).code() is CODE.UNAUTHENTICATED
        assert refused(echo, text(""), metadata=[wrong]).code() is CODE.UNAUTHENTICATED
        assert echo(text("in"), metadata=[right]).value == "in"
        unknown = unary(channel, "Nothing")
        assert refused(unknown, text("")).code() is CODE.UNAUTHENTICATED


def test_framed_message_matches_grpc_framing():
    assert frame(b"abc") == b"\x00\x00\x00\x00\x03abc"
