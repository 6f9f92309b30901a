"""CPU cost of the gRPC server, compared with grpc.aio in the same run. Prints JSON.

- CPU of the server process per unary call and per message of a bidirectional stream, echoing a
  small message; the server reports its own process time. The load is a grpcio client, with 32 calls
  in flight or one at a time. Median of the rounds.
- Broadcast: one message to 1,000 streams on 1,000 connections, from the first `send_raw` to the
  last receipt, on one clock. The receivers are bare sockets, since a thousand grpcio channels would
  measure the client.
"""

import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import grpc
import uvloop
from common import show, spread
from google.protobuf.wrappers_pb2 import StringValue
from swarm import Swarm, head

from strata.wire.grpc.grpc_call import CloseReason, frame
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.grpc.grpc_stream import GrpcStream

ROUNDS = 5
UNARY_CALLS = 960
STREAM_MESSAGES = 1_920
IN_FLIGHT = 32
STREAMS = 1_000
BROADCASTS = 15

ECHO, CHAT, CPU = "/bench.Wire/Echo", "/bench.Wire/Chat", "/bench.Wire/Cpu"
JOIN, FIRE = "/bench.Wire/Join", "/bench.Wire/Fire"
decode, encode = StringValue.FromString, StringValue.SerializeToString


class Chat:
    def __init__(self, stream: GrpcStream[StringValue, StringValue]) -> None:
        self.stream = stream

    def on_message(self, message: StringValue) -> None:
        self.stream.send(message)

    def on_half_close(self) -> None:
        self.stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        pass


class Crowd:
    """Streams that wait for a broadcast."""

    def __init__(self) -> None:
        self.streams: list[GrpcStream[StringValue, StringValue]] = []

    def join(self, stream: GrpcStream[StringValue, StringValue]) -> Chat:
        self.streams.append(stream)
        return Chat(stream)

    def fire(self, request: StringValue, context: object) -> StringValue:
        started = time.perf_counter()
        message = frame(encode(request))
        for stream in self.streams:
            stream.send_raw(message)
        return StringValue(value=repr(started))


def cpu(request: StringValue, context: object) -> StringValue:
    return StringValue(value=repr(time.process_time()))


def serve_front(pipe: Connection) -> None:
    async def main() -> None:
        server, crowd = GrpcServer(), Crowd()
        server.unary(ECHO, decode, encode, lambda request, context: request)
        server.unary(CPU, decode, encode, cpu)
        server.stream(CHAT, decode, encode, Chat)
        server.stream(JOIN, decode, encode, crowd.join)
        server.unary(FIRE, decode, encode, crowd.fire)
        pipe.send(await server.listen("127.0.0.1", 0))
        await asyncio.Event().wait()

    uvloop.run(main())


def serve_stock(pipe: Connection) -> None:
    async def echo(request, context):
        return request

    async def chat(requests, context):
        async for request in requests:
            yield request

    async def report(request, context):
        return cpu(request, context)

    async def main() -> None:
        server = grpc.aio.server()
        methods = {
            "Echo": grpc.unary_unary_rpc_method_handler(echo, decode, encode),
            "Cpu": grpc.unary_unary_rpc_method_handler(report, decode, encode),
            "Chat": grpc.stream_stream_rpc_method_handler(chat, decode, encode),
        }
        handler = grpc.method_handlers_generic_handler("bench.Wire", methods)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(port)
        await server.wait_for_termination()

    asyncio.run(main())


async def cost_us(channel: grpc.aio.Channel, load, count: int) -> float:
    """Median CPU of the server per item of `load`."""
    report = channel.unary_unary(CPU, encode, decode)

    async def cpu_s() -> float:
        return float((await report(StringValue())).value)

    await load(count // 5)
    costs = []
    for _ in range(ROUNDS):
        before = await cpu_s()
        await load(count)
        costs.append((await cpu_s() - before) / count * 1e6)
    return round(statistics.median(costs), 1)


async def measure_costs(port: int) -> dict[str, float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo = channel.unary_unary(ECHO, encode, decode)
        chat = channel.stream_stream(CHAT, encode, decode)
        message = StringValue(value="x" * 32)

        async def call(count: int) -> None:
            for _ in range(count):
                await echo(message)

        async def calls(count: int) -> None:
            await asyncio.gather(*(call(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))

        async def messages(count: int) -> None:
            stream = chat()
            for _ in range(0, count, IN_FLIGHT):
                for _ in range(IN_FLIGHT):
                    await stream.write(message)
                for _ in range(IN_FLIGHT):
                    await stream.read()
            stream.cancel()

        return {
            "unary_cpu_us": await cost_us(channel, calls, UNARY_CALLS),
            "unary_one_at_a_time_cpu_us": await cost_us(channel, call, UNARY_CALLS),
            "stream_message_cpu_us": await cost_us(channel, messages, STREAM_MESSAGES),
        }


def measure_broadcast(port: int) -> dict[str, object]:
    """Seconds from the first send on the server to the last receipt, on one clock."""
    swarm = Swarm(port, STREAMS)
    for client in range(STREAMS):
        swarm.open(client, head(JOIN))
    swarm.settle(0.5)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        fire = channel.unary_unary(FIRE, encode, decode)
        times = []
        for _ in range(BROADCASTS):
            swarm.taken.clear()
            answer = fire.future(StringValue(value="go"))
            last = swarm.receive(messages=STREAMS, timeout_s=10.0)
            times.append(last - float(answer.result().value))
    swarm.close()
    return {"broadcast_1000_ms": spread(times, 1e3, 1)}


def main() -> None:
    results: dict[str, dict[str, object]] = {}
    context = multiprocessing.get_context("spawn")
    for name, serve in (("strata", serve_front), ("grpc_aio", serve_stock)):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        port = ours.recv()
        results[name] = asyncio.run(measure_costs(port))
        if serve is serve_front:
            results[name] |= measure_broadcast(port)
        process.kill()
        process.join()
    show("wire", {"rounds": ROUNDS, **results})


if __name__ == "__main__":
    main()
