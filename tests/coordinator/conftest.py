"""A real coordinator in a thread, for tests that use it as clients."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import grpc
import pytest
import uvloop

from strata.config import Settings
from strata.coordinator.server import Running, running
from strata.coordinator.sessions.unary_calls import SERVICE
from strata.wire.v1 import coordinator_pb2 as pb

TIMEOUT_S = 30.0
ANSWERS = {
    "RegisterWorker": pb.RegisterWorkerResponse,
    "DeregisterWorker": pb.DeregisterWorkerResponse,
    "Heartbeat": pb.HeartbeatResponse,
    "RegisterDataset": pb.RegisterDatasetResponse,
    "GetDataShard": pb.DataShard,
    "GetDataShards": pb.GetDataShardsResponse,
    "AdvanceEpoch": pb.AdvanceEpochResponse,
    "NotifyCheckpoint": pb.CheckpointAck,
    "GetLatestCheckpoint": pb.RecoveryResponse,
    "WaitBarrier": pb.WaitBarrierResponse,
}


class Client:
    """Calls by name: `client.Heartbeat(pb.HeartbeatRequest(...))`."""

    def __init__(self, coordinator: Running):
        self.coordinator = coordinator
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{coordinator.grpc_port}", options)

    def __getattr__(self, name: str):
        if name not in ANSWERS:
            raise AttributeError(name)
        return self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ANSWERS[name].FromString,
        )

    def session(self, messages, timeout: float | None = TIMEOUT_S):
        call = self.channel.stream_stream(
            f"/{SERVICE}/Session",
            request_serializer=pb.WorkerMessage.SerializeToString,
            response_deserializer=pb.CoordinatorMessage.FromString,
        )
        return call(messages, timeout=timeout)

    def register(self, worker: str = "", **given) -> pb.RegisterWorkerResponse:
        return self.RegisterWorker(pb.RegisterWorkerRequest(worker_id=worker, **given))


@contextmanager
def coordinator(folder, **settings):
    """Run a coordinator in a thread while the context is open."""
    given = Settings(data_dir=str(folder), grpc_port=0, http_port=0, **settings)
    ready: Future[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve():
        stop = asyncio.Event()
        async with running(given, "test") as started:
            ready.set_result((started, asyncio.get_running_loop(), stop))
            await stop.wait()

    def main():
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=main)
    thread.start()
    started, loop, stop = ready.result(20)
    try:
        yield started
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)


@pytest.fixture
def client(tmp_path):
    with coordinator(tmp_path) as started:
        client = Client(started)
        yield client
        client.channel.close()
